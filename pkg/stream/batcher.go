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

// maxQueued bounds the queued bytes of a lane: more than a disk syncs while a client waits.
// A single request may exceed it.
const maxQueued = 64 << 20

// batcher collects the chunks of a lane into entries, one in flight at a time: two would share
// the server's writer, with half of the requests each. Chunks that arrive meanwhile go into
// the next entry, so that slower disks get larger entries.
type batcher struct {
	p    *Publisher
	lane int

	mu      sync.Mutex
	queue   []*batch // in order; the last is open for more chunks
	queued  int      // bytes of their entries
	running bool     // publishLoop runs
	logEnd  logEnd   // as known now

	chunks   int           // in the queue
	expected int           // of them that linger waits for; 0: it does not wait
	arrived  chan struct{} // closed once they are there
}

// logEnd is a known end of a lane.
type logEnd struct {
	created time.Time // of its stream
	seq     uint64    // the lane's last message
	at      time.Time // at this time
}

// batch is an entry from its first chunk to its outcome. It is open while queued, and closed
// before it is sent: then its bytes never change. The sender sets seq and err once and closes
// done.
type batch struct {
	id     string // its Nats-Msg-Id
	lane   *Lane
	since  time.Time         // arrival of the first chunk
	entry  *flow.EntryWriter // nil after the outcome
	routes []*Source         // routes of its chunks
	until  time.Time         // do not send later without confirming the routes
	logEnd logEnd            // at the first chunk: a request that waits while the lane advances becomes void

	chunks, records int

	done chan struct{}
	seq  uint64
	err  error
}

var entries = sync.Pool{New: func() any { return new(flow.EntryWriter) }}

// full reports whether the lane's queue is full.
func (q *batcher) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queued >= maxQueued
}

// add copies chunks of a submission into the last batch of the queue, and into new ones as
// they fill up. It returns these batches.
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
		q.queued, q.chunks = q.queued+len(c.Body), q.chunks+1
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
	}
	if q.expected > 0 && (q.chunks >= q.expected || q.queued > smallEntry) {
		q.expected = 0
		close(q.arrived)
	}
	if !q.running {
		q.running = true
		go q.publishLoop() // ends with an empty queue
	}
	return all
}

// open returns the last batch with a chunk in it, or a new one.
func (q *batcher) open(lane *Lane, m *flow.Message) *batch {
	if n := len(q.queue); n > 0 && q.queue[n-1].lane.Created.Equal(lane.Created) && q.queue[n-1].entry.Add(m) {
		return q.queue[n-1]
	}
	if lane.Created != q.logEnd.created || lane.Last > q.logEnd.seq { // the look-up is newer
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
		begun, size := time.Now(), b.entry.Size()
		answered, err := q.send(ctx, b)
		took := time.Since(begun)
		cancel()
		var arrived <-chan struct{}
		if err == nil {
			q.p.stream.m.durable(b)
			arrived = q.expect(b.chunks, size)
		}
		b.settle(err)
		if !answered {
			q.failQueue()
		}
		if arrived != nil {
			q.linger(arrived, min(took, maxLinger))
		}
	}
}

// smallEntry is the size up to which an entry costs about the same, whatever it holds.
const smallEntry = 64 << 10

// maxLinger bounds what linger adds to a publish.
const maxLinger = 2 * time.Millisecond

// expect returns a channel that is closed once the queue has got as many more chunks as are now answered: most clients
// post again immediately. It is nil if entries are large.
func (q *batcher) expect(answered, size int) <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if max(size, q.queued) > smallEntry {
		return nil
	}
	q.expected, q.arrived = q.chunks+answered, make(chan struct{})
	return q.arrived
}

// linger waits for the chunks that are expected: clients would otherwise form two groups, each with
// entries of its own.
func (q *batcher) linger(arrived <-chan struct{}, limit time.Duration) {
	select {
	case <-arrived:
	case <-time.After(limit):
		q.mu.Lock()
		q.expected = 0
		q.mu.Unlock()
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
	q.queued, q.chunks = q.queued-len(b.entry.Body()), q.chunks-b.chunks
	return b
}

// failQueue fails all queued batches, which were not sent, after the one before them got no
// answer.
func (q *batcher) failQueue() {
	q.mu.Lock()
	failed := q.queue
	q.queue, q.queued, q.chunks = nil, 0, 0
	q.mu.Unlock()
	for _, b := range failed {
		b.settle(unavailable(errNotSent, 2*time.Second))
	}
}

// settle sets the outcome of a batch.
func (b *batch) settle(err error) {
	entry := b.entry
	b.entry, b.routes, b.err = nil, nil, err
	close(b.done)
	if entry.Size() <= 1<<20 { // do not keep the buffer of a large record
		entries.Put(entry)
	}
}

// send makes a batch durable. Every attempt sends the same bytes under the same Nats-Msg-Id,
// so that the lane deduplicates them. answered is false if no server answered.
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

// confirm checks that the batch is still valid in its lane: the lane lists of old routes must be unchanged. If not, it
// returns the error otherwise.
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
			return fmt.Errorf("%w: source %q was moved to other lanes", otherwise, route.Name)
		}
	}
	b.until = q.p.stream.until(v)
	return nil
}

// onAck checks the sequence of the acknowledged entry. An entry that landed too far after its
// header's log end is void: its request may have been repeated outside the deduplication window.
// If clocks exclude that, nothing is read.
func (q *batcher) onAck(ctx context.Context, b *batch, seq uint64, begun time.Time) error {
	setBack := seq <= b.logEnd.seq // or recreated: the entry is void there
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
	// No move marker is written while an api may use an older list. After that time the
	// entry may follow one, where requests of its source are void.
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
		return fmt.Errorf("%w: %w", errStale, err) // retried: the resend has the same sequence and is checked again
	}
	if age > window/2 {
		return fmt.Errorf("%w: the lane has advanced by %v", errVoid, age)
	}
	return nil
}

// whenFull adds to flow.ErrFull when a lane probably has space again.
func (s *Stream) whenFull(err error, lane, size int) error {
	if errors.Is(err, flow.ErrFull) {
		return &flow.RetryError{Err: err, After: s.roomAfter(lane, size)}
	}
	return err
}
