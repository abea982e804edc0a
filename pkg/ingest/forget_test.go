package ingest_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

var order = flow.Forget{ID: "r1", Before: begun.UnixMilli(), Subjects: []flow.ForgetSubject{{Keys: []string{"77"}}}}

// of is a record of an instance, this many months before or after the order's end.
func of(id string, instance, months int) string {
	return fmt.Sprintf(`{"id":%q,"timestamp":%d,"value":{"processInstanceKey":%d}}`, id, begun.AddDate(0, months, 0).UnixMilli(), instance)
}

// forgotten has records of a forgotten instance: several months, resent, undecodable and later
// ones, mixed with records of other instances.
func forgotten() (*world, outcome) {
	w := newWorld()
	w.orders = []flow.Forget{order}
	message := func(records ...string) flow.Message {
		m := message(records...)
		m.Received = begun.AddDate(0, 2, 0)
		return m
	}
	broken := flow.Message{Topic: "flow.0.record", Received: begun, Body: []byte("[broken of 77")}
	bad := message(of("1-9", 5, 0), `{"id":"1-10","key":"no number","value":{"processInstanceKey":77}}`, `{"id":"1-11","key":"no number"}`)
	bad.Received = begun
	w.publish(
		message(of("1-1", 77, 0), of("1-2", 5, -1), of("1-3", 77, -1), of("1-4", 5, 0), of("1-5", 77, 1)),
		message(of("1-3", 77, -1), of("1-4", 5, 0), of("1-1", 77, 0), of("1-6", 5, -2)),
		broken, bad,
		message(of("1-7", 77, 0), of("1-8", 77, -3)),
	)
	rows := map[place]int{{1, 1}: 1, {1, 3}: 1, {1, 4}: 1, {2, 3}: 1, {4, 0}: 1}
	return w, outcome{
		Table: rows, View: rows,
		Dead: map[place]string{{4, 2}: "not_an_integer"}, Bodies: map[place]string{{4, 2}: `{"id":"1-11","key":"no number"}`},
		Done: 5, LastRow: 4, Applied: 0,
		Totals: flow.Totals{Read: 15, Stored: 5, Deduplicated: 1, DeadLettered: 1, Forgotten: 8},
	}
}

// TestAnOrderComesAtAnyStep: a record published after the order is never stored, whatever was
// claimed by then; and the totals add up.
func TestAnOrderComesAtAnyStep(t *testing.T) {
	for at := 1; at <= 60; at++ {
		for _, crash := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				for i := range 6 {
					w.publish(message(of(fmt.Sprintf("1-%d", 10*i+1), 77, 0), of(fmt.Sprintf("1-%d", 10*i+2), 5, 0)))
				}
				given := uint64(0)
				give := func() {
					w.forget(order)
					given = uint64(len(w.messages))
					w.publish(message(of("1-98", 77, 0), of("1-99", 5, 0)))
				}
				var steps atomic.Int64 // records and changes step concurrently
				w.before = func(string) {
					if steps.Add(1) == int64(at) && given == 0 {
						give()
					}
				}
				w.fault = func(step int, _ string) fault {
					if crash && step == at+1 {
						return crashedAfter
					}
					return none
				}
				w.settle(t, small)
				if given == 0 {
					give()
					w.settle(t, small)
				}
				expect.Not(t, w.table[place{given + 1, 0}] != 0 || w.table[place{given + 1, 1}] != 1, "behind an order at step %d: %v", at, w.table)
				stored := uint64(0)
				for at, n := range w.table {
					expect.Not(t, n != 1, "%v is stored %d times", at, n)
					stored += uint64(n)
				}
				if got := w.state.Totals; got.Read != 14 || got.Stored != stored || got.Stored+got.Forgotten != 14 || got.Forgotten == 0 || len(w.broken) > 0 {
					t.Errorf("an order at step %d: totals %+v, %d rows, %v", at, got, stored, w.broken)
				}
			})
		}
	}
}
