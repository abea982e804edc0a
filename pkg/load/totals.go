package load

import (
	"fmt"
	"strings"

	"sluice/pkg/load/simulator"
)

// Totals are the sums of records. Every id is unique in its source, so Records is also
// the number of distinct ids of all sources.
type Totals struct {
	Records     int64  `json:"records"`
	Bytes       int64  `json:"bytes"`        // of JSON, without brackets and commas between records
	KeySum      uint64 `json:"key_sum"`      // wraps, like sum(toUInt64(key)) of ClickHouse
	PositionSum uint64 `json:"position_sum"` // wraps
	MinPosition int64  `json:"min_position"` // 0 if there are no records
	MaxPosition int64  `json:"max_position"`
}

func (t *Totals) count(r simulator.Record) {
	if t.Records == 0 {
		t.MinPosition, t.MaxPosition = r.Position, r.Position
	}
	t.Records++
	t.Bytes += int64(len(r.JSON))
	t.KeySum += uint64(r.Key)
	t.PositionSum += uint64(r.Position)
	t.MinPosition = min(t.MinPosition, r.Position)
	t.MaxPosition = max(t.MaxPosition, r.Position)
}

func (t *Totals) add(o Totals) {
	if o.Records == 0 {
		return
	}
	if t.Records == 0 {
		*t = o
		return
	}
	t.Records += o.Records
	t.Bytes += o.Bytes
	t.KeySum += o.KeySum
	t.PositionSum += o.PositionSum
	t.MinPosition = min(t.MinPosition, o.MinPosition)
	t.MaxPosition = max(t.MaxPosition, o.MaxPosition)
}

// Query returns SQL with the result Records, Records, KeySum, and PositionSum if exactly
// these records are stored.
func (t Totals) Query() string {
	return fmt.Sprintf("SELECT count(), uniqExact(source, id), sum(toUInt64(key)), sum(toUInt64(position)) FROM flow.records WHERE position BETWEEN %d AND %d", t.MinPosition, t.MaxPosition)
}

// Row returns the expected result of Query, in TabSeparated.
func (t Totals) Row() string {
	return strings.Join(strings.Fields(fmt.Sprint(t.Records, t.Records, t.KeySum, t.PositionSum)), "\t")
}
