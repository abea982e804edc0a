package flow_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
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
		expect.Not(t, len(text) > 170<<10, "%s: %d bytes, which a claim has no room for", name, len(text))
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
	want := flow.LaneState{Done: 9, Stamp: 77, LastRow: 8, Totals: became, StoredDays: []flow.StoredDay{{"2025-11-21", 4, 9}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got.Totals.Sum() != got.Totals.Read {
		t.Errorf("%d of %d records are accounted for", got.Totals.Sum(), got.Totals.Read)
	}
}

// TestStoredDaysAreKeptInTheOrderOfMessages: consecutive days, a clock that was set back, a renewed claim, and more
// days than a state may have.
func TestStoredDaysAreKeptInTheOrderOfMessages(t *testing.T) {
	noon := time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)
	var s flow.LaneState
	apply := func(c flow.Claim, stored uint64) {
		t.Helper()
		before, kept := slices.Clone(s.StoredDays), s.StoredDays
		c.First, c.Last = s.Done+1, s.Done+10
		var err error
		if s, err = s.Apply(c, flow.Totals{Read: stored + 1, Stored: stored, Deduplicated: 1}, c.Last); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, kept); diff != "" {
			t.Fatalf("the state before has changed:\n%s", diff)
		}
	}
	on := func(day int) int64 { return noon.AddDate(0, 0, day).UnixMilli() }
	apply(flow.Claim{StoredAt: on(0)}, 4)
	apply(flow.Claim{StoredAt: on(0)}, 0)
	apply(flow.Claim{StoredAt: on(0)}, 5)
	apply(flow.Claim{StoredAt: on(1)}, 6)
	apply(flow.Claim{StoredAt: on(0)}, 7)
	// Three rows were there before the first renewal, two before the second; two of the later ones carry the first
	// time.
	c := flow.Claim{StoredAt: on(1)}.Renewed(on(2), 3).Renewed(on(3), 5)
	c.Pieces = []flow.Piece{{To: 9, State: flow.PieceOpen}}
	c, err := c.Next([]flow.Outcome{{Result: flow.ResultInserted, Earlier: 2}})
	fatal.If(t, err)
	apply(c, 9)
	want := []flow.StoredDay{{"2025-11-21", 9, 30}, {"2025-11-22", 6, 40}, {"2025-11-21", 7, 50}, {"2025-11-22", 5, 60}, {"2025-11-23", 2, 60}, {"2025-11-24", 2, 60}}
	expect.Equal(t, "stored days", want, s.StoredDays)
	for _, tt := range []struct {
		line          string
		rows, expired uint64
	}{{"", 31, 0}, {"2025-11-20", 31, 0}, {"2025-11-21", 15, 50}, {"2025-11-22", 4, 60}, {"2025-11-24", 0, 60}} {
		if rows, expired, known := s.Unexpired(tt.line); rows != tt.rows || expired != tt.expired || !known {
			t.Errorf("up to %q: %d rows are kept, the last expired one is of message %d, known: %v; want %d and %d", tt.line, rows, expired, known, tt.rows, tt.expired)
		}
	}
	for day := 4; len(s.StoredDays) < flow.MaxStoredDays; day++ {
		apply(flow.Claim{StoredAt: on(day)}, 1)
	}
	apply(flow.Claim{StoredAt: on(5000)}, 1)
	apply(flow.Claim{StoredAt: on(5001)}, 1)
	if want := (flow.StoredDay{"2025-11-22", 22, 50}); len(s.StoredDays) != flow.MaxStoredDays || s.StoredDays[0] != want {
		t.Errorf("%d days, the first is %v, want %v", len(s.StoredDays), s.StoredDays[0], want)
	}
	for line, want := range map[string]bool{"": true, "2025-11-21": false, "2025-11-22": true} {
		rows, _, known := s.Unexpired(line)
		if known != want || line == "" && rows != s.Totals.Stored {
			t.Errorf("up to %q: %d rows of %d are kept, known: %v", line, rows, s.Totals.Stored, known)
		}
	}
}

func TestDaysInDoubtAreNamedOnce(t *testing.T) {
	s := flow.LaneState{Recount: []flow.Doubt{{"2025-11-02", "2025-12-01"}}}
	got := s.InDoubt([]flow.Doubt{{"2025-11-03", "2025-12-01"}, {"2025-11-02", "2025-11-30"}, {"2025-11-02", "2025-12-01"}, {"2025-11-03", "2025-12-01"}})
	if diff := cmp.Diff([]flow.Doubt{{"2025-11-02", "2025-11-30"}, {"2025-11-02", "2025-12-01"}, {"2025-11-03", "2025-12-01"}}, got.Recount); diff != "" || len(s.Recount) != 1 {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhatAResetLeavesAsItWas: unchanged messages keep their incarnation, and nothing is skipped.
func TestWhatAResetLeavesAsItWas(t *testing.T) {
	claim := &flow.Claim{First: 901, Last: 920}
	before := flow.LaneState{
		Owner: "a", Incarnations: []flow.Incarnation{{ID: 17, First: 1}}, StreamID: "FLOW_0@1", Done: 900, Stamp: 5, LastRow: 900, DedupFrom: 700, VoidThrough: 650,
		Claim: claim, Totals: flow.Totals{Read: 9, Stored: 9}, Recount: nil, Hold: &flow.Hold{By: "x"}, Forget: "f", Revision: 4,
		Moves: []flow.Move{{Source: "s", Revision: 2, Seq: 580}, {Source: "s", Revision: 4, Seq: 850}},
	}
	for _, tt := range []struct {
		name        string
		last, first uint64
		want        flow.LaneState
	}{
		{"the lane reaches beyond", 950, 1, flow.LaneState{Done: 900, Stamp: 5, DedupFrom: 700, VoidThrough: 650, Claim: claim}},
		{"up to the claim", 920, 1, flow.LaneState{Done: 900, Stamp: 5, DedupFrom: 700, VoidThrough: 650, Claim: claim}},
		{"within the claim", 910, 1, flow.LaneState{Done: 900, Stamp: 5, DedupFrom: 700, VoidThrough: 650}},
		{"before the checkpoint", 800, 1, flow.LaneState{Done: 800, DedupFrom: 1}},
		{"before the window, which is partly gone", 600, 550, flow.LaneState{Done: 600, DedupFrom: 550}},
		{"nothing", 0, 1, flow.LaneState{DedupFrom: 1}},
		{"messages are gone", 990, 951, flow.LaneState{Done: 950, DedupFrom: 700, VoidThrough: 650}},
	} {
		want := tt.want
		want.Incarnations, want.StreamID = []flow.Incarnation{{ID: 17, First: 1}, {ID: 20, First: tt.last + 1}}, "FLOW_0@1"
		want.Reset, want.Forget, want.Revision = true, "f", 4
		for _, move := range before.Moves {
			if move.Seq <= want.Done {
				want.Moves = append(want.Moves, move)
			}
		}
		expect.Equal(t, tt.name, want, before.Behind(tt.last, tt.first, 20))
	}
	lost := flow.LaneState{Revision: 3}.Behind(40, 11, 20)
	expect.Equal(t, "a state that was lost", flow.LaneState{Incarnations: []flow.Incarnation{{ID: 20, First: 41}}, Done: 10, DedupFrom: 11, Reset: true, Revision: 3}, lost)
}

// TestTotalsAreOfTheCurrentIncarnation: messages of an earlier one are in no sum.
func TestTotalsAreOfTheCurrentIncarnation(t *testing.T) {
	s := flow.LaneState{Incarnations: []flow.Incarnation{{ID: 17, First: 1}, {ID: 20, First: 6}}, Done: 3}
	for _, block := range []struct{ last, lastRow, want uint64 }{{5, 5, 0}, {8, 7, 2}} {
		var err error
		if s, err = s.Apply(flow.Claim{First: s.Done + 1, Last: block.last}, flow.Totals{Read: 2, Stored: 2}, block.lastRow); err != nil {
			t.Fatal(err)
		}
		expect.Not(t, s.Done != block.last || s.Totals.Read != block.want || s.Totals.Stored != block.want || s.LastRow > 0 != (block.want > 0), "after message %d: %+v", block.last, s)
	}
}
