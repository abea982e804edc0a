package dedup_test

import (
	"context"
	"fmt"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest/dedup"
	"sluice/pkg/record"
)

// empty are tables whose index has no day, though records may have rows.
type empty struct{ asked []uint64 }

func (*empty) Marks(context.Context, []flow.SourceDay) (flow.Marks, error) { return flow.Marks{}, nil }

func (e *empty) Known(_ context.Context, c *record.Columns, rows []int, _ func(*flow.Identity)) error {
	for _, row := range rows {
		e.asked = append(e.asked, c.StreamSeq[row])
	}
	return nil
}

// TestWhatMayBeStoredIsLookedUp: after a reset, whatever the index has and however a record is identified. An insert
// may have reached flow.records alone before its claim was lost.
func TestWhatMayBeStoredIsLookedUp(t *testing.T) {
	var c record.Columns
	for seq := uint64(1); seq <= 3; seq++ {
		m := flow.Message{Seq: seq, Source: "a", Body: fmt.Appendf(nil, `[{"partitionId":1,"position":%d,"timestamp":1763701200000},{"id":"x%[1]d","timestamp":1763701200000},{"timestamp":1763701200000}]`, seq)}
		bad, err := c.AppendGood(&m)
		fatal.When(t, err != nil || len(bad) > 0, "append: %v %v", bad, err)
	}
	e := &empty{}
	_, err := dedup.NewRecordIndex(1<<20).Decide(t.Context(), &c, 2, 1<<20, e)
	fatal.If(t, err)
	expect.Equal(t, "messages looked up", []uint64{1, 1, 1, 2, 2, 2}, e.asked)
}
