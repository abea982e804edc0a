package stream

import (
	"fmt"
	"strconv"
	"strings"
)

// Names in NATS, version 1. They are part of what users see and of the rights
// they give; changing one needs a migration.
const (
	// LanePrefix and a number name a lane's stream: FLOW_0, FLOW_1, …
	LanePrefix = "FLOW_"

	// DeadStream holds what can not be stored, until somebody decides.
	DeadStream = "FLOW_DEAD"

	// NoteStream holds the notes about dead letters: they must have room when the
	// letters have none.
	NoteStream = "FLOW_NOTES"

	// ChangePrefix and the key of a target are the subject of its changes, all
	// on lane 0.
	ChangePrefix = "flow.0.change."

	// DeadPrefix and <lane>.<incarnation>.<sequence>.<index> are the
	// subject of a dead letter, so that none is ever stored twice.
	DeadPrefix = "flow.dead."

	// ReplayPrefix and the same are the subject of a note that a dead letter is
	// being replayed.
	ReplayPrefix = "flow.replay."

	// SettledPrefix and the same are the subject of a note of what became of a
	// dead letter that is gone, kept as long as the lane keeps its message.
	SettledPrefix = "flow.settled."

	// PositionBucket holds one entry per lane, lane.<n>: what of it is stored; and
	// changes.0: which changes of lane 0 are applied.
	PositionBucket = "flow_lanes"

	// SourceBucket holds one entry per source, s<base64url of its name>: which
	// lanes its records go to.
	SourceBucket = "flow_sources"

	// LeaseBucket holds who reads which lane, lane.<n>, and who could,
	// member.<instance>. Its entries live as long as they are renewed.
	LeaseBucket = "flow_leases"

	// StateBucket holds users and dataset fields.
	StateBucket = "flow_state"
)

// Headers of a message in a lane. An entry of requests has the first two, and
// says the rest in its table; a change, a fence and a dead letter have the rest.
const (
	headerID       = "Nats-Msg-Id"
	headerEntry    = "Sluice-Entry"    // the table of an entry, base64
	headerEncoding = "Sluice-Encoding" // how the body is compressed: s2, or absent
	headerRecords  = "Sluice-Records"  // how many records the body holds
	headerReceived = "Sluice-Received" // when the api took it in, unix milliseconds
	headerSubject  = "Sluice-Subject"  // subject of the token that posted it
	headerSource   = "Sluice-Source"   // the engine its records are of, as that token said
	headerTrace    = "traceparent"     // W3C trace context

	headerExpectedSubjectSeq = "Nats-Expected-Last-Subject-Sequence"

	headerKVOperation = "KV-Operation" // of an entry of a bucket that was deleted
)

// LaneName is the stream of a lane.
func LaneName(lane int) string { return LanePrefix + strconv.Itoa(lane) }

// RecordTopic is the NATS subject of a lane's records.
func RecordTopic(lane int) string { return fmt.Sprintf("flow.%d.record", lane) }

// laneNumber reads the lane out of a stream's name.
func laneNumber(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, LanePrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && text == strconv.FormatUint(n, 10)
}

// FenceTopic is the NATS subject of fences in a lane: from there on the lane has
// no more records of the source they name.
func FenceTopic(lane int) string { return fmt.Sprintf("flow.%d.fence", lane) }

func laneSubjects(lane int) []string {
	subjects := []string{RecordTopic(lane), FenceTopic(lane)}
	if lane == 0 {
		subjects = append(subjects, ChangePrefix+">")
	}
	return subjects
}
