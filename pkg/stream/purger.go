package stream

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/record"
)

// PurgeConfig says how much of what is stored the lanes keep.
type PurgeConfig struct {
	History time.Duration // keep stored messages this long, to rebuild tables from them; default 24 h
	Every   time.Duration // how often to look; default 30 s
}

// purgeMargin is kept beyond the duplicate window: a restarted server knows the
// ids of the messages it still holds, and no others.
const purgeMargin = 30 * time.Second

// Purger removes from the lanes what is stored and not needed any more. A
// message goes when all of these hold:
//
//   - it is stored or set aside, by a position that fits the lane's data,
//   - it is not a change that waits to be applied, nor behind one,
//   - the position does not count on it to tell which requests are repeated,
//   - the duplicate window of its id has passed,
//   - it is older than the history, or the lane is more than half full.
//
// Any number of Purgers may run.
type Purger struct {
	stream *Stream
	cfg    PurgeConfig
	margin time.Duration // purgeMargin
}

// NewPurger returns a Purger of s.
func NewPurger(s *Stream, cfg PurgeConfig) *Purger {
	if cfg.History == 0 {
		cfg.History = 24 * time.Hour
	}
	if cfg.Every == 0 {
		cfg.Every = 30 * time.Second
	}
	return &Purger{stream: s, cfg: cfg, margin: purgeMargin}
}

// Run purges again and again until ctx is done.
func (p *Purger) Run(ctx context.Context) error {
	for sleep(ctx, p.cfg.Every) {
		if err := p.Purge(ctx); err != nil && ctx.Err() == nil {
			p.stream.log.Warn("purge lanes", "error", err) // the next look goes on
		}
	}
	return nil
}

// Purge looks at every lane once.
func (p *Purger) Purge(ctx context.Context) error {
	for _, number := range p.stream.LaneNumbers() {
		if err := p.purge(ctx, number); err != nil {
			return fmt.Errorf("purge lane %d: %w", number, err)
		}
	}
	return nil
}

func (p *Purger) purge(ctx context.Context, number int) error {
	lane, err := p.stream.state(ctx, number)
	if err != nil || lane.Messages == 0 {
		return err
	}
	at, err := NewPositions(p.stream).fitting(ctx, lane)
	if err != nil || at.Done < lane.First {
		return err
	}
	var waiting, changes uint64
	if number == 0 {
		if waiting, changes, err = p.waiting(ctx, lane); err != nil {
			return err
		}
	}
	// By the server's clock: this machine's may be another, and the messages are
	// stamped by that one.
	known, err := p.stream.FirstSince(ctx, number, lane.Now.Add(-lane.Window-p.margin))
	if err != nil {
		return err
	}
	history, err := p.stream.FirstSince(ctx, number, lane.Now.Add(-p.cfg.History))
	if err != nil {
		return err
	}
	keep := keepFrom(lane, at, known, history)
	if waiting > 0 {
		keep = min(keep, waiting)
	}
	if keep <= lane.First {
		return nil
	}
	handle, err := p.stream.handle(ctx, number)
	if err != nil {
		return err
	}
	if err := handle.Purge(ctx, jetstream.WithPurgeSequence(keep)); err != nil {
		return err
	}
	p.stream.m.purged.WithLabelValues(strconv.Itoa(number)).Add(float64(keep - lane.First))
	p.stream.log.Debug("purged a lane", "lane", number, "from", lane.First, "to", keep-1)
	// A crash here leaves notes about messages that are gone to the next purge.
	return NewDeadLetters(p.stream).forgetSettled(ctx, lane, keep, at.Incarnation, changes)
}

// waiting is the first change that is not known to be applied, 0 when there is
// none, and the life that changes are in. A change that is accepted from now on
// is behind all that is stored.
func (p *Purger) waiting(ctx context.Context, lane *Lane) (first, life uint64, err error) {
	applied, err := NewChangePositions(p.stream).fitting(ctx, lane)
	if err != nil {
		return 0, 0, err
	}
	first, err = p.stream.nextChange(ctx, applied.Done+1)
	return first, applied.Incarnation, err
}

// keepFrom is the first message a lane needs, given where it stands, the first
// message whose id it must know, and the first that is history.
func keepFrom(lane *Lane, pos record.Position, known, history uint64) uint64 {
	keep := history
	if half := uint64(max(lane.MaxBytes, 0)) / 2; lane.MaxBytes > 0 && lane.Bytes > half {
		mean := max(lane.Bytes/lane.Messages, 1)
		keep = max(keep, lane.First+(lane.Bytes-half+mean-1)/mean)
	}
	return min(keep, known, max(pos.Window, 1), pos.Done+1)
}

// FirstSince is the sequence of a lane's first message stored at a time or
// later; the one after its last when there is none.
func (s *Stream) FirstSince(ctx context.Context, lane int, since time.Time) (uint64, error) {
	name := LaneName(lane)
	// A consumer that begins there knows; it is never read.
	consumer, err := s.js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: readerIdle,
	})
	if err != nil {
		return 0, fmt.Errorf("find the message at %v: %w", since, err)
	}
	info := consumer.CachedInfo()
	if err := s.js.DeleteConsumer(ctx, name, info.Name); err != nil {
		s.log.Debug("delete the consumer of a question", "lane", lane, "error", err)
	}
	return info.Delivered.Stream + 1, nil
}
