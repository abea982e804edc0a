package stream

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/record"
)

// message is one message on its way into a lane. Headers are written as bytes
// once, not kept as a map.
type message struct {
	id   string
	head nats.Header
	body []byte
}

// partID is the id of a submission's i-th message.
func partID(id string, i int) string {
	if i == 0 {
		return id
	}
	return id + "." + strconv.Itoa(i)
}

// messages are the messages of a submission, in order.
func messages(sub *record.Submission) []message {
	list := make([]message, len(sub.Parts))
	for i, part := range sub.Parts {
		id := partID(sub.ID, i)
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

// decode turns a stored message into the domain's.
func decode(lane int, seq uint64, topic string, head nats.Header, body []byte) record.Message {
	m := record.Message{
		Lane: lane, Seq: seq, Topic: topic, Body: body,
		ID:          first(head, headerID),
		Encoding:    first(head, headerEncoding),
		Subject:     first(head, headerSubject),
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

func decodeRaw(lane int, raw *jetstream.RawStreamMsg) record.Message {
	return decode(lane, raw.Sequence, raw.Subject, raw.Header, raw.Data)
}

// first is the first value of a header, its name as written.
func first(head nats.Header, name string) string {
	if v := head[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (m message) String() string { return fmt.Sprintf("message %s of %d bytes", m.id, len(m.body)) }
