package console_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/go-cmp/cmp"

	"sluice/pkg/console"
)

// count is a row of the list of processes.
type count struct {
	Instances, Active, Open, Completed, Terminated, Failed uint64
	Half                                                   int64
}

// median is round(quantileExactInclusive(0.5)), or -1 without values.
func median(all []int64) int64 {
	if len(all) == 0 {
		return -1
	}
	slices.Sort(all)
	return int64(math.RoundToEven(float64(all[(len(all)-1)/2]+all[len(all)/2]) / 2))
}

func (w *world) counts(from, to time.Time, tenant string) map[string]count {
	took, all := map[string][]int64{}, map[string]count{}
	for _, i := range w.truth.Instances {
		begun := i.StartedAt >= from.UnixMilli() && i.StartedAt < to.UnixMilli()
		active := i.CompletedAt == 0 && i.TerminatedAt == 0
		if i.FirstSeen == 0 || !begun && !active || tenant != "" && i.Tenant != tenant {
			continue
		}
		c := all[i.Process.BpmnProcessID]
		if active {
			c.Active++
			c.Open += uint64(i.OpenIncidents)
		}
		if begun {
			c.Instances++
			if i.CompletedAt > 0 {
				c.Completed++
				took[i.Process.BpmnProcessID] = append(took[i.Process.BpmnProcessID], i.CompletedAt-i.StartedAt)
			}
			if i.TerminatedAt > 0 {
				c.Terminated++
			}
			if i.TerminatedAt > 0 || i.Incidents > 0 {
				c.Failed++
			}
		}
		all[i.Process.BpmnProcessID] = c
	}
	for id, c := range all {
		c.Half = median(took[id])
		all[id] = c
	}
	return all
}

// testProcesses compares the list with the truth.
func testProcesses(t *testing.T, w *world) {
	from, to := w.start.Add(20*time.Minute), w.start.Add(80*time.Minute)
	for _, tenants := range [][]string{nil, {"a"}, {}} {
		list, err := console.Ask(w.db, tenants).Processes(t.Context(), console.Between(from, to))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]count{}
		for _, p := range list {
			half := int64(-1)
			if p.P50 != nil {
				half = *p.P50
			}
			got[p.ID] = count{p.Instances, p.Active, p.Incidents, p.Completed, p.Terminated, p.Failed, half}
			var steps uint64
			for _, n := range p.Begun {
				steps += n
			}
			if steps != p.Instances && to.Sub(from) < time.Hour {
				t.Errorf("%s: the sparkline has %d of %d instances", p.ID, steps, p.Instances)
			}
		}
		want := map[string]count{}
		switch {
		case tenants == nil:
			want = w.counts(from, to, "")
		case len(tenants) > 0:
			want = w.counts(from, to, tenants[0])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tenants %q (-truth +page):\n%s", tenants, diff)
		}
		if tenants == nil && len(got) != 6 {
			t.Errorf("%d processes", len(got))
		}
	}
}

// testProcess compares the page of a process with the truth.
func testProcess(t *testing.T, w *world) {
	from, to := w.start.Add(10*time.Minute), w.start.Add(100*time.Minute)
	for _, process := range []string{"order-eu", "survey"} {
		ask, window := console.Ask(w.db, nil), console.Between(from, to)
		p := ask.Process(t.Context(), "cluster-a", process, 0, window)
		heat, err := ask.Heat(t.Context(), "cluster-a", process, window)
		for name, err := range map[string]error{
			"versions": p.Versions.Err, "heat": err, "tokens": p.Tokens.Err,
			"troubles": p.Troubles.Err, "variants": p.Variants.Err, "definitions": p.Definitions.Err,
		} {
			if err != nil {
				t.Errorf("%s: %s: %v", process, name, err)
			}
		}
		if p.Definition == nil || len(p.Definitions.Rows) != 2 || p.Definition.Version != 2 {
			t.Errorf("%s: definitions %+v", process, p.Definitions.Rows)
		}
		w.compareElements(t, heat, p.Places, process, "", from, to)
		for _, e := range heat {
			if e.P50 == nil || e.P95 == nil || e.Total == nil {
				t.Errorf("%s: %s has no time, though it was entered", process, e.ID)
			}
		}
		truth := w.counts(from, to, "")[process]
		var sum console.VersionRow
		for _, v := range p.Versions.Rows {
			sum.Instances += v.Instances
			sum.Active += v.Active
			sum.Completed += v.Completed
			sum.Terminated += v.Terminated
		}
		if sum.Instances != truth.Instances || sum.Active != truth.Active || sum.Completed != truth.Completed || sum.Terminated != truth.Terminated || len(p.Versions.Rows) != 2 {
			t.Errorf("%s: versions %+v, truth %+v", process, p.Versions.Rows, truth)
		}
		var bars, ways uint64
		for _, b := range p.Histogram {
			bars += b.Instances
		}
		for _, v := range p.Variants.Rows {
			ways += v.Instances
		}
		if bars != truth.Completed || ways > truth.Completed || ways == 0 {
			t.Errorf("%s: %d instances in the histogram, %d in the ten first variants, %d have completed", process, bars, ways, truth.Completed)
		}
	}
}

// compareElements compares the counts of each element, for one tenant or all.
func (w *world) compareElements(t *testing.T, heat []console.HeatRow, places []console.PlaceRow, process, tenant string, from, to time.Time) {
	t.Helper()
	type at struct{ Executions, Active, Incidents, Open uint64 }
	want, got := map[string]at{}, map[string]at{}
	there := map[string]bool{} // instances at elements
	for _, e := range w.truth.Elements {
		if e.Type == "PROCESS" || e.EnteredAt == 0 || tenant != "" && e.Instance.Tenant != tenant {
			continue
		}
		k := want[e.ID]
		if e.Process.BpmnProcessID == process && e.EnteredAt >= from.UnixMilli() && e.EnteredAt < to.UnixMilli() {
			k.Executions++
		}
		if e.Process.BpmnProcessID == process && e.CompletedAt == 0 && e.TerminatedAt == 0 && e.Type != "MULTI_INSTANCE_BODY" {
			if place := fmt.Sprint(e.ID, e.Instance.Key); !there[place] {
				there[place] = true
				k.Active++
			}
		}
		want[e.ID] = k
	}
	for _, i := range w.truth.Incidents {
		if i.Process.BpmnProcessID != process || tenant != "" && i.Instance.Tenant != tenant {
			continue
		}
		k := want[i.ElementID]
		if i.CreatedAt >= from.UnixMilli() && i.CreatedAt < to.UnixMilli() {
			k.Incidents++
		}
		if i.ResolvedAt == 0 {
			k.Open++
		}
		want[i.ElementID] = k
	}
	for _, p := range places {
		got[p.ID] = at{0, p.Active, p.Incidents, p.Open}
	}
	for _, h := range heat {
		k := got[h.ID]
		k.Executions += h.Executions
		got[h.ID] = k
	}
	maps.DeleteFunc(want, func(_ string, k at) bool { return k == at{} })
	maps.DeleteFunc(got, func(_ string, k at) bool { return k == at{} })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s of %q (-truth +page):\n%s", process, tenant, diff)
	}
}

// testElementsKeepToTenants: a token of some tenants sees only their instances.
func testElementsKeepToTenants(t *testing.T, w *world) {
	for _, tenant := range []string{"a", "nobody"} {
		ask, window := console.Ask(w.db, []string{tenant}), console.Between(w.start, w.end)
		heat, err := ask.Heat(t.Context(), "cluster-a", "order-eu", window)
		p := ask.Process(t.Context(), "cluster-a", "order-eu", 0, window)
		if err != nil || p.Tokens.Err != nil || p.Troubles.Err != nil {
			t.Errorf("%s: %v %v %v", tenant, err, p.Tokens.Err, p.Troubles.Err)
		}
		w.compareElements(t, heat, p.Places, "order-eu", tenant, w.start, w.end)
	}
}

// mute is a ClickHouse that fails statements with a prefix, or answers them after hours.
type mute struct {
	console.Warehouse
	to   string
	slow bool
}

func (m mute) Query(ctx context.Context, sql string, args ...any) (driver.Rows, error) {
	switch {
	case !strings.HasPrefix(sql, m.to):
	case m.slow:
		sql = "SELECT sleepEachRow(1) FROM numbers(10000) SETTINGS max_block_size = 1"
	default:
		return nil, errors.New("memory limit exceeded")
	}
	return m.Warehouse.Query(ctx, sql, args...)
}

// testPiecesOfAPage: a failed section shows no numbers, and does not affect the others.
func testPiecesOfAPage(t *testing.T, w *world) {
	for _, c := range []struct{ statement, page, says, lacks, has string }{
		{"SELECT any(id), any(type)", "/process/elements", "Not available: <span class=\"text\">memory limit exceeded", "data-is=\"p95\"", "data-again>Try again</a>"},
		{"SELECT id, uniqExact(source, instance) AS active", "/process", "active instances: memory limit exceeded", "/instances?at=now&amp;element=", "/incidents?any=1&amp;element="},
		{"SELECT id, toUInt64(0) AS active", "/process", "incidents: memory limit exceeded", "/incidents?any=1&amp;element=", "/instances?at=now&amp;element="},
	} {
		s := newSite(t, func(_ *console.Config, deps *console.Deps) { deps.Warehouse = mute{Warehouse: w.db, to: c.statement} })
		s.signIn(reader)
		res, body := s.get(c.page + "?source=cluster-a&id=order&window=all")
		wants(t, c.page, res, body, http.StatusOK, c.says, c.has)
		if strings.Contains(body, c.lacks) || strings.Contains(body, "No instance of this period entered") {
			t.Errorf("%s has numbers of what could not be read:\n%s", c.page, body)
		}
	}
}

// testTimeLimit: a part that reaches the time limit of its page names it and the remedy.
func testTimeLimit(t *testing.T, w *world) {
	s := newSite(t, func(c *console.Config, deps *console.Deps) {
		c.Answer, deps.Warehouse = 200*time.Millisecond, mute{Warehouse: w.db, slow: true}
	})
	s.signIn(reader)
	const says = "no answer within 0.2 s, the time limit of a page: choose a shorter period or a narrower filter"
	for path, status := range map[string]int{"/processes": 200, "/process?source=cluster-a&id=order": 200, "/process/elements?source=cluster-a&id=order": 200, "/jobs": 200, "/instance?source=cluster-a&key=1": 502} {
		res, body := s.get(path)
		wants(t, path, res, body, status, says)
		if strings.Contains(body, "deadline") {
			t.Errorf("%s has the driver's error:\n%s", path, body)
		}
	}
}

// tallied is a ClickHouse that counts statements.
type tallied struct {
	console.Warehouse
	n *atomic.Int64
}

func (c tallied) Query(ctx context.Context, sql string, args ...any) (driver.Rows, error) {
	c.n.Add(1)
	return c.Warehouse.Query(ctx, sql, args...)
}

// testRefresh: pages that refresh share the answers of an interval, by what their token may
// see; others are read when they are asked for.
func testRefresh(t *testing.T, w *world) {
	var n atomic.Int64
	s := newSite(t, func(_ *console.Config, deps *console.Deps) { deps.Warehouse = tallied{w.db, &n} })
	asOf := func(token, path string) (string, string, int64) {
		s.signIn(token)
		before := n.Load()
		_, body := s.get(path)
		_, at, _ := strings.Cut(body, `role="status">As of</span> `)
		at, _, _ = strings.Cut(at, "</time>")
		return at, body, n.Load() - before
	}
	const path = "/processes?window=all&refresh=1"
	for tries := 1; ; tries++ { // until all are of one interval
		if tries == 10 {
			t.Fatal("no two pages are of one interval")
		}
		first, whole, _ := asOf(reader, path)
		again, same, asked := asOf(admin, path)
		other, part, alone := asOf(tenants, path)
		if first == "" || first != again || first != other {
			continue
		}
		if asked != 0 || !strings.Contains(whole, "order-eu") || table(whole) != table(same) {
			t.Errorf("the second page of an interval asked %d statements:\n%s\nthe first was\n%s", asked, same, whole)
		}
		if alone != 1 || table(part) == table(whole) {
			t.Errorf("a token of some tenants asked %d statements, and sees\n%s", alone, part)
		}
		break
	}
	if _, _, asked := asOf(reader, "/processes?window=all"); asked != 1 {
		t.Errorf("a page that does not refresh asked %d statements", asked)
	}
}

// table is the first table of a page.
func table(page string) string {
	_, table, _ := strings.Cut(page, "<table")
	table, _, _ = strings.Cut(table, "</table>")
	return table
}

// testGraph compares the directly-follows graph with the truth.
func testGraph(t *testing.T, w *world) {
	follows, err := console.Ask(w.db, nil).Follows(t.Context(), "cluster-a", "sync", console.Between(w.start, w.end))
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]uint64{}, map[string]uint64{}
	for _, e := range w.truth.Elements {
		if e.Instance.Process.BpmnProcessID != "sync" || e.EnteredAt == 0 {
			continue
		}
		for _, before := range e.Follows {
			want[before.ID+" > "+e.ID]++
		}
	}
	for _, f := range follows {
		got[f.From+" > "+f.To] += f.Times
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 3 {
		t.Errorf("(-truth +graph):\n%s", diff)
	}
}
