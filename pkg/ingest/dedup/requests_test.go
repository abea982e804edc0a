package dedup_test

import (
	"context"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// TestReadingAheadMakesNothingVoid: a session that read beyond the window fails. Its successor
// still has the state to judge messages that are read again.
func TestReadingAheadMakesNothingVoid(t *testing.T) {
	const window, patience, done = 10 * time.Second, 5 * time.Second, 9
	began := time.Unix(1_700_000_000, 0)
	entry := func(seq uint64) *flow.Entry { // one each second, whose api had read up to the third before it
		return &flow.Entry{Seq: seq, Stored: began.Add(time.Duration(seq) * time.Second), LogEnd: max(seq, 3) - 3, Patience: patience}
	}
	heads := func(_ context.Context, from, to uint64, f func(*flow.Entry) error) error {
		for seq := from; seq <= to; seq++ {
			if err := f(entry(seq)); err != nil {
				return err
			}
		}
		return nil
	}
	for ahead := uint64(done); ahead < 40; ahead++ {
		r := dedup.NewRequests(window)
		fatal.If(t, r.Recall(t.Context(), flow.LaneState{StreamID: "a"}, heads, func() {}))
		want := map[uint64]dedup.Moment{}
		for seq := uint64(1); seq <= ahead; seq++ {
			if want[seq] = r.Tick(entry(seq)); r.IsVoid(entry(seq)) {
				t.Fatalf("message %d is void when it is read first", seq)
			}
		}
		r.Decided(1, want[done])
		fatal.If(t, r.Recall(t.Context(), flow.LaneState{StreamID: "a", Done: done, DedupFrom: 1}, heads, func() {}))
		for seq := uint64(done + 1); seq <= ahead; seq++ {
			got := r.Tick(entry(seq))
			expect.Not(t, r.IsVoid(entry(seq)), "read up to %d: message %d is void when it is read again", ahead, seq)
			if got.Reach != want[seq].Reach || got.Void != want[seq].Void {
				t.Errorf("read up to %d: message %d reaches to %d, void through %d, when it was read first, and to %d, %d now", ahead, seq, want[seq].Reach, want[seq].Void, got.Reach, got.Void)
			}
		}
	}
}

// TestARequestThatNeededAPurgedMessageIsRecalled: message 1 was purged before message 4 came, whose api had read up to 0.
func TestARequestThatNeededAPurgedMessageIsRecalled(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	entry := func(seq uint64) *flow.Entry {
		e := &flow.Entry{Seq: seq, Stored: began.Add(time.Duration(seq) * time.Second), LogEnd: seq - 1, Patience: time.Minute, Table: []byte{1}}
		if seq == 4 || seq == 6 {
			e.LogEnd = seq - 4 + seq/6
			e.Messages = []flow.Message{{Topic: "flow.0.record", Source: "s", Subject: "s", ID: "k", Hash: "h", Seq: seq, Records: 1, Body: []byte(`[{"key":1}]`)}}
		}
		return e
	}
	heads := func(_ context.Context, from, to uint64, f func(*flow.Entry) error) error {
		for seq := max(from, 2); seq <= to; seq++ {
			if err := f(entry(seq)); err != nil {
				return err
			}
		}
		return nil
	}
	r := dedup.NewRequests(time.Hour)
	fatal.If(t, r.Recall(t.Context(), flow.LaneState{StreamID: "a", Done: 5, DedupFrom: 1}, heads, func() {}))
	again := entry(6)
	at := r.Tick(again)
	one, _ := dedup.RequestOf(again, &again.Messages[0], at, 0, 1)
	var c record.Columns
	_, err := c.AppendGood(&again.Messages[0])
	fatal.If(t, err)
	runs, err := r.Repeated(t.Context(), dedup.Batch{First: 6, Requests: []dedup.Request{one}, Columns: &c}, 1<<20, heads)
	if err != nil || len(runs) != 1 {
		t.Errorf("repeated rows %v, %v, want the one", runs, err)
	}
}
