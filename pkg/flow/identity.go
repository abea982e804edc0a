package flow

import "time"

// What makes a row the same record as another one of the same source
// (docs/identity.md). The kind is decided by the record alone.
const (
	// ByPosition: the record names a partition of 1 to MaxPartition and a position
	// of at least 1 itself, and has a timestamp from 2000 to 2099. Its identity is
	// empty.
	ByPosition uint8 = 1 + iota

	// ByContent: it has an id. Its identity is half of the hash of all it says,
	// ContentBytes of it: the rest of its sorting key holds its id, its time and
	// what it is about, so that only records that agree in all of these are told
	// apart by the hash alone.
	ByContent

	// ByPlace: it has neither. Its identity is where it came in, so that it is
	// never the same as another one: lane.incarnation.sequence.index.
	ByPlace
)

// MaxPartition is the greatest partition that an engine can have: its keys have 13
// bits for it.
const MaxPartition = 8191

// ContentBytes is how long the identity of a record is that is known by its
// content. A hash does not compress: each byte of it is one on the disk.
const ContentBytes = 8

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
	// timestamp in ms. A day without stored records is not there.
	Last map[SourceDay]int64

	// Rows is how many rows of the lane, in its present life, went into what
	// Last was read from. Fewer than were stored: something is missing there.
	Rows uint64
}

// Identity is what a stored row says of which record it is.
type Identity struct {
	Source                        string
	Content                       string // empty when it is known by its position, else its content
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
