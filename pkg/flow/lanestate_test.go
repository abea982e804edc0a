package flow_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/flow"
)

func TestRunsAreReadAsTheyWereWritten(t *testing.T) {
	var alternate, sparse []flow.Run
	for row := 0; row < 1_000_000; row += 2 {
		alternate = append(alternate, flow.Run{From: row, To: row + 1})
	}
	for row := 5; row < 1_000_000; row += 10_000 {
		sparse = append(sparse, flow.Run{From: row, To: row + 300})
	}
	for name, runs := range map[string][]flow.Run{
		"none": nil, "one": {{From: 7, To: 9}}, "all": {{From: 0, To: 1_000_000}}, "every second": alternate, "few": sparse,
	} {
		text := flow.FormatRuns(runs)
		got, err := flow.ParseRuns(text)
		if diff := cmp.Diff(runs, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		if len(text) > 170<<10 {
			t.Errorf("%s: %d bytes, which a claim has no room for", name, len(text))
		}
	}
}

func TestDamagedRunsAreRefused(t *testing.T) {
	for _, text := range []string{"!", "AAA", "AP8", "AAAA", "AICAgICAgICAgIA", "Ag"} {
		if runs, err := flow.ParseRuns(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, runs)
		}
	}
}

func TestAMessageKeepsItsIncarnation(t *testing.T) {
	var s flow.LaneState
	if s.Incarnation() != 0 || s.Base() != 0 || s.IncarnationOf(1) != 0 {
		t.Errorf("of none: %d, %d, %d", s.Incarnation(), s.Base(), s.IncarnationOf(1))
	}
	first := s.WithIncarnation(100, 1)
	second := first.WithIncarnation(200, 51)
	again := second.WithIncarnation(300, 1) // the stream was recreated
	for seq, want := range map[uint64][3]uint64{1: {100, 100, 300}, 50: {100, 100, 300}, 51: {100, 200, 300}, 99: {100, 200, 300}} {
		if got := [3]uint64{first.IncarnationOf(seq), second.IncarnationOf(seq), again.IncarnationOf(seq)}; got != want {
			t.Errorf("message %d: got %v, want %v", seq, got, want)
		}
	}
	if second.Base() != 50 || again.Base() != 0 || len(first.Incarnations) != 1 {
		t.Errorf("bases %d and %d, %d incarnations", second.Base(), again.Base(), len(first.Incarnations))
	}
}

func TestApplyMovesTheCheckpointBehindItOnly(t *testing.T) {
	noon := time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)
	s := flow.LaneState{Done: 5}
	if _, err := s.Apply(flow.Claim{First: 7, Last: 9}, flow.Totals{}, 0); err == nil {
		t.Error("a claim that leaves a message out was applied")
	}
	if err := (flow.LaneState{Done: 5, Claim: &flow.Claim{First: 5}}).Check(); err == nil {
		t.Error("a claim that begins before the checkpoint is right")
	}
	c := flow.Claim{First: 6, Last: 9, Stamp: 77, StoredAt: noon.UnixMilli()}
	became := flow.Totals{Read: 10, Stored: 4, Deduplicated: 3, DeadLettered: 2, Void: 1}
	got, err := s.Apply(c, became, 8)
	want := flow.LaneState{Done: 9, Stamp: 77, LastRow: 8, Totals: became, StoredDays: []flow.StoredDay{{Day: "2025-11-21", Rows: 4}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got.Totals.Sum() != got.Totals.Read {
		t.Errorf("%d of %d records are accounted for", got.Totals.Sum(), got.Totals.Read)
	}
	// A day is added where it belongs, and the oldest days become one.
	days := []int{1, 0, 2, 2}
	for day := range 200 {
		days = append(days, day)
	}
	s = got
	for _, day := range days {
		before := slices.Clone(s.StoredDays)
		kept := s.StoredDays
		if s, err = s.Apply(flow.Claim{First: s.Done + 1, Last: s.Done + 1, StoredAt: noon.AddDate(0, 0, day).UnixMilli()}, flow.Totals{Read: 1, Stored: 1}, s.Done+1); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, kept); diff != "" {
			t.Fatalf("the state before has changed:\n%s", diff)
		}
	}
	sum := uint64(0)
	for _, day := range s.StoredDays {
		sum += day.Rows
	}
	if sum != s.Totals.Stored || len(s.StoredDays) > 128 || !slices.IsSortedFunc(s.StoredDays, func(a, b flow.StoredDay) int { return strings.Compare(a.Day, b.Day) }) {
		t.Errorf("%d rows of %d in %d days: %v", sum, s.Totals.Stored, len(s.StoredDays), fmt.Sprint(s.StoredDays[:3]))
	}
}

func TestDaysInDoubtAreNamedOnce(t *testing.T) {
	s := flow.LaneState{Recount: []string{"2025-11-02"}}
	got := s.InDoubt([]string{"2025-11-03", "2025-11-01", "2025-11-02", "2025-11-03"})
	if diff := cmp.Diff([]string{"2025-11-01", "2025-11-02", "2025-11-03"}, got.Recount); diff != "" || len(s.Recount) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
