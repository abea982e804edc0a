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
	if late(list) {
		return ack{}, errStale
	}
	if len(list) == 1 {
		a, err := w.request(ctx, lane, list[0].natsMessage(lane))
		w.count("plain", 1, err)
		return a, err
	}
	a, err := w.batch(ctx, lane, list)
	w.count("batch", len(list), err)
	return a, err
}

// count counts a commit that was tried.
func (w *wire) count(form string, messages int, err error) {
	w.m.commits.WithLabelValues(form).Inc()
	if err == nil {
		w.m.commitSize.Observe(float64(messages))
	}
}

// batch publishes an atomic batch. Only its last message asks for an answer:
// a message lost before it makes the lane refuse the whole.
func (w *wire) batch(ctx context.Context, lane *Lane, list []message) (ack, error) {
	return w.finish(ctx, lane, nuid.Next(), list, 0)
}

// begin publishes the first message of an atomic batch and waits until the
// lane has staged it, which takes most of the time of a small batch. A batch
// that is not finished is forgotten after 10 s.
func (w *wire) begin(ctx context.Context, lane *Lane, id string, m message) error {
	if late([]message{m}) {
		return errStale
	}
	resp, err := w.ask(ctx, m.inBatch(lane, id, 1, ""))
	if err != nil {
		return err
	}
	if len(resp.Data) == 0 {
		return nil
	}
	if _, err = answer(lane, resp.Data); err == nil {
		err = fmt.Errorf("lane %d committed a batch that has only begun", lane.Number)
	}
	return err
}

// finish publishes what is left of an atomic batch of which the first messages,
// as many as have begun, are staged, and commits it.
func (w *wire) finish(ctx context.Context, lane *Lane, id string, list []message, begun int) (ack, error) {
	if late(list) {
		return ack{}, errStale
	}
	rest := list[begun:]
	if len(rest) == 0 {
		end := message{}.inBatch(lane, id, begun+1, "eob") // not a message: the end of the batch
		return w.request(ctx, lane, end)
	}
	last := len(rest) - 1
	for i, m := range rest[:last] {
		if err := w.nc.PublishMsg(m.inBatch(lane, id, begun+i+1, "")); err != nil {
			return ack{}, err
		}
	}
	return w.request(ctx, lane, rest[last].inBatch(lane, id, begun+last+1, "1"))
}

// inBatch is the message as the n-th of an atomic batch.
func (m message) inBatch(lane *Lane, id string, n int, commit string) *nats.Msg {
	msg := m.natsMessage(lane)
	msg.Header[headerBatchID] = []string{id}
	msg.Header[headerBatchSeq] = []string{strconv.Itoa(n)}
	if commit != "" {
		msg.Header[headerBatchCommit] = []string{commit}
	}
	return msg
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
	resp, err := w.ask(ctx, msg)
	if err != nil {
		return ack{}, err
	}
	return answer(lane, resp.Data)
}

// ask publishes a message and waits for what is said to it.
func (w *wire) ask(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	resp, err := w.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return nil, lost(ctx, err)
	}
	w.link.answered()
	return resp, nil
}

// lost is err, or that the connection was lost when that ended ctx.
func lost(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// answer reads a lane's answer to a publish.
func answer(lane *Lane, data []byte) (ack, error) {
	var a ack
	if err := json.Unmarshal(data, &a); err != nil {
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
