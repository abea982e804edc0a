package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/flow"
)

// maxQueued is how many bytes of chunks may wait for a lane before it is busy: more
// than a disk syncs while a client waits. One request may exceed it.
const maxQueued = 64 << 20

// batcher gathers the chunks for a lane into entries, one in flight at a time: two
// would share the same writer in the server, and each have half of the requests. What
// comes while one is in flight goes into the next. So no request waits for company,
// and the slower the disk, the larger the entries.
type batcher struct {
	p    *Publisher
	lane int

	mu      sync.Mutex
	queue   []*batch // in order; the last one takes more chunks until it is closed
	queued  int      // bytes of their entries
	running bool     // publishLoop runs
	logEnd  logEnd   // as it is known now
}

// logEnd is how far a lane reached at a time.
type logEnd struct {
	created time.Time // of its stream
	seq     uint64    // a message of it,
	at      time.Time // and a time at which there was none behind it
}

// batch is an entry from its first chunk to its outcome. It is open while it is in
// the queue of its lane, and closed when its turn to be sent comes: from then on its
// bytes never change. The sender sets seq and err once, and then closes done.
type batch struct {
	id     string // its Nats-Msg-Id
	lane   *Lane
	since  time.Time         // when the first chunk came
	entry  *flow.EntryWriter // nil once it has an outcome
	routes []*Source         // by which its chunks were routed
	until  time.Time         // not to be sent later unless these are confirmed
	logEnd logEnd            // when the first chunk came: a request that waits while the lane moves on becomes void

	chunks, records int
	traces          []string // contexts of its requests, when spans are kept

	done chan struct{}
	seq  uint64
	err  error
}

var entries = sync.Pool{New: func() any { return new(flow.EntryWriter) }}

// full says whether the lane takes no more at present.
func (q *batcher) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued >= maxQueued
}

// add copies chunks of a submission into the last batch of the queue, and into new
// ones as they fill up. It returns these batches.
func (q *batcher) add(sub *flow.Submission, source *Source, lane *Lane, until time.Time, chunks []flow.Chunk) (all []*batch) {
	m := flow.Message{
		ID: sub.ID, Hash: sub.Hash, Subject: sub.Subject, Source: sub.Source, Revision: source.Revision,
		Received: sub.Received, TraceParent: sub.TraceParent, Identified: sub.Identified,
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range chunks {
		m.Body, m.Encoding, m.Records = c.Body, c.Encoding, c.Records
		b := q.open(lane, &m)
		b.chunks, b.records = b.chunks+1, b.records+c.Records
		q.queued += len(c.Body)
		m.From += c.Records
		if len(all) > 0 && all[len(all)-1] == b {
			continue
		}
		all = append(all, b)
		if until.Before(b.until) {
			b.until = until
		}
		if !slices.Contains(b.routes, source) {
			b.routes = append(b.routes, source)
		}
		if q.p.stream.cfg.Tracer != nil {
			b.traces = append(b.traces, sub.TraceParent)
		}
	}
	if !q.running {
		q.running = true
		go q.publishLoop() // ends when the queue is empty
	}
	return all
}

// open returns the last batch with a chunk in it, or a new one.
func (q *batcher) open(lane *Lane, m *flow.Message) *batch {
	if n := len(q.queue); n > 0 && q.queue[n-1].lane.Created.Equal(lane.Created) && q.queue[n-1].entry.Add(m) {
		return q.queue[n-1]
	}
	if lane.Created != q.logEnd.created || lane.Last > q.logEnd.seq { // the look-up has seen more
		q.logEnd = logEnd{lane.Created, lane.Last, lane.Looked}
	}
	now := q.p.stream.cfg.Now()
	b := &batch{id: fmt.Sprintf("%016x%016x", q.p.stream.cfg.Random(), q.p.stream.cfg.Random()), lane: lane, logEnd: q.logEnd, since: now, until: now.Add(q.p.stream.cfg.Fresh), entry: entries.Get().(*flow.EntryWriter), done: make(chan struct{})}
	b.entry.Reset()
	b.entry.Add(m)
	q.queue = append(q.queue, b)
	return b
}

// publishLoop sends batches until the queue is empty.
func (q *batcher) publishLoop() {
	for b := q.next(); b != nil; b = q.next() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), publishLimit, errLimit)
		ctx, span := q.p.stream.sending(ctx, b)
		answered, err := q.send(ctx, b)
		endSpan(span, err)
		cancel()
		if err == nil {
			q.p.stream.m.durable(b)
		}
		b.settle(err)
		if !answered {
			q.failQueue()
		}
	}
}

// next closes the first batch of the queue and takes it out.
func (q *batcher) next() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		q.queue, q.running = nil, false
		return nil
	}
	b := q.queue[0]
	q.queue = slices.Delete(q.queue, 0, 1)
	q.queued -= len(b.entry.Body())
	return b
}

// failQueue fails every batch of the queue, after the one before them got no answer.
// None of them was sent.
func (q *batcher) failQueue() {
	q.mu.Lock()
	failed := q.queue
	q.queue, q.queued = nil, 0
	q.mu.Unlock()
	for _, b := range failed {
		b.settle(unavailable(errNotSent, 2*time.Second))
	}
}

// settle sets the outcome of a batch.
func (b *batch) settle(err error) {
	entry := b.entry
	b.entry, b.routes, b.traces, b.err = nil, nil, nil, err
	close(b.done)
	if entry.Size() <= 1<<20 { // a large record is no reason to keep as much for ever
		entries.Put(entry)
	}
}

// send makes a batch durable. Every attempt sends the same bytes under the same
// Nats-Msg-Id, so that the lane tells a second copy from a second entry. answered is
// false when no server has answered to the end.
func (q *batcher) send(ctx context.Context, b *batch) (answered bool, err error) {
	s := q.p.stream
	msg := &nats.Msg{Subject: RecordTopic(b.lane.Number), Data: b.entry.Body(), Header: nats.Header{
		headerID:    {b.id},
		headerEntry: {b.entry.Header(b.logEnd.seq, s.cfg.RepeatWindow/2)},
	}}
	a := q.p.attempts()
	a.since = b.since
	begun := s.cfg.Now()
	err = a.until(ctx, func() error {
		if err := q.confirm(ctx, b, errMoved); err != nil {
			return err
		}
		got, err := a.send(ctx, s, b.lane, msg)
		if err != nil {
			return err
		}
		return q.onAck(ctx, b, got.Sequence, begun)
	})
	answered = !errors.Is(err, flow.ErrUnavailable) || a.silent.IsZero() && ctx.Err() == nil
	return answered, s.whenFull(err, b.lane.Number, b.entry.Size())
}

// confirm makes sure that the batch may be sent to its lane, or that it counts there:
// when what was looked up has grown old, its sources must have the same lists still. The
// error is otherwise when they have not.
func (q *batcher) confirm(ctx context.Context, b *batch, otherwise error) error {
	if !passed(q.p.stream.cfg.Now(), b.until) {
		return nil
	}
	v, err := q.p.stream.routable(ctx)
	if err != nil {
		return err
	}
	if lane, ok := v.lane(q.lane); !ok || !lane.Created.Equal(b.lane.Created) {
		return fmt.Errorf("%w: lane %d was deleted", otherwise, q.lane)
	}
	for _, route := range b.routes {
		if source := v.sources[route.Name]; source == nil || source.Revision != route.Revision || !slices.Equal(source.Lanes, route.Lanes) {
			return fmt.Errorf("%w: source %q has other lanes by now", otherwise, route.Name)
		}
	}
	b.until = q.p.stream.until(v)
	return nil
}

// onAck judges the sequence that the lane has given to the entry. An entry that
// landed too far behind the log end in its header is void: the ingester discards it,
// because the request may have been repeated and forgotten since. While the clocks
// say that this cannot be, nothing is read.
func (q *batcher) onAck(ctx context.Context, b *batch, seq uint64, begun time.Time) error {
	setBack := seq <= b.logEnd.seq // or created again: the entry is void there
	q.mu.Lock()
	if setBack || q.logEnd.seq < seq {
		q.logEnd = logEnd{b.lane.Created, seq, begun}
	}
	q.mu.Unlock()
	if setBack {
		if _, err := q.p.stream.lookNow(ctx); err != nil {
			return err
		}
		return fmt.Errorf("%w: lane %d ends before message %d, which it had", errVoid, q.lane, b.logEnd.seq)
	}
	// No move marker is written while a list of before the move may be acted on. Once it
	// may not, the entry may be behind one, where the requests of its source are void.
	if err := q.confirm(ctx, b, errVoid); err != nil {
		return err
	}
	b.seq = seq
	window := q.p.stream.cfg.RepeatWindow
	if !passed(q.p.stream.cfg.Now(), b.logEnd.at.Add(window/4)) {
		return nil
	}
	age, err := q.p.stream.age(ctx, q.lane, b.logEnd.seq+1, seq)
	if err != nil {
		return fmt.Errorf("%w: %w", errStale, err) // the same goes out again, has the same sequence, and is judged again
	}
	if age > window/2 {
		return fmt.Errorf("%w: the lane has moved on by %v", errVoid, age)
	}
	return nil
}

// whenFull adds to flow.ErrFull when a lane is likely to have room again.
func (s *Stream) whenFull(err error, lane, size int) error {
	if errors.Is(err, flow.ErrFull) {
		return &flow.RetryError{Err: err, After: s.roomAfter(lane, size)}
	}
	return err
}
