package ingest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
)

// TestAClaimThatAnotherVersionHasCounted: the ingester crashed after its claim. The next version
// numbers the block's rows differently, so the claim would drop other rows. Messages 1 and 2 are
// the block; row 0 is stored already.
func TestAClaimThatAnotherVersionHasCounted(t *testing.T) {
	february := strings.Replace(at(1, 9), "9466848", "9493920", 1)
	all := map[place]int{{1, 0}: 1, {2, 1}: 1, {2, 2}: 1, {2, 3}: 1, {3, 0}: 1, {3, 1}: 1}
	open := func(ends ...int) (pieces []flow.Piece) {
		for _, to := range ends {
			pieces = append(pieces, flow.Piece{To: to, State: flow.PieceOpen})
		}
		return pieces
	}
	tests := []struct {
		name  string
		other func(w *world, c *flow.Claim) // the other version's writes
		want  map[place]int
		says  string
	}{
		{"it read one record less as a row", func(_ *world, c *flow.Claim) {
			c.Pieces, c.Dropped = open(3, 5), ""
		}, all, ""},
		{"it read one record more as a row, and drops another one", func(_ *world, c *flow.Claim) {
			c.Pieces, c.Dropped = open(5, 7), flow.FormatRuns([]flow.Run{{From: 1, To: 2}})
		}, all, ""},
		{"the rows are of two months", func(_ *world, c *flow.Claim) {
			c.Pieces, c.Dropped = open(4, 6), ""
		}, map[place]int{{1, 0}: 1}, "of several months: run the version that wrote it"},
		{"it had several pieces, and opened one", func(_ *world, c *flow.Claim) {
			c.Pieces, c.Dropped = []flow.Piece{{To: 3, State: flow.PieceOpen}, {To: 5, State: flow.PieceWaiting}}, ""
		}, all, ""},
		{"it dropped every row", func(_ *world, c *flow.Claim) {
			c.Pieces, c.Dropped = nil, flow.FormatRuns([]flow.Run{{From: 0, To: 5}})
		}, all, ""},
		{"its insert arrives late, of other rows", func(w *world, c *flow.Claim) {
			c.Pieces, c.Dropped = open(4, 5), ""
			late := *c
			incarnation := w.state.Incarnation()
			w.before = func(op string) {
				if strings.HasPrefix(op, "insert ") {
					w.before = func(string) {}
					w.land(late.Token(0, incarnation, 0), incarnation, place{2, 2}, place{2, 3})
				}
			}
		}, map[place]int{{1, 0}: 1, {2, 2}: 1, {2, 3}: 1, {3, 0}: 1, {3, 1}: 1}, "the table has 2 of the 3 rows"},
		{"some of it is stored", func(w *world, c *flow.Claim) {
			c.Pieces, c.Dropped = open(4, 5), ""
			w.land(c.Token(0, w.state.Incarnation(), 0), w.state.Incarnation(), place{2, 2}, place{2, 3})
		}, map[place]int{{1, 0}: 1, {2, 2}: 1, {2, 3}: 1}, "run the version that wrote it"},
		{"some of it is settled", func(w *world, c *flow.Claim) {
			c.Settled, c.Pieces, c.Dropped = 4, open(5), ""
		}, map[place]int{{1, 0}: 1}, "run the version that wrote it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, last := newWorld(), at(1, 9)
				if strings.Contains(tt.says, "months") {
					last = february
				}
				w.publish(posted("a", at(1, 1)))
				w.run(t, ingest.Config{}, time.Minute)
				w.publish(posted("a", at(1, 1), at(1, 2), at(1, 3), `{"timestamp":946684800001}`), posted("a", at(1, 4), last))
				w.dieInserting(t, crashedFirst)
				c := w.state.Claim
				fatal.When(t, c == nil || c.Last != 3 || c.Dropped == "", "the claim is %+v", c)
				c.Counted, c.Hash = "another", "hash of another count"
				tt.other(w, c)
				i, stop := w.startIngester(t, ingest.Config{})
				time.Sleep(time.Minute)
				err := i.Check(t.Context())
				expect.Not(t, tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)), "Check: got %v, want %q", err, tt.says)
				expect.NoError(t, stop())
				expect.Equal(t, "stored", tt.want, w.table)
				if tt.says != "" {
					return
				}
				if got, want := w.state.Totals, (flow.Totals{Read: 7, Stored: 6, Deduplicated: 1}); got != want || w.state.Done != 3 {
					t.Errorf("done %d, totals %+v, want %+v", w.state.Done, got, want)
				}
				// A delayed insert of the other version finds its token used.
				if p := c.FirstOpen(); p >= 0 {
					w.land(c.Token(0, w.state.IncarnationOf(c.First), p), w.state.Incarnation(), place{2, 2})
				}
				expect.Equal(t, "after an insert that came late", tt.want, w.table)
			})
		})
	}
}

func (w *world) land(token string, incarnation uint64, places ...place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var c record.Columns
	for _, p := range places {
		m := w.messages[p.Seq-1].Messages[0]
		m.Incarnation = incarnation
		if err := c.AppendExcept(&m, func(index int) bool { return index != p.Index }); err != nil {
			panic(err)
		}
	}
	for _, name := range []string{"table", "view"} {
		w.arrive(name, record.Block{Columns: &c, To: c.Rows(), Token: token})
	}
}
