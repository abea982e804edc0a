package record

import "time"

// SourceDay is the records of a source and partition whose timestamps are of one
// day. Partition 0 stands for all that are not known by their position.
type SourceDay struct {
	Source    string
	Partition int64
	Day       int64 // since 1970, UTC
}

// Marks is how far the days of sources reach in the warehouse.
type Marks struct {
	// Last is the highest position of a day, for partition 0 its latest
	// timestamp in ms. A day of which nothing is stored is not there.
	Last map[SourceDay]int64

	// Rows is how many rows of the lane, in its present life, went into what
	// Last was read from. Fewer than were stored: something is missing there.
	Rows uint64
}

// Known is a stored row, as far as it tells which record it is.
type Known struct {
	Source                        string
	Identity                      string // empty when it is known by its position, else its content
	OwnID                         string
	PartitionID, Position         int64
	TS                            int64 // ms since 1970
	Key                           int64
	RecordType, ValueType, Intent string
}

const dayMilliseconds = int64(24 * time.Hour / time.Millisecond)

// Day is the day of a time in ms since 1970, UTC.
func Day(ms int64) int64 {
	day := ms / dayMilliseconds
	if ms < day*dayMilliseconds {
		day--
	}
	return day
}

// Month is the month of a time in ms since 1970, UTC, such as 202511: a
// partition of flow.records.
func Month(ms int64) int {
	year, month, _ := time.UnixMilli(ms).UTC().Date()
	return 100*year + int(month)
}

// Months returns the months of the rows from to to-1, in order, and how many
// rows each has.
func (c *Columns) Months(from, to int) map[int]uint64 {
	months := map[int]uint64{}
	day, month, n := int64(-1), 0, uint64(0)
	for _, ms := range c.TS[from:to] {
		if d := Day(ms); d != day {
			if n > 0 {
				months[month] += n
			}
			day, month, n = d, Month(ms), 0
		}
		n++
	}
	if n > 0 {
		months[month] += n
	}
	return months
}

// Arrange puts the rows into another order: row i is then what row order[i] was.
func (c *Columns) Arrange(order []int) {
	for _, t := range c.texts() {
		t.arrange(order)
	}
	for _, s := range c.symbols() {
		switch s.Width {
		case 2:
			arrange(s.Keys16, order)
		case 4:
			arrange(s.Keys32, order)
		default:
			arrange(s.Keys8, order)
		}
	}
	for _, n := range c.numbers() {
		arrange(n.Values, order)
		arrange(n.Nulls, order)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position, &c.ReceivedAt} {
		arrange(*n, order)
	}
	arrange(c.Kind, order)
	arrange(c.Lane, order)
	arrange(c.Incarnation, order)
	arrange(c.StreamSeq, order)
	arrange(c.StreamIdx, order)
}

func arrange[T any](rows []T, order []int) {
	before := append([]T(nil), rows...)
	for i, from := range order {
		rows[i] = before[from]
	}
}
