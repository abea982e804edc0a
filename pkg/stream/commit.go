package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// attemptLimit is how long one question to NATS may take before it is asked
// again: more than a slow disk needs, less than a submitter waits.
const attemptLimit = 3 * time.Second

// maxBatch is how many messages an atomic batch may have by the server's
// default limits.
const maxBatch = 1000

// wire is how commits go to the lanes.
type wire struct {
	nc   *nats.Conn
	link *link
	m    *metrics
}

// ack is what a lane answers.
type ack struct {
	Error     *jetstream.APIError `json:"error"`
	Stream    string              `json:"stream"`
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
}

// commit makes messages durable in a lane, all of them or none, in one attempt.
// Once it returns without an error they are on disk.
func (w *wire) commit(ctx context.Context, lane *Lane, list []message) (ack, error) {
	ctx, done := w.link.attempt(ctx, attemptLimit)
	defer done()
	var a ack
	var err error
	if len(list) == 1 {
		w.m.commits.WithLabelValues("plain").Inc()
		a, err = w.request(ctx, lane, list[0].natsMessage(lane))
	} else {
		w.m.commits.WithLabelValues("batch").Inc()
		a, err = w.batch(ctx, lane, list)
	}
	if err == nil {
		w.m.commitSize.Observe(float64(len(list)))
	}
	return a, err
}

// batch publishes an atomic batch. Only its last message asks for an answer:
// a message lost before it makes the lane refuse the whole.
func (w *wire) batch(ctx context.Context, lane *Lane, list []message) (ack, error) {
	id := []string{nuid.Next()}
	last := len(list) - 1
	for i, m := range list {
		msg := m.natsMessage(lane)
		msg.Header[headerBatchID] = id
		msg.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
		if i == last {
			msg.Header[headerBatchCommit] = []string{"1"}
			return w.request(ctx, lane, msg)
		}
		if err := w.nc.PublishMsg(msg); err != nil {
			return ack{}, err // the lane forgets the beginning after 10 s
		}
	}
	return ack{}, errors.New("an empty batch")
}

// natsMessage is the message as NATS sends it. The headers are its own: those
// of a batch differ with every attempt.
func (m message) natsMessage(lane *Lane) *nats.Msg {
	head := make(nats.Header, len(m.head)+3)
	for name, values := range m.head {
		head[name] = values
	}
	return &nats.Msg{Subject: RecordTopic(lane.Number), Header: head, Data: m.body}
}

// request publishes a message and waits for the lane's answer.
func (w *wire) request(ctx context.Context, lane *Lane, msg *nats.Msg) (ack, error) {
	resp, err := w.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause
		}
		return ack{}, err
	}
	var a ack
	if err := json.Unmarshal(resp.Data, &a); err != nil {
		return ack{}, fmt.Errorf("read the answer of lane %d: %w", lane.Number, err)
	}
	if a.Error != nil {
		return a, a.Error
	}
	if a.Stream != lane.Stream {
		return a, fmt.Errorf("stream %q answered for lane %d", a.Stream, lane.Number)
	}
	return a, nil
}

// find asks a lane whether it knows an id, and under which sequence, without
// storing anything: it sends a message that a lane refuses for a header of no
// sense, but only after it has looked for duplicates. Among the headers that
// could serve this is the one that holds for one replica as for several, where
// a message refused later would leave its id behind.
func (w *wire) find(ctx context.Context, lane *Lane, topic, id string) (uint64, bool, error) {
	ctx, done := w.link.attempt(ctx, attemptLimit)
	defer done()
	a, err := w.request(ctx, lane, &nats.Msg{Subject: topic, Header: nats.Header{
		headerID:     {id},
		headerRollup: {"never"},
	}})
	if isCode(err, codeRollupFailed) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if !a.Duplicate {
		return 0, false, fmt.Errorf("lane %d stored a question at sequence %d", lane.Number, a.Sequence)
	}
	return a.Sequence, true, nil
}
