package dedup

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Tables looks up stored records.
type Tables interface {
	// Marks returns the progress of these days. It includes everything stored before the call, by any ingester.
	Marks(ctx context.Context, days []flow.SourceDay) (flow.Marks, error)

	// Known calls found for every stored row that may be the same record as one of these rows, and perhaps for more.
	Known(ctx context.Context, c *record.Columns, rows []int, found func(*flow.Identity)) error
}

// RecordIndex is an index of a lane's stored records that recognises nearly every new one without a lookup. Not for concurrent
// use.
type RecordIndex struct {
	stored *storedSet
	days   []*dayIndex // of the rows of a block; reused
	late   []int       // rows whose day is not in the index; reused
	ask    []int       // rows of a block to look up; reused
}

// NewRecordIndex returns an empty index of at most this many bytes.
func NewRecordIndex(bytes int) *RecordIndex { return &RecordIndex{stored: newStoredSet(bytes)} }

// ForgetAll empties the index and keeps its memory: stored records were changed, or stored by another process.
func (r *RecordIndex) ForgetAll() {
	r.stored.forgetAll()
	clear(r.days)
}

// Forget drops a source from the index: another lane may store its records.
func (r *RecordIndex) Forget(source string) { r.stored.forget(source) }

// maxDays bounds the days of sources added for one block. Records of more days are looked up one by one: only a client with
// invented partitions sends such a block.
const maxDays = 2000

// Decide returns the deduplicated rows of the next block: stored already, or equal to an earlier row of the block. The
// index takes at most this many bytes.
//
// All earlier blocks are stored, so the tables are current, and no other process changes the lane: if another has taken
// it, the claim that follows fails, and the decision is discarded.
//
// Records of messages up to unread are always looked up: they may have been stored before the lane was reset. So are
// replayed dead letters that are identified by place.
func (r *RecordIndex) Decide(ctx context.Context, c *record.Columns, unread uint64, bytes int, tables Tables) ([]flow.Run, error) {
	r.stored.begin(bytes)
	if err := r.meet(ctx, c, tables); err != nil {
		return nil, err
	}
	ask := r.doubtful(c, unread)
	if len(ask) == 0 {
		return nil, nil
	}
	same := NewSame(c)
	if err := tables.Known(ctx, c, ask, same.Stored); err != nil {
		return nil, fmt.Errorf("look up %d records: %w", len(ask), err)
	}
	return same.repeated(ask), nil
}

// recent is the number of days cached per block in front of the map of all. Records of a few partitions are interleaved.
const recent = 16

// recentDay is a recently used day of a source and partition.
type recentDay struct {
	source    int // its dictionary key in the block
	partition int64
	from, to  int64     // of the timestamps of the day
	mark      *dayIndex // nil: not in the index
}

// meet finds the day of every row, and adds missing ones to the index.
func (r *RecordIndex) meet(ctx context.Context, c *record.Columns, tables Tables) error {
	marks := slices.Grow(r.days[:0], c.Rows())[:c.Rows()]
	r.days = marks
	unknown, late := r.findDays(c, marks)
	r.late = late
	if len(unknown) == 0 {
		return nil
	}
	answer, err := tables.Marks(ctx, unknown)
	if err != nil {
		return err
	}
	for _, day := range unknown {
		last, stored := answer.Last[day]
		if !stored {
			last = noFloor
		}
		r.stored.learn(day, last)
	}
	for _, row := range late {
		marks[row] = r.stored.find(dayOf(c, row))
	}
	return nil
}

// findDays finds the indexed day of each row. It returns the missing days and their rows. Records identified by place are skipped.
func (r *RecordIndex) findDays(c *record.Columns, marks []*dayIndex) (unknown []flow.SourceDay, late []int) {
	late = r.late[:0]
	var cache [recent]recentDay
	for i := range cache {
		cache[i].source = -1
	}
	var asked map[flow.SourceDay]bool
	for row := range marks {
		marks[row] = nil
		kind := c.Kind[row]
		if kind == flow.ByPlace {
			continue
		}
		partition := int64(0)
		if kind == flow.ByPosition {
			partition = c.PartitionID[row]
		}
		source, ts := c.Source.Key(row), c.TS[row]
		at := &cache[partition%recent]
		if at.source != source || at.partition != partition || ts < at.from || ts >= at.to {
			day := dayOf(c, row)
			*at = recentDay{source, partition, day.Day * dayMilliseconds, (day.Day + 1) * dayMilliseconds, r.stored.find(day)}
			if at.mark == nil && !asked[day] && len(unknown) < maxDays {
				if asked == nil {
					asked = map[flow.SourceDay]bool{}
				}
				asked[day] = true
				unknown = append(unknown, day)
			}
		}
		if marks[row] = at.mark; at.mark == nil {
			late = append(late, row)
		}
	}
	return unknown, late
}

const dayMilliseconds = 24 * 60 * 60 * 1000

func dayOf(c *record.Columns, row int) flow.SourceDay {
	day := flow.SourceDay{Source: string(c.Source.Value(row)), Day: flow.Day(c.TS[row])}
	if c.Kind[row] == flow.ByPosition {
		day.Partition = c.PartitionID[row]
	}
	return day
}

// doubtful adds the rows to the index, and returns those that may be stored already. Those of messages up to unread
// always may: an insert may have reached flow.records, but not flow.sources, before its claim was lost.
func (r *RecordIndex) doubtful(c *record.Columns, unread uint64) []int {
	ask := r.ask[:0]
	for row, mark := range r.days {
		again := c.StreamSeq[row] <= unread
		switch kind := c.Kind[row]; {
		case kind == flow.ByPlace:
			if again || c.IsReplayed(row) {
				ask = append(ask, row)
			}
		case mark == nil: // too many days
			ask = append(ask, row)
		case kind == flow.ByPosition:
			if r.stored.position(mark, c.Position[row]) || again {
				ask = append(ask, row)
			}
		default:
			if r.stored.content(mark, c.TS[row], binary.LittleEndian.Uint64(c.Identity.Value(row))) || again {
				ask = append(ask, row)
			}
		}
	}
	r.ask = ask
	return ask
}

// Merge merges two lists of runs, which are sorted and disjoint.
func Merge(a, b []flow.Run) []flow.Run {
	if len(a) == 0 || len(b) == 0 {
		return append(a, b...)
	}
	all := make([]flow.Run, 0, len(a)+len(b))
	for len(a) > 0 || len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].From < a[0].From {
			from = &b
		}
		next := (*from)[0]
		*from = (*from)[1:]
		if n := len(all) - 1; n >= 0 && all[n].To == next.From {
			all[n].To = next.To
		} else {
			all = append(all, next)
		}
	}
	return all
}
