package warehouse_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load/simulator"
	"sluice/pkg/warehouse"
)

// happened is a record of the root element of an instance.
func happened(position int, at time.Time, intent string, key, caller int64) sent {
	return sent{"cluster-c", int64(position), at.UnixMilli(), fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"key":%d,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"%s",
		"value":{"bpmnProcessId":"order","bpmnElementType":"PROCESS","elementId":"order","processInstanceKey":%d,"parentProcessInstanceKey":%d,"flowScopeKey":-1}}`, position, at.UnixMilli(), key, intent, key, caller)}
}

// lives are records of instances: their starts and, if any, ends.
type lives struct {
	all []sent
	old time.Time
}

func (l *lives) add(key, caller int64, started, ended time.Time) {
	for intent, at := range map[string]time.Time{"ELEMENT_ACTIVATED": started, "ELEMENT_COMPLETED": ended} {
		if !at.IsZero() {
			l.all = append(l.all, happened(len(l.all)+1, at, intent, key, caller))
		}
	}
}

// TestEndedTreesLeaveWhole: a year of two years of three engines is removed in small, interrupted
// steps. From every table the rows of trees that ended before the line are removed, and no others.
func TestEndedTreesLeaveWhole(t *testing.T) {
	db := open(t)
	warehouse.InSteps(7)
	t.Cleanup(func() { warehouse.InSteps(10_000) })
	now := time.Now().UTC()
	var all []sent
	for seed, source := range []string{"cluster-a", "cluster-b"} {
		e := simulator.New(simulator.Config{Seed: 5 + uint64(seed), Start: now.AddDate(-2, 0, 0), Every: 12 * 24 * time.Hour, Instances: 60})
		for r, more := e.NextBy(now); more; r, more = e.NextBy(now) {
			all = append(all, sent{source, r.Position, r.Timestamp, string(r.JSON)})
		}
	}
	old, recent, never := now.AddDate(0, 0, -500), now.AddDate(0, 0, -10), time.Time{}
	l := &lives{old: old}
	l.add(100, -1, old, old.Add(time.Hour)) // a tree of three levels: removed
	l.add(101, 100, old, old.Add(time.Hour))
	l.add(102, 101, old, old.Add(time.Hour))
	l.add(200, -1, old, old.Add(time.Hour)) // below it one is still active: stays
	l.add(201, 200, old, old.Add(time.Hour))
	l.add(202, 201, old, never)
	l.add(300, -1, old, recent) // ended after the line: stays
	l.add(301, 300, old, old.Add(time.Hour))
	l.add(400, -1, old, never)               // active, though long without a record: stays
	l.add(501, 500, old, old.Add(time.Hour)) // its caller has no records: removed
	l.add(600, -1, never, old)               // its start has no record: removed
	all = append(all, l.all...)
	store(t, db, 1, all, 5000)

	type instance struct {
		caller       string
		ended, stays bool
	}
	trees := map[string]*instance{}
	for line := range strings.Lines(query(t, db, fmt.Sprintf("SELECT concat(source, '/', process_instance_key), if(parent_process_instance_key = '', '', concat(source, '/', parent_process_instance_key)), state != 'ACTIVE' AND last_seen < '%s' FROM {db}.v_process_instances",
		now.AddDate(0, 0, -365).Format(time.DateOnly)))) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		trees[f[0]] = &instance{caller: f[1], ended: f[2] == "1"}
	}
	for changed := true; changed; { // an active instance keeps its callers, and these keep all they called
		changed = false
		for _, i := range trees {
			caller := trees[i.caller]
			for _, of := range []*instance{i, caller} {
				if of != nil && !of.stays && (!i.ended || i.stays || caller != nil && caller.stays) {
					of.stays, changed = true, true
				}
			}
		}
	}
	var gone []string
	for _, key := range slices.Sorted(maps.Keys(trees)) {
		if !trees[key].stays {
			gone = append(gone, "'"+key+"'")
		}
	}
	fatal.When(t, len(gone) < 40 || len(gone) > len(trees)-40, "%d of %d instances are to leave, which proves little", len(gone), len(trees))
	state := func(where string) string {
		var all []string
		for _, table := range aggregates(t, db) {
			if query(t, db, "SELECT count() FROM system.columns WHERE database = '{db}' AND table = '"+table+"' AND name = 'process_instance_key'") == "1" {
				all = append(all, table+" "+query(t, db, "SELECT count(), sum(cityHash64(*)) FROM {db}."+table+" FINAL WHERE "+where))
			}
		}
		return strings.Join(all, "\n")
	}
	of := "concat(source, '/', process_instance_key) IN (" + strings.Join(gone, ", ") + ")"
	rest := state("NOT " + of)

	fatal.If(t, db.Retain(t.Context(), warehouse.Retention{Table: "instances", Days: 365}))
	for limit := 50 * time.Millisecond; ; limit *= 2 { // interrupted at any point
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := db.ExpireHistory(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	expect.Equal(t, "instances are there, and should have left", "0", query(t, db, "SELECT count() FROM {db}.process_instances FINAL WHERE "+of))
	expect.Equal(t, "the tables hold", rest, state("1"))
	if n, err := db.ExpireHistory(t.Context()); n != 0 || err != nil {
		t.Errorf("on the same day %d more leave, %v", n, err)
	}
	h, err := db.History(t.Context())
	fatal.If(t, err)
	if want := now.Truncate(24*time.Hour).AddDate(0, 0, -365); !h.Line.Equal(want) || !h.Done.Equal(want) {
		t.Errorf("the line is %s, and %s is done, want %s", h.Line, h.Done, want)
	}

	// A late record of a removed instance, and one of an active instance.
	late := []sent{happened(9001, old, "ELEMENT_MIGRATED", 100, -1), happened(9002, old, "ELEMENT_MIGRATED", 400, -1)}
	store(t, db, 1000, late, 10)
	if got := query(t, db, "SELECT process_instance_key, started_at IS NULL, state FROM {db}.v_process_instances WHERE source = 'cluster-c' AND process_instance_key IN ('100', '400') ORDER BY 1"); got != "100\t1\tEXPIRED\n400\t0\tACTIVE" {
		t.Errorf("late records show\n%s", got)
	}
	expect.Equal(t, "late records are kept", "2", query(t, db, "SELECT count() FROM {db}.records WHERE position IN (9001, 9002) AND source = 'cluster-c'"))
}

// TestHistoryIsKeptForEver by default, and a time that is too short is refused.
func TestHistoryIsKeptForEver(t *testing.T) {
	t.Parallel()
	db := open(t)
	l := &lives{}
	l.add(100, -1, time.Now().AddDate(-9, 0, 0), time.Now().AddDate(-9, 0, 1))
	store(t, db, 1, l.all, 10)
	if n, err := db.ExpireHistory(t.Context()); n != 0 || err != nil {
		t.Errorf("%d instances left, %v", n, err)
	}
	if err := db.Retain(t.Context(), warehouse.Retention{Table: "instances", Days: 1}); err == nil {
		t.Error("a day is taken")
	}
}
