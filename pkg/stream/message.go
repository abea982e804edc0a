package stream

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/record"
)

// message is one message on its way into a lane.
type message struct {
	id    string
	head  nats.Header
	body  []byte
	until time.Time // it must not be sent later: its source may have other lanes by then
}

// late says whether one of the messages must not be sent any more.
func late(list []message) bool {
	now := time.Now()
	return slices.ContainsFunc(list, func(m message) bool { return passed(now, m.until) })
}

// pieceID is the id of what of a submission goes to one of several slots.
func pieceID(id string, slot, slots int) string {
	if slots == 1 {
		return id
	}
	return id + "-" + strconv.Itoa(slot)
}

// partID is the id of the i-th message of a piece.
func partID(id string, i int) string {
	if i == 0 {
		return id
	}
	return id + "." + strconv.Itoa(i)
}

// messages are the messages of some parts of a submission, in order.
func messages(sub *record.Submission, id string, parts []record.Part) []message {
	list := make([]message, len(parts))
	for i, part := range parts {
		id := partID(id, i)
		head := nats.Header{
			headerID:       {id},
			headerRecords:  {strconv.Itoa(part.Records)},
			headerReceived: {strconv.FormatInt(sub.Received.UnixMilli(), 10)},
			headerHash:     {sub.Hash},
		}
		if part.Encoding != "" {
			head[headerEncoding] = []string{part.Encoding}
		}
		if sub.Subject != "" {
			head[headerSubject] = []string{sub.Subject}
		}
		if sub.Source != "" {
			head[headerSource] = []string{sub.Source}
		}
		if sub.TraceParent != "" {
			head[headerTrace] = []string{sub.TraceParent}
		}
		list[i] = message{id: id, head: head, body: part.Body}
	}
	return list
}

// headRoom is more than the headers of a message take, without those of a
// submission that have no fixed size, and what a dead letter adds to them.
const headRoom = 2 << 10

// tooLarge says whether a message is larger than a lane takes.
func (m message) tooLarge() bool {
	size := headRoom + len(m.body)
	for _, values := range m.head {
		size += len(values[0])
	}
	return size > maxMessage
}

// validID says whether an id can stand in a header and be found again.
func validID(id string) bool {
	return id != "" && len(id) <= 256 && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}

// decode turns a message stored at a time into the domain's.
func decode(lane int, seq uint64, at time.Time, topic string, head nats.Header, body []byte) record.Message {
	m := record.Message{
		Lane: lane, Seq: seq, Topic: topic, Body: body,
		Received:    at.UTC().Truncate(time.Millisecond), // of one that we did not write; never 1970, which no retention keeps
		ID:          first(head, headerID),
		Encoding:    first(head, headerEncoding),
		Subject:     first(head, headerSubject),
		Source:      first(head, headerSource),
		TraceParent: first(head, headerTrace),
	}
	// A number that does not parse was not written by us; the ingester counts
	// the records itself.
	m.Records, _ = strconv.Atoi(first(head, headerRecords))
	if ms, err := strconv.ParseInt(first(head, headerReceived), 10, 64); err == nil {
		m.Received = time.UnixMilli(ms).UTC()
	}
	return m
}

// first is the first value of a header, its name as written.
func first(head nats.Header, name string) string {
	if v := head[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (m message) String() string { return fmt.Sprintf("message %s of %d bytes", m.id, len(m.body)) }
