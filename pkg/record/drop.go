package record

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// Run is a run of rows of a block, To excluded.
type Run struct{ From, To int }

// FormatRuns writes runs, which are in order and do not touch, as a claim keeps
// them: empty for none.
func FormatRuns(runs []Run) string {
	var b []byte
	last := 0
	for _, r := range runs {
		b = binary.AppendUvarint(b, uint64(r.From-last))
		b = binary.AppendUvarint(b, uint64(r.To-r.From))
		last = r.To
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// ParseRuns reads what FormatRuns has written.
func ParseRuns(text string) ([]Run, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("read the rows that are dropped: %w", err)
	}
	var runs []Run
	next := func(most int) int {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > uint64(most) {
			err = errors.New("read the rows that are dropped: they are damaged")
			b = nil
			return 0
		}
		b = b[n:]
		return int(v)
	}
	for last := 0; len(b) > 0; {
		from := last + next(maxRows-last)
		last = from + next(maxRows-from)
		if err == nil && last == from {
			err = errors.New("read the rows that are dropped: a run is empty")
		}
		if err != nil {
			return nil, err
		}
		runs = append(runs, Run{from, last})
	}
	return runs, nil
}

// maxRows is more than any block has.
const maxRows = 1 << 30

// Drop removes runs of rows, which are in order and do not touch. The
// dictionaries keep values that no row has any more.
func (c *Columns) Drop(runs []Run) {
	if len(runs) == 0 {
		return
	}
	for _, t := range c.texts() {
		t.drop(runs)
	}
	for _, s := range c.symbols() {
		switch s.Width {
		case 2:
			s.Keys16 = drop(s.Keys16, runs)
		case 4:
			s.Keys32 = drop(s.Keys32, runs)
		default:
			s.Keys8 = drop(s.Keys8, runs)
		}
	}
	for _, n := range c.numbers() {
		n.Values, n.Nulls = drop(n.Values, runs), drop(n.Nulls, runs)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position, &c.ReceivedAt} {
		*n = drop(*n, runs)
	}
	c.Kind = drop(c.Kind, runs)
	c.Lane, c.Incarnation = drop(c.Lane, runs), drop(c.Incarnation, runs)
	c.StreamIdx, c.StreamSeq = drop(c.StreamIdx, runs), drop(c.StreamSeq, runs)
	c.room = c.Rows()
}

// drop closes the gaps in place.
func drop[T any](rows []T, runs []Run) []T {
	end := runs[0].From
	for i, r := range runs {
		next := len(rows)
		if i+1 < len(runs) {
			next = runs[i+1].From
		}
		end += copy(rows[end:], rows[r.To:next])
	}
	return rows[:end]
}
