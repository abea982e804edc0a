package flow

import (
	"fmt"
	"strings"
	"time"
)

// Kinds of deduplication keys (docs/identity.md). The kind depends on the record alone.
const (
	// ByPosition: the record names a partition of 1 to MaxPartition and a position
	// of at least 1, and has a timestamp from 2000 to 2099. Identity.Content is empty.
	ByPosition uint8 = 1 + iota

	// ByContent: it has an id. Identity.Content is half of its content hash,
	// ContentBytes. The rest of the sorting key holds id, time, and keys, so the
	// hash only distinguishes records that agree in all of these.
	ByContent

	// ByPlace: it has neither. Identity.Content is where it arrived (Origin), so
	// it equals another record only after a replayed dead letter or a second
	// reading of the lane.
	ByPlace
)

// Origin writes the place at which a record arrived. A whole message has the index -1-n,
// for the nth request of its entry.
func Origin(lane int, incarnation, seq uint64, index int) string {
	return fmt.Sprintf("%d.%d.%d.%d", lane, incarnation, seq, index)
}

// replayPrefix begins the ids of requests that replay dead letters. Those of clients
// are hashes.
const replayPrefix = "dead."

// ReplayID is the id of the request that replays the dead letter of an origin, whose
// message had the given id. It names the place that identifies its records.
func ReplayID(origin, id string) string {
	if first := ReplayOf(id); first != "" && !IsWhole(first) {
		return replayPrefix + origin + "/" + first
	}
	return replayPrefix + origin
}

// ReplayOf returns the original place that identifies the records of a replayed dead
// letter. It is empty for other requests, and for a letter that never was in a lane.
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

// IsWhole reports whether an origin is that of a whole message. Its records are identified
// by it and their number in the replaying request.
func IsWhole(origin string) bool { return strings.Contains(origin, ".-") }

// MaxPartition is the greatest partition of an engine: its keys have 13 bits for it.
const MaxPartition = 8191

// ContentBytes is the length of a content hash in identities. A hash does not
// compress: each byte is one on disk.
const ContentBytes = 8

// SourceDay is the records of a source and partition with timestamps of one day.
// Partition 0 covers all that are not identified by position.
type SourceDay struct {
	Source    string
	Partition int64
	Day       int64 // since 1970, UTC
}

// Marks is the progress of sources per day in the warehouse.
type Marks struct {
	// Last is the highest position of a day, for partition 0 its latest
	// timestamp in ms. Days without stored records are absent.
	Last map[SourceDay]int64

	// Rows counts the rows of the lane's current incarnation that fed Last. Fewer
	// than were stored means that marks are missing.
	Rows uint64
}

// Identity is the deduplication key of a stored row.
type Identity struct {
	Source                        string
	Content                       string // flow.records.identity: empty if identified by position, else its content hash or place
	OwnID                         string
	PartitionID, Position         int64
	TS                            int64 // ms since 1970
	Key                           int64
	RecordType, ValueType, Intent string
}

const dayMilliseconds = int64(24 * time.Hour / time.Millisecond)

func Day(ms int64) int64 {
	day := ms / dayMilliseconds
	if ms < day*dayMilliseconds {
		day--
	}
	return day
}

// Month is the month of a time in ms since 1970, UTC, such as 202511: a partition of
// flow.records.
func Month(ms int64) int {
	year, month, _ := time.UnixMilli(ms).UTC().Date()
	return 100*year + int(month)
}
