package console_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/console"
)

type series struct{ Kind, Process, Type string }

// openWork is the expected open work of a world, at a time past all due dates.
func (w *world) openWork() map[series]float64 {
	open := map[series]float64{}
	for _, i := range w.truth.Incidents {
		if i.ResolvedAt == 0 {
			open[series{"incident", i.Process.BpmnProcessID, i.ErrorType}]++
		}
	}
	for _, i := range w.truth.Instances {
		if i.StartedAt > 0 && i.CompletedAt == 0 && i.TerminatedAt == 0 {
			open[series{Kind: "stuck", Process: i.Process.BpmnProcessID}]++
		}
	}
	for _, u := range w.truth.UserTasks {
		if u.State == "CREATED" && u.DueDate != "" {
			open[series{Kind: "task", Process: u.Process.BpmnProcessID}]++
		}
	}
	for _, j := range w.truth.Jobs {
		if j.State == "ACTIVATED" && j.Deadline > 0 {
			open[series{Kind: "job", Process: j.Process.BpmnProcessID}]++
		}
	}
	for _, t := range w.truth.Timers {
		if t.DueAt > 0 && t.TriggeredAt == 0 && t.CanceledAt == 0 {
			open[series{Kind: "timer", Process: t.Element.Process.BpmnProcessID}]++
		}
	}
	return open
}

// bounded keeps the largest series of each kind, and sums up the rest.
func bounded(open map[series]float64, limit int) map[series]float64 {
	left, places := map[series]float64{}, map[string]int{}
	for _, s := range slices.SortedFunc(maps.Keys(open), func(a, b series) int {
		return cmp.Or(cmp.Compare(open[b], open[a]), cmp.Compare(a.Process, b.Process), cmp.Compare(a.Type, b.Type))
	}) {
		n := open[s]
		if places[s.Kind]++; places[s.Kind] > limit {
			s.Process, s.Type = "other", "other"
		}
		left[s] += n
	}
	return left
}

// testOpenWork compares the gauges with the open work in the engine.
func testOpenWork(t *testing.T, w *world) {
	reg := prometheus.NewRegistry()
	newSite(t, func(_ *console.Config, d *console.Deps) { d.Warehouse, d.Metrics = w.db, reg })
	want := bounded(w.openWork(), 50)
	got := map[series]float64{}
	for begun := time.Now(); len(got) == 0 && time.Since(begun) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		families, err := reg.Gather()
		fatal(t, err)
		for _, family := range families {
			kind, known := map[string]string{"sluice_open_incidents": "incident", "sluice_overdue": "", "sluice_stuck_instances": "stuck"}[family.GetName()]
			if !known {
				continue
			}
			for _, m := range family.GetMetric() {
				s := series{Kind: kind}
				for _, label := range m.GetLabel() {
					*map[string]*string{"kind": &s.Kind, "process": &s.Process, "type": &s.Type}[label.GetName()] = label.GetValue()
				}
				got[s] = m.GetGauge().GetValue()
			}
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("gauges (-open +shown):\n%s", diff)
	}
	for _, kind := range []string{"incident", "stuck", "task", "job", "timer"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(want)), func(s series) bool { return s.Kind == kind }) {
			t.Errorf("the engine has no open %s to count", kind)
		}
	}

	got = map[series]float64{}
	rows, err := w.db.Query(t.Context(), console.OpenWorkSQL(time.Hour, 2))
	fatal(t, err)
	defer rows.Close()
	for rows.Next() {
		var s series
		var n uint64
		fatal(t, rows.Scan(&s.Kind, &s.Process, &s.Type, &n))
		got[s] = float64(n)
	}
	want = bounded(w.openWork(), 2)
	if diff := gocmp.Diff(want, got); diff != "" || want[series{"incident", "other", "other"}] == 0 {
		t.Errorf("the two largest of each kind (-open +shown):\n%s", diff)
	}
}

// TestOpenWorkIsAbsentWithoutClickHouse: no gauges, and the failures are counted.
func TestOpenWorkIsAbsentWithoutClickHouse(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	newSite(t, func(c *console.Config, d *console.Deps) { c.Work, d.Metrics = 20*time.Millisecond, reg })
	failures := 0.0
	for begun := time.Now(); failures < 2 && time.Since(begun) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		families, err := reg.Gather()
		fatal(t, err)
		if len(families) != 1 || families[0].GetName() != "sluice_open_work_failures_total" {
			t.Fatalf("shown: %v", families)
		}
		failures = families[0].GetMetric()[0].GetCounter().GetValue()
	}
	if failures < 2 {
		t.Errorf("%v failures are counted", failures)
	}
}
