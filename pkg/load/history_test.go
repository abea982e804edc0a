package load_test

import (
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
)

// TestRecordsOfAnEngineAreCounted sums a batch of an engine that ends.
func TestRecordsOfAnEngineAreCounted(t *testing.T) {
	e := simulator.New(simulator.Config{Seed: 1, Instances: 3})
	body, sum := load.AppendBatch(nil, e, 100_000)
	if n := strings.Count(string(body), `"recordVersion"`); int64(n) != sum.Records || n < 10 {
		t.Errorf("%d records are written, %d are reported", n, sum.Records)
	}
	expect.Not(t, sum.MinPosition != 2 || sum.MaxPosition <= 2 || sum.KeySum == 0, "they add up to %+v", sum)
	if body, sum = load.AppendBatch(body[:0], e, 10); string(body) != "[]" || sum.Records != 0 {
		t.Errorf("an engine that has ended writes %s", body)
	}
}

// TestAHistoryFillsItsSpan checks the time of the last record.
func TestAHistoryFillsItsSpan(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, records := range []int64{1, 2_000, 20_000, 200_000} {
		e := load.History(3, records, 24*time.Hour, now)
		var last simulator.Record
		for range records {
			last, _ = e.Next()
			if at := time.UnixMilli(last.Timestamp); at.After(now) {
				t.Fatalf("one of %d records happens at %s, after %s", records, at, now)
			}
		}
		missing := now.Sub(time.UnixMilli(last.Timestamp))
		expect.Not(t, missing > time.Second, "the last of %d records is %s before now", records, missing)
		expect.Not(t, last.Position < now.UnixMicro(), "position %d", last.Position)
	}
}

// TestADayEndsWithABusyHour counts new instances, and checks that no record is later than now.
func TestADayEndsWithABusyHour(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	day, lately, records := load.Day(5, now), 0, 0
	var last time.Time
	for r, more := day.Next(); more; r, more = day.Next() {
		records++
		if last = time.UnixMilli(r.Timestamp); last.After(now) {
			t.Fatalf("a record happens at %s", last)
		}
		if r.Intent == "ELEMENT_ACTIVATED" && strings.Contains(string(r.JSON), `"bpmnElementType":"PROCESS"`) && now.Sub(last) < time.Hour {
			lately++
		}
	}
	expect.Not(t, lately < 1000 || now.Sub(last) > 10*time.Second || records > 1_000_000, "%d records, %d instances in the last hour, the last one at %s", records, lately, last)
}
