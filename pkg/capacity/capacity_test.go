package capacity_test

import (
	"errors"
	"flag"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"sluice/pkg/capacity"
	"sluice/pkg/fatal"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/scaling.md")

func model(t *testing.T) capacity.Model {
	t.Helper()
	measured, err := capacity.Embedded()
	fatal.If(t, err)
	m, err := capacity.Fit(measured)
	fatal.If(t, err)
	return m
}

// ask is what sluice capacity asks by default.
func ask(rate float64) capacity.Ask {
	a := capacity.Default
	a.Rate = rate
	return a
}

// TestTheFitFindsWhatPointsWereMadeOf fits points that are exact sums.
func TestTheFitFindsWhatPointsWereMadeOf(t *testing.T) {
	costs := map[string]capacity.Cost{
		capacity.API:      {Record: 1.2e-6, Request: 30e-6, Entry: 50e-6},
		capacity.NATS:     {Record: 0.1e-6, Entry: 300e-6},
		capacity.Ingester: {Record: 1.4e-6, Entry: 40e-6, Block: 2e-3},
		capacity.Engine:   {Record: 4e-6, Block: 20e-3, Second: 0.1},
		capacity.Load:     {Record: 0.5e-6, Request: 20e-6},
	}
	m := capacity.Measured{Sync: 0.0003, Table: 20, Inserted: 57}
	for i, n := range [][5]float64{ // records, requests, entries, blocks, seconds
		{10_000, 10_000, 900, 12, 3}, {600_000, 600, 580, 8, 3}, {240_000, 240, 240, 24, 6},
		{60_000, 600, 590, 25, 6}, {150_000, 3000, 1200, 10, 3}, {6000, 6000, 5000, 24, 6},
	} {
		p := capacity.Point{Records: n[0], Requests: n[1], Entries: n[2], Blocks: n[3], Seconds: n[4], Bytes: n[0] * 640, Streamed: n[0] * 84, CPU: map[string]float64{}}
		if i > 1 {
			p.Rate = n[0] / n[4]
		}
		for process, c := range costs {
			p.CPU[process] = c.Record*n[0] + c.Request*n[1] + c.Entry*n[2] + c.Block*n[3] + c.Second*n[4]
		}
		m.Points = append(m.Points, p)
	}
	m.Max()
	got, err := capacity.Fit(m)
	fatal.If(t, err)
	for process, want := range costs {
		for name, pair := range map[string][2]float64{
			"record": {got.Costs[process].Record, want.Record}, "request": {got.Costs[process].Request, want.Request},
			"entry": {got.Costs[process].Entry, want.Entry}, "block": {got.Costs[process].Block, want.Block}, "second": {got.Costs[process].Second, want.Second},
		} {
			if math.Abs(pair[0]-pair[1]) > 0.02*pair[1]+1e-9 {
				t.Errorf("%s: a %s costs %.3g, want %.3g", process, name, pair[0], pair[1])
			}
		}
	}
	m.Points = m.Points[:3]
	if _, err := capacity.Fit(m); err == nil || !strings.Contains(err.Error(), "at least 4") {
		t.Errorf("three points made a model: %v", err)
	}
}

// TestMoreRecordsTakeMore: a higher rate lowers no figure of a plan, and no limit is exceeded.
func TestMoreRecordsTakeMore(t *testing.T) {
	m := model(t)
	var before capacity.Plan
	for rate := 1000.0; rate < 12_000_000; rate *= 1.3 {
		p, err := m.Plan(ask(rate))
		fatal.When(t, err != nil, "%.0f/s: %v", rate, err)
		if p.APIs < before.APIs || p.Lanes < before.Lanes || p.NATS < before.NATS || p.Ingesters < before.Ingesters {
			t.Errorf("%.0f/s takes less than %.0f/s: %+v after %+v", rate, before.Ask.Rate, p, before)
		}
		if p.First().Used > p.Ask.Use+1e-9 {
			t.Errorf("%.0f/s: %s is used to %.2f", rate, p.First().What, p.First().Used)
		}
		if p.At() <= rate {
			t.Errorf("%.0f/s: it breaks at %.0f/s", rate, p.At())
		}
		before = p
	}
}

func TestInvalidSettingsAreNamed(t *testing.T) {
	m := model(t)
	for flag, change := range map[string]func(*capacity.Ask){
		"--rate":         func(a *capacity.Ask) { a.Rate = 0 },
		"--rate is NaN":  func(a *capacity.Ask) { a.Rate = math.NaN() },
		"--record-bytes": func(a *capacity.Ask) { a.RecordBytes = 10 },
		"--batch":        func(a *capacity.Ask) { a.Batch = 0 },
		"--retention":    func(a *capacity.Ask) { a.Retention = time.Hour },
		"--log-time":     func(a *capacity.Ask) { a.Log = a.Retention + 1 },
		"--copies":       func(a *capacity.Ask) { a.Copies = 2 },
		"--replicas":     func(a *capacity.Ask) { a.Replicas = 0 },
		"--cores":        func(a *capacity.Ask) { a.Cores = 0 },
		"--gigabits":     func(a *capacity.Ask) { a.Gigabits = -1 },
		"--terabytes":    func(a *capacity.Ask) { a.Terabytes = 0 },
		"--use":          func(a *capacity.Ask) { a.Use = 1.5 },
		"larger":         func(a *capacity.Ask) { a.Rate, a.Cores = 1e9, 1 },
	} {
		a := ask(1000)
		change(&a)
		if _, err := m.Plan(a); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
}

// TestTheScalingPage compares the tables of docs/scaling.md with sluice capacity: go test ./pkg/capacity -run
// ScalingPage -update.
func TestTheScalingPage(t *testing.T) {
	m := model(t)
	var plans, short []capacity.Plan
	for _, rate := range []float64{10_000, 100_000, 1_000_000, 10_000_000} {
		a := ask(rate)
		p, err := m.Plan(a)
		fatal.If(t, err)
		plans = append(plans, p)
		a.Retention = 7 * 24 * time.Hour
		if p, err = m.Plan(a); err != nil {
			t.Fatal(err)
		}
		short = append(short, p)
	}
	var steps, week strings.Builder
	fatal.If(t, errors.Join(capacity.WriteTable(&steps, plans), capacity.WriteTable(&week, short)))
	const file = "../../docs/scaling.md"
	old, err := os.ReadFile(file)
	fatal.If(t, err)
	page := string(old)
	for name, table := range map[string]string{
		"steps": "```\n" + steps.String() + "```\n", "week": "```\n" + week.String() + "```\n",
	} {
		begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
		before, rest, found := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		fatal.When(t, !found || !ended, "%s has no place for %s", file, name)
		page = before + begin + table + end + after
	}
	if page == string(old) {
		return
	}
	fatal.When(t, !*update, "%s is not what sluice capacity prints: go test ./pkg/capacity -run ScalingPage -update", file)
	fatal.If(t, os.WriteFile(file, []byte(page), 0o644))
}
