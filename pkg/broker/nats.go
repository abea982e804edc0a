package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// readAhead bounds the prefetched messages of a Reading.
	readAhead = 2000

	// Heartbeat is the server's idle heartbeat. After two missed ones a Reading ends.
	Heartbeat = 2 * time.Second

	// readerIdle is how long the server keeps the consumer of an ended Reading. No
	// program deletes consumers: NATS has no wildcard for part of a name, so permission
	// to delete its own would include those of others.
	readerIdle = 30 * time.Second

	// answerLimit ends a Publish whose ctx has no deadline.
	answerLimit = 5 * time.Second
)

// NATS is JetStream over a connection.
type NATS struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	handles sync.Map // stream handles of nats.go by name
}

// OverNATS returns JetStream over nc.
func OverNATS(nc *nats.Conn) (*NATS, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	return &NATS{nc: nc, js: js}, nil
}

// Publish bypasses the publish calls of nats.go, which retry by themselves.
func (n *NATS) Publish(ctx context.Context, msg *nats.Msg) (_ Ack, err error) {
	defer plainly(&err)
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerLimit)
		defer cancel()
	}
	resp, err := n.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return Ack{}, err
	}
	var answer struct {
		Error     *jetstream.APIError `json:"error"`
		Stream    string              `json:"stream"`
		Sequence  uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
	}
	if err := json.Unmarshal(resp.Data, &answer); err != nil {
		return Ack{}, fmt.Errorf("read the answer to %s: %w", msg.Subject, err)
	}
	if answer.Error != nil {
		return Ack{}, answer.Error
	}
	return Ack{answer.Stream, answer.Sequence, answer.Duplicate}, nil
}

func (n *NATS) Info(ctx context.Context, stream, subjects string) (_ *jetstream.StreamInfo, err error) {
	defer plainly(&err)
	handle, err := n.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	n.handles.Store(stream, handle)
	if subjects == "" {
		return handle.CachedInfo(), nil
	}
	return handle.Info(ctx, jetstream.WithSubjectFilter(subjects))
}

// handle returns the cached handle of a stream.
func (n *NATS) handle(ctx context.Context, stream string) (jetstream.Stream, error) {
	if handle, known := n.handles.Load(stream); known {
		return handle.(jetstream.Stream), nil
	}
	handle, err := n.js.Stream(ctx, stream)
	if err == nil {
		n.handles.Store(stream, handle)
	}
	return handle, err
}

func (n *NATS) Get(ctx context.Context, stream string, seq uint64, subject string) (_ *jetstream.RawStreamMsg, err error) {
	defer plainly(&err)
	handle, err := n.handle(ctx, stream)
	if err != nil {
		return nil, err
	}
	if subject != "" {
		return handle.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
	}
	return handle.GetMsg(ctx, seq)
}

func (n *NATS) Last(ctx context.Context, stream, subject string) (_ *jetstream.RawStreamMsg, err error) {
	defer plainly(&err)
	handle, err := n.handle(ctx, stream)
	if err != nil {
		return nil, err
	}
	return handle.GetLastMsgForSubject(ctx, subject)
}

func (n *NATS) Purge(ctx context.Context, stream, subject string, before uint64) (err error) {
	defer plainly(&err)
	handle, err := n.handle(ctx, stream)
	if err != nil {
		return err
	}
	var options []jetstream.StreamPurgeOpt
	if subject != "" {
		options = append(options, jetstream.WithPurgeSubject(subject))
	}
	if before > 0 {
		options = append(options, jetstream.WithPurgeSequence(before))
	}
	return handle.Purge(ctx, options...)
}

func (n *NATS) Delete(ctx context.Context, stream string, seq uint64, erase bool) (err error) {
	defer plainly(&err)
	handle, err := n.handle(ctx, stream)
	switch {
	case err != nil:
		return err
	case erase:
		return handle.SecureDeleteMsg(ctx, seq)
	}
	return handle.DeleteMsg(ctx, seq)
}

func (n *NATS) Names(ctx context.Context, subject string) (names []string, err error) {
	defer plainly(&err)
	list := n.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
	for name := range list.Name() {
		names = append(names, name)
	}
	return names, list.Err()
}

func (n *NATS) Create(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	return n.keep(n.js.CreateStream(ctx, cfg))
}

func (n *NATS) Update(ctx context.Context, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	return n.keep(n.js.UpdateStream(ctx, cfg))
}

func (n *NATS) keep(handle jetstream.Stream, err error) (*jetstream.StreamInfo, error) {
	plainly(&err)
	if err != nil {
		return nil, err
	}
	info := handle.CachedInfo()
	n.handles.Store(info.Config.Name, handle)
	return info, nil
}

func (n *NATS) Status() (nats.Status, error) { return n.nc.Status(), n.nc.LastError() }

func (n *NATS) Lost(ctx context.Context, f func()) {
	changes := n.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer n.nc.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			f()
		}
	}
}

// Read creates a consumer, which is lost with its server or connection: the caller keeps
// the position.
func (n *NATS) Read(ctx context.Context, stream string, from From) (_ Reading, err error) {
	defer plainly(&err)
	cfg := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: readerIdle,
		FilterSubject: from.Subject, HeadersOnly: from.Heads,
	}
	switch {
	case from.Last:
		cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
		if cfg.FilterSubject == "" {
			cfg.FilterSubject = ">" // required by the server
		}
	case !from.Since.IsZero():
		cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from.Since
	case from.Seq > 0:
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from.Seq
	}
	consumer, err := n.js.CreateConsumer(ctx, stream, cfg)
	if err != nil {
		return nil, err
	}
	return &reading{consumer: consumer, ahead: max(from.Ahead, MaxMessage)}, nil
}

// reading is a consumer, and its messages after the first Next.
type reading struct {
	consumer jetstream.Consumer
	ahead    int

	mu       sync.Mutex
	messages jetstream.MessagesContext
	stopped  bool
}

func (r *reading) Begun() (behind, pending uint64) {
	info := r.consumer.CachedInfo()
	return info.Delivered.Stream, info.NumPending
}

func (r *reading) Next(ctx context.Context) (_ Message, err error) {
	defer plainly(&err)
	messages, err := r.begin()
	if err != nil {
		return Message{}, err
	}
	msg, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return Message{}, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return Message{}, err
	}
	return Message{
		Subject: msg.Subject(), Header: msg.Headers(), Data: msg.Data(), Seq: meta.Sequence.Stream, At: meta.Timestamp,
		Number: meta.Sequence.Consumer, Pending: meta.NumPending,
	}, nil
}

// begin subscribes to the messages, once.
func (r *reading) begin() (jetstream.MessagesContext, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil, jetstream.ErrMsgIteratorClosed
	}
	if r.messages != nil {
		return r.messages, nil
	}
	messages, err := r.consumer.Messages(
		jetstream.PullMaxMessagesWithBytesLimit(readAhead, r.ahead),
		jetstream.PullHeartbeat(Heartbeat),
		jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	if err == nil {
		r.messages = messages
	}
	return messages, err
}

func (r *reading) Left(ctx context.Context) (pending, sent uint64, err error) {
	info, err := r.consumer.Info(ctx)
	if err != nil {
		return 0, 0, err
	}
	return info.NumPending, info.Delivered.Consumer, nil
}

func (r *reading) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if r.messages != nil {
		r.messages.Stop()
	}
}
