package stream

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
	"sluice/pkg/option"
)

// PurgeConfig is the retention of stored messages in lanes.
type PurgeConfig struct {
	History time.Duration `default:"24h" help:"Retention of stored messages in lanes, to rebuild tables from; less when a lane is more than half full."`
	Every   time.Duration `kong:"-" default:"30s"` // interval of purges
}

// purgeMargin is added to the duplicate window: a restarted server recovers only the ids of
// messages it still holds.
const purgeMargin = 30 * time.Second

// Purger removes stored messages that are no longer needed from the lanes. A message is removed
// when all of these hold:
//
//   - it is stored or dead-lettered, by a checkpoint that matches the lane's data,
//   - it is not an unapplied change, nor after one,
//   - the deduplication window of requests does not need it,
//   - the duplicate window of its id has passed,
//   - no backup or verify has pinned it,
//   - it is older than the history, or the lane is more than half full.
//
// An idle lane's stream time stops, so its last requests would stay in the window.
// Once they are older than the history, the Purger sends ticks, as far apart as stream time
// counts, until they have left it.
//
// Several Purgers may run concurrently.
type Purger struct {
	stream *Stream
	cfg    PurgeConfig
	margin time.Duration // purgeMargin
	step   time.Duration // shortest time from an idle lane's last message to a tick; flow.MaxStep
}

func NewPurger(s *Stream, cfg PurgeConfig) *Purger {
	option.Defaults(&cfg)
	return &Purger{stream: s, cfg: cfg, margin: purgeMargin, step: flow.MaxStep}
}

// Run purges periodically until ctx is done.
func (p *Purger) Run(ctx context.Context) error {
	if err := p.stream.Opened(ctx); err != nil {
		return nil
	}
	for sleep(ctx, p.cfg.Every) {
		if err := p.Purge(ctx); err != nil && ctx.Err() == nil {
			p.stream.log.Warn("purge lanes", "error", err) // retried by the next run
		}
	}
	return nil
}

// Purge purges every lane once.
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
	at, err := NewLaneStates(p.stream).fitting(ctx, lane)
	if err != nil || at.Done < lane.First {
		return err
	}
	var waiting, changes uint64
	if number == 0 {
		if waiting, changes, err = p.waiting(ctx, lane); err != nil {
			return err
		}
	}
	// By the server's clock, which stamps the messages.
	known, err := p.stream.FirstSince(ctx, number, lane.Now.Add(-lane.Window-p.margin))
	if err != nil {
		return err
	}
	history, err := p.stream.FirstSince(ctx, number, lane.Now.Add(-p.cfg.History))
	if err != nil {
		return err
	}
	if at.DedupFrom < history && at.Done == lane.Last {
		if err := p.tick(ctx, lane); err != nil {
			return err
		}
	}
	keep := keepFrom(lane, at, known, history)
	if waiting > 0 {
		keep = min(keep, waiting)
	}
	asked, err := p.stream.pinned(ctx, lane)
	if err != nil {
		return err
	}
	if asked > 0 {
		keep = min(keep, asked)
	}
	if keep <= lane.First {
		return nil
	}
	if err := p.stream.js.Purge(ctx, LaneName(number), "", keep); err != nil {
		return err
	}
	p.stream.m.purged.WithLabelValues(strconv.Itoa(number)).Add(float64(keep - lane.First))
	p.stream.log.Debug("purged a lane", "lane", number, "from", lane.First, "to", keep-1)
	// A crash here leaves notes about removed messages to the next purge.
	incarnations := []uint64{changes}
	for _, in := range at.Incarnations {
		incarnations = append(incarnations, in.ID)
	}
	return NewDeadLetters(p.stream).forgetSettled(ctx, lane, keep, incarnations...)
}

// tick sends a tick to a lane, unless its last message is recent.
func (p *Purger) tick(ctx context.Context, lane *Lane) error {
	next, err := p.stream.FirstSince(ctx, lane.Number, lane.Now.Add(-p.step))
	if err != nil || next <= lane.Last {
		return err
	}
	_, err = p.stream.js.Publish(ctx, &nats.Msg{Subject: TickTopic(lane.Number), Header: nats.Header{
		headerReceived: {strconv.FormatInt(lane.Now.UnixMilli(), 10)},
	}})
	if err != nil {
		return fmt.Errorf("send a tick: %w", err)
	}
	return nil
}

// waiting is the first change that may be unapplied, 0 if none, and the incarnation of changes.
// Changes accepted later follow all stored messages.
func (p *Purger) waiting(ctx context.Context, lane *Lane) (first, life uint64, err error) {
	applied, err := NewChangeStates(p.stream).fitting(ctx, lane)
	if err != nil {
		return 0, 0, err
	}
	first, err = p.stream.nextChange(ctx, applied.Done+1)
	return first, applied.Incarnation(), err
}

// keepFrom is the first message that a lane needs, given its state, the first message within
// the duplicate window, and the first within the history.
func keepFrom(lane *Lane, pos flow.LaneState, known, history uint64) uint64 {
	keep := history
	if half := uint64(max(lane.MaxBytes, 0)) / 2; lane.MaxBytes > 0 && lane.Bytes > half {
		mean := max(lane.Bytes/lane.Messages, 1)
		keep = max(keep, lane.First+(lane.Bytes-half+mean-1)/mean)
	}
	return min(keep, known, max(pos.DedupFrom, 1), pos.Done+1)
}

// FirstSince is the sequence of a lane's first message stored at a time or later, or the one
// after its last.
func (s *Stream) FirstSince(ctx context.Context, lane int, since time.Time) (uint64, error) {
	// A reading that starts there returns it without being read.
	reading, err := s.js.Read(ctx, LaneName(lane), broker.From{Since: since})
	if err != nil {
		return 0, fmt.Errorf("find the message at %v: %w", since, err)
	}
	reading.Stop()
	behind, _ := reading.Begun()
	return behind + 1, nil
}

// Lag is the backlog of a lane.
type Lag struct {
	Lane     int
	Done     uint64 // every message up to here is stored or dead-lettered
	Last     uint64 // the newest message
	Messages uint64 // in the backlog
	Bytes    uint64 // of those, estimated by the lane's mean message size
}

// Lag looks up the backlog of every lane, and sets the metrics.
func (s *Stream) Lag(ctx context.Context) ([]Lag, error) {
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	var all []Lag
	for _, lane := range s.view.Load().lanes {
		at, err := NewLaneStates(s).fitting(ctx, lane)
		if err != nil {
			return nil, err
		}
		l := Lag{Lane: lane.Number, Done: at.Done, Last: lane.Last}
		l.Messages, l.Bytes = waiting(lane, at.Done)
		label := strconv.Itoa(lane.Number)
		s.m.lagMessages.WithLabelValues(label).Set(float64(l.Messages))
		s.m.lagBytes.WithLabelValues(label).Set(float64(l.Bytes))
		all = append(all, l)
	}
	return all, nil
}

// Standing is a lane with its unchecked lane state, for display.
type Standing struct {
	Lane
	LaneState    flow.LaneState
	Waiting      uint64 // messages not stored yet
	WaitingBytes uint64 // of those, estimated by the lane's mean message size
}

// Standings looks up lanes, lane states, and sources now. It does not check states against
// lanes, which is the owner's task.
func (s *Stream) Standings(ctx context.Context) ([]Standing, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	if err := s.Refresh(ctx); err != nil {
		return nil, err
	}
	positions := NewLaneStates(s)
	var all []Standing
	for _, lane := range s.Lanes() {
		pos, err := positions.entry(ctx, lane.Number)
		if err != nil {
			return nil, err
		}
		at := Standing{Lane: lane, LaneState: pos}
		done := pos.Done
		if pos.StreamID != "" && pos.StreamID != lane.StreamID() { // the state is of another stream
			done = 0
		}
		at.Waiting, at.WaitingBytes = waiting(&lane, done)
		all = append(all, at)
	}
	return all, nil
}

// waiting is the number of messages of a lane after done, and their estimated bytes.
func waiting(lane *Lane, done uint64) (messages, bytes uint64) {
	if lane.Last > done {
		messages = lane.Last - done
	}
	if lane.Messages > 0 {
		bytes = uint64(float64(lane.Bytes) / float64(lane.Messages) * float64(min(messages, lane.Messages)))
	}
	return messages, bytes
}

func (s *Stream) laneGauges(l *Lane) {
	label := strconv.Itoa(l.Number)
	s.m.laneBytes.WithLabelValues(label).Set(float64(l.Bytes))
	s.m.laneMax.WithLabelValues(label).Set(float64(l.MaxBytes))
	s.m.laneMsgs.WithLabelValues(label).Set(float64(l.Messages))
}
