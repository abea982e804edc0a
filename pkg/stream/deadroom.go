package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// deadRoom shares the space of dead letters among sources and programs:
//
//   - the api writes a letter while those of its source take no more bytes than are free:
//     one source alone fills half of the space, and the next always finds some;
//   - the ingester, which cannot refuse a letter, writes while there is space; the api
//     refuses the posts of a source whose records produce too many;
//   - an eighth is reserved for changes of users and dataset fields.
//
// The free space is read from the server for each letter. The bytes of each source are counted
// only when needed: all letters once, then the new ones. Letters of other programs are seen
// only once stored, so each program limits its bytes in flight.
type deadRoom struct {
	turn    turn
	pending map[string]int64 // bytes in flight, by source
	flight  int64            // bytes in flight
	freed   chan struct{}    // closed when some have been stored
	seen    deadCount
	counted time.Time
	crowded atomic.Pointer[map[string]bool] // sources whose records produced too many dead letters; nil: none
}

// deadCount is the usage of dead letters up to a number.
type deadCount struct {
	upto, letters uint64
	bytes         int64
	of            map[string]int64 // bytes by source
	inLane        map[string]int64 // those written by ingesters
}

const (
	// deadFlight is the divisor for the bytes in flight of one program.
	deadFlight = 32
	// deadKept is the divisor for the space reserved for changes.
	deadKept = 8
	// recountEvery is the shortest interval of full counts, needed after letters were
	// replayed or dropped. Until then they count as present.
	recountEvery = 5 * time.Second
)

func newDeadRoom() *deadRoom {
	return &deadRoom{turn: newTurn(), pending: make(map[string]int64), freed: make(chan struct{})}
}

// enter waits until a letter of this size may be sent; leave ends its flight. The errors are
// flow.ErrFull, flow.ErrDeadShare, and flow.ErrUnavailable.
func (r *deadRoom) enter(ctx context.Context, s *Stream, d flow.Dead, size int64) (leave func(), err error) {
	for {
		r.turn.Lock()
		limit, err := r.fits(ctx, s, d, size)
		if err != nil {
			r.turn.Unlock()
			return nil, err
		}
		if limit <= 0 || r.flight == 0 || r.flight+size <= limit/deadFlight {
			r.add(d.Message.Source, size)
			r.turn.Unlock()
			return func() { r.left(d.Message.Source, size) }, nil
		}
		freed := r.freed
		r.turn.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, unavailable(ctx.Err(), time.Second)
		}
	}
}

func (r *deadRoom) add(source string, size int64) {
	r.flight += size
	if r.pending[source] += size; r.pending[source] == 0 {
		delete(r.pending, source)
	}
}

func (r *deadRoom) left(source string, size int64) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.add(source, -size)
	close(r.freed)
	r.freed = make(chan struct{})
}

// fits fails if a letter does not fit, and returns the total space. It needs the turn.
func (r *deadRoom) fits(ctx context.Context, s *Stream, d flow.Dead, size int64) (limit int64, err error) {
	info, err := s.js.Info(ctx, DeadStream, "")
	if err != nil {
		return 0, unavailable(fmt.Errorf("look up dead letters: %w", err), 2*time.Second)
	}
	limit = info.Config.MaxBytes
	if limit <= 0 || strings.HasPrefix(d.Message.Topic, ChangePrefix) {
		return limit, nil
	}
	free := forRecords(limit) - int64(info.State.Bytes) - r.flight - size
	if free < 0 {
		return limit, errDeadFull
	}
	source := d.Message.Source
	own := func() int64 {
		unknown := max(0, int64(info.State.Bytes)-r.seen.bytes) // new letters, perhaps all of this source
		return r.seen.of[source] + unknown + r.pending[source] + size
	}
	if d.Message.Lane != NoLane || own() <= free {
		return limit, nil
	}
	if err := r.count(ctx, s, info); err != nil {
		return limit, err
	}
	if own() <= free {
		return limit, nil
	}
	return limit, &flow.RetryError{After: time.Minute, Err: fmt.Errorf(
		"%w: dead letters of source %q take %d of %d bytes: replay or drop some (sluice dead), or raise --dead-max-bytes", flow.ErrDeadShare, source, r.seen.of[source], limit)}
}

// errDeadFull: only changes are accepted.
var errDeadFull = fmt.Errorf("%w: no space for dead letters: replay or drop some (sluice dead), or raise --dead-max-bytes", flow.ErrFull)

// forRecords is the space available to records.
func forRecords(limit int64) int64 { return limit - limit/deadKept }

// count counts the letters up to the last one of info. It needs the turn.
func (r *deadRoom) count(ctx context.Context, s *Stream, info *jetstream.StreamInfo) error {
	next := r.seen.clone()
	if err := next.read(ctx, s, info.State.LastSeq); err != nil {
		return err
	}
	if next.letters != info.State.Msgs && s.cfg.Now().Sub(r.counted) >= recountEvery { // some were removed
		next = deadCount{}.clone()
		if err := next.read(ctx, s, info.State.LastSeq); err != nil {
			return err
		}
		r.counted = s.cfg.Now()
	}
	r.seen = next
	return nil
}

func (c deadCount) clone() deadCount {
	c.of, c.inLane = maps.Clone(c.of), maps.Clone(c.inLane)
	if c.of == nil {
		c.of, c.inLane = make(map[string]int64), make(map[string]int64)
	}
	return c
}

// read counts the letters up to one.
func (c *deadCount) read(ctx context.Context, s *Stream, upto uint64) error {
	if c.upto >= upto {
		return nil
	}
	ours := DeadPrefix + fmt.Sprint(NoLane) + "."
	for msg, err := range s.scan(ctx, DeadStream, broker.From{Seq: c.upto + 1, Heads: true}) {
		if err != nil {
			return fmt.Errorf("count dead letters: %w", err)
		}
		if msg.Seq > upto {
			break
		}
		size := storedSize(msg.Subject, msg.Header, bodySize(msg))
		source := first(msg.Header, headerSource)
		c.letters++
		c.bytes += size
		c.of[source] += size
		if !strings.HasPrefix(msg.Subject, ours) {
			c.inLane[source] += size
		}
	}
	c.upto = upto
	return nil
}

// headerSize is the body size of a message read without its body.
const headerSize = "Nats-Msg-Size"

func bodySize(msg broker.Message) (n int) {
	if _, err := fmt.Sscan(first(msg.Header, headerSize), &n); err != nil {
		return len(msg.Data)
	}
	return n
}

// storedSize is the size of a message in a stream's files.
func storedSize(subject string, head nats.Header, body int) int64 {
	const record, hash = 22, 8
	n := record + len(subject) + 4 + len("NATS/1.0\r\n") + len("\r\n") + body + hash
	for name, values := range head {
		if name == headerSize {
			continue
		}
		for _, v := range values {
			n += len(name) + len(": ") + len(v) + len("\r\n")
		}
	}
	return int64(n)
}

// look sets the metrics of dead letters, and finds the sources whose records produced too
// many.
func (r *deadRoom) look(ctx context.Context, s *Stream) error {
	info, err := s.js.Info(ctx, DeadStream, "")
	if err != nil {
		return unavailable(fmt.Errorf("look up dead letters: %w", err), 2*time.Second)
	}
	s.m.deadLetters.Set(float64(info.State.Msgs))
	s.m.deadWritten.WithLabelValues().Set(float64(info.State.LastSeq))
	s.m.deadBytes.Set(float64(info.State.Bytes))
	s.m.deadMax.Set(float64(info.Config.MaxBytes))
	crowded := make(map[string]bool)
	free := forRecords(info.Config.MaxBytes) - int64(info.State.Bytes)
	if info.Config.MaxBytes > 0 && int64(info.State.Bytes) > free {
		r.turn.Lock()
		err = r.count(ctx, s, info)
		for source, bytes := range r.seen.inLane {
			crowded[source] = bytes > free
		}
		r.turn.Unlock()
		if err != nil {
			return err
		}
		maps.DeleteFunc(crowded, func(_ string, is bool) bool { return !is })
	}
	before := r.crowded.Swap(&crowded)
	if len(crowded) > 0 && (before == nil || !maps.Equal(*before, crowded)) {
		s.log.Error("records of these sources fill the dead-letter stream: their posts are refused until dead letters are replayed or dropped (sluice dead)",
			"sources", slices.Sorted(maps.Keys(crowded)))
	}
	return nil
}

// Admits fails with flow.ErrDeadShare for a source whose records produced so many dead letters
// that others have no space for theirs.
func (l *DeadLetters) Admits(source string) error {
	if crowded := l.stream.room.crowded.Load(); crowded != nil && (*crowded)[source] {
		return &flow.RetryError{Err: flow.ErrDeadShare, After: time.Minute}
	}
	return nil
}

// has reports whether a letter exists.
func (l *DeadLetters) has(ctx context.Context, subject string) bool {
	_, err := l.stream.js.Last(ctx, DeadStream, subject)
	return err == nil
}

// refusedForRoom reports whether an error is about space, not about the letter.
func refusedForRoom(err error) bool {
	return errors.Is(err, flow.ErrFull) || errors.Is(err, flow.ErrDeadShare)
}
