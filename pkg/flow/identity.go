package flow

import (
	"fmt"
	"strings"
	"time"
)

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

	// ByPlace: it has neither. Its identity is where it came in, as Origin writes
	// it, so that it is the same as another one only when that is a dead letter
	// which was replayed, or when the lane is read again.
	ByPlace
)

// Origin writes the place at which a record came in. A whole message has the index
// -1-n, for the nth request of its entry.
func Origin(lane int, incarnation, seq uint64, index int) string {
	return fmt.Sprintf("%d.%d.%d.%d", lane, incarnation, seq, index)
}

// replayPrefix begins the ids of requests that replay dead letters. Those of clients
// are hashes.
const replayPrefix = "dead."

// ReplayID is the id of the request that replays the dead letter of an origin, whose
// message had an id of its own. It names the place that the records are known by.
func ReplayID(origin, id string) string {
	if first := ReplayOf(id); first != "" && !IsWhole(first) {
		return replayPrefix + origin + "/" + first
	}
	return replayPrefix + origin
}

// ReplayOf returns the place that the records of a replayed dead letter are known by:
// that at which they came in first. It is empty for other requests, and for a letter
// that never was in a lane.
func ReplayOf(id string) string {
	rest, replayed := strings.CutPrefix(id, replayPrefix)
	if !replayed || strings.HasPrefix(rest, "-") {
		return ""
	}
	if _, first, again := strings.Cut(rest, "/"); again {
		return first
	}
	return rest
}

// IsWhole tells whether an origin is that of a whole message. Its records are known by
// it and their number in the request that replays it.
func IsWhole(origin string) bool { return strings.Contains(origin, ".-") }

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
	Content                       string // flow.records.identity: empty when it is known by its position, else the hash of its content, or its place
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
