package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// Positions remembers where each lane stands.
type Positions struct {
	stream *Stream
	prefix string // of their keys
}

const (
	storedPrefix  = "lane."
	appliedPrefix = "changes."
)

// NewPositions returns the Positions of s: what of a lane is stored.
func NewPositions(s *Stream) *Positions { return &Positions{s, storedPrefix} }

// NewChangePositions returns the Positions of the changes of users and dataset
// fields, which only lane 0 has: what of them is applied. They have no claims and
// no totals, and a life of their own, so that what applies changes never has to
// know what is stored.
func NewChangePositions(s *Stream) *Positions { return &Positions{s, appliedPrefix} }

func (p *Positions) key(lane int) string { return p.prefix + strconv.Itoa(lane) }

// of names a position in errors.
func (p *Positions) of(lane int) string {
	if p.prefix == appliedPrefix {
		return fmt.Sprintf("the changes of lane %d", lane)
	}
	return fmt.Sprintf("lane %d", lane)
}

// Identity names the stream behind a lane, FLOW_n@<creation, unix ns>, by
// asking the server: a stream made again has another identity.
func (p *Positions) Identity(ctx context.Context, lane int) (string, error) {
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return "", err
	}
	return state.Identity(), nil
}

// Read returns where a lane stands: the zero Position when nothing was ever
// stored of it.
//
// The error is flow.ErrGap when the lane does not hold any more what the
// position counts on: the stream is the same but its data is of an earlier
// time, as after a backup was restored. A stream made again is not an error
// here: its identity differs from Position.Stream.
func (p *Positions) Read(ctx context.Context, lane int) (flow.Position, error) {
	pos, unread := p.entry(ctx, lane)
	// After the position, which may move meanwhile.
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return flow.Position{}, err
	}
	if unread == nil && pos.Stream == state.Identity() {
		return pos, p.check(ctx, state, pos)
	}
	return pos, unread
}

// entry reads a position as it is; the zero one when there is none.
func (p *Positions) entry(ctx context.Context, lane int) (pos flow.Position, err error) {
	entry, err := p.stream.positions.Get(ctx, p.key(lane))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return flow.Position{}, nil
	}
	if err != nil {
		return flow.Position{}, unavailable(fmt.Errorf("read the position of %s: %w", p.of(lane), err), 2*time.Second)
	}
	if err := json.Unmarshal(entry.Value(), &pos); err != nil {
		return flow.Position{Revision: entry.Revision()}, fmt.Errorf("read the position of %s: %w", p.of(lane), err)
	}
	pos.Revision = entry.Revision()
	return pos, nil
}

// check compares a position with the lane it was written for: the last message
// that was read must be there, and be that message. No clock is compared with
// another: a message keeps the time at which the stream took it.
func (p *Positions) check(ctx context.Context, lane *Lane, pos flow.Position) error {
	needed, stamp := pos.Done, pos.Stamp
	if pos.Claim != nil && pos.Claim.Last > needed {
		needed, stamp = pos.Claim.Last, pos.Claim.Stamp
	}
	if lane.Last < needed {
		return p.stream.endsBefore(lane, gap("lane %d ends at %d, but %d was read from it: its data is of an earlier time", lane.Number, lane.Last, needed))
	}
	p.stream.reaches(lane)
	if stamp == 0 {
		return nil // the position says nothing about it
	}
	now, err := p.stamp(ctx, lane, needed)
	if err != nil {
		return err
	}
	if now != 0 && now != stamp {
		return gap("message %d of lane %d is of %s, but the one that was read had come at %s: the lane's data is of an earlier time, and other messages have taken the numbers since",
			needed, lane.Number, moment(now), moment(stamp))
	}
	return nil
}

// stamp is when the lane took a message, ns since 1970, and 0 when it does not
// hold it.
func (p *Positions) stamp(ctx context.Context, lane *Lane, seq uint64) (int64, error) {
	if seq < max(lane.First, 1) {
		return 0, nil // purged
	}
	msg, err := p.stream.message(ctx, lane.Number, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		e, err := p.stream.redactedEntry(ctx, lane, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, nil
		}
		return e.Stored.UnixNano(), err
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("look at message %d of lane %d: %w", seq, lane.Number, err), 2*time.Second)
	}
	return msg.Time.UnixNano(), nil
}

func moment(stamp int64) string { return time.Unix(0, stamp).UTC().Format(time.RFC3339Nano) }

// Swap writes next if the entry still is at next.Revision (0: does not exist),
// and returns it with its new revision. The error is flow.ErrNotOwner when
// the entry has moved; after any other error it may be written or not, and the
// same Swap again settles it.
func (p *Positions) Swap(ctx context.Context, lane int, next flow.Position) (flow.Position, error) {
	value, err := json.Marshal(next)
	if err != nil {
		return flow.Position{}, fmt.Errorf("write the position of %s: %w", p.of(lane), err)
	}
	key := p.key(lane)
	var revision uint64
	if next.Revision == 0 {
		revision, err = p.stream.positions.Create(ctx, key, value)
	} else {
		revision, err = p.stream.positions.Update(ctx, key, value, next.Revision)
	}
	switch {
	case err == nil:
		next.Revision = revision
		return next, nil
	case isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		return p.moved(ctx, lane, next, value)
	}
	return flow.Position{}, unavailable(fmt.Errorf("write the position of %s: %w", p.of(lane), err), time.Second)
}

// Reset makes a lane go on after the message done of the stream it has now,
// whatever its position was, in a life of its own: by the server's clock, and
// with an incarnation above that of the one before, and above another one that
// is known. It is for an operator who knows that what was before is stored or
// lost: after a stream was made again, or restored from a backup. Its owner is
// fenced, and takes it again from there. Changes go on after the same message:
// those behind it are applied again, which ends in the same.
func (p *Positions) Reset(ctx context.Context, lane int, done, above uint64) (flow.Position, error) {
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return flow.Position{}, err
	}
	if done > state.Last {
		return flow.Position{}, fmt.Errorf("reset lane %d to %d: it ends at %d", lane, done, state.Last)
	}
	before, err := p.entry(ctx, lane)
	if err != nil && before.Revision == 0 { // a damaged one is replaced
		return flow.Position{}, err
	}
	stamp, err := p.stamp(ctx, state, done)
	if err != nil {
		return flow.Position{}, err
	}
	if lane == 0 {
		applied, err := NewChangePositions(p.stream).entry(ctx, lane)
		if err != nil && applied.Revision == 0 {
			return flow.Position{}, err
		}
		above = max(above, applied.Incarnation)
	}
	at, err := p.Swap(ctx, lane, flow.Position{
		Incarnation: max(uint64(state.Now.UnixMilli()), before.Incarnation+1, above+1),
		Stream:      state.Identity(), Done: done, Stamp: stamp, Base: done, Window: done + 1,
		Recount: before.Recount, Revision: before.Revision,
	})
	if err != nil || lane != 0 {
		return at, err
	}
	// Reset. A crash here leaves the changes where they were, or halted: another
	// Reset moves them.
	return at, NewChangePositions(p.stream).follow(ctx, lane, at)
}

// follow makes the changes of a lane go on where the lane does, also while an
// ingester moves them.
func (p *Positions) follow(ctx context.Context, lane int, at flow.Position) error {
	for try := 1; ; try++ {
		before, err := p.entry(ctx, lane)
		if err != nil && before.Revision == 0 {
			return err
		}
		_, err = p.Swap(ctx, lane, flow.Position{
			Incarnation: at.Incarnation, Stream: at.Stream, Done: at.Done, Stamp: at.Stamp, Base: at.Base, Revision: before.Revision,
		})
		if err == nil || try == holdTries || !errors.Is(err, flow.ErrNotOwner) {
			return err
		}
	}
}

// moved finds out who moved the entry. It may have been this very Swap in an
// attempt whose answer was lost: no other owner writes the same.
func (p *Positions) moved(ctx context.Context, lane int, next flow.Position, value []byte) (flow.Position, error) {
	entry, err := p.stream.positions.Get(ctx, p.key(lane))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return flow.Position{}, unavailable(fmt.Errorf("read the position of %s: %w", p.of(lane), err), time.Second)
	}
	if err == nil && entry.Revision() > next.Revision && bytes.Equal(entry.Value(), value) {
		next.Revision = entry.Revision()
		return next, nil
	}
	return flow.Position{}, fmt.Errorf("%s: %w", p.of(lane), flow.ErrNotOwner)
}

// fitting is the position of a lane if it fits the lane; the zero one when its
// stream was made again since, or when its data is of an earlier time: then
// nothing of it is known to be stored, or applied.
func (p *Positions) fitting(ctx context.Context, lane *Lane) (flow.Position, error) {
	pos, err := p.Read(ctx, lane.Number)
	if errors.Is(err, flow.ErrGap) {
		return flow.Position{}, nil
	}
	if err != nil || pos.Stream != "" && pos.Stream != lane.Identity() {
		return flow.Position{}, err
	}
	return pos, nil
}

// holdTries is how often a position is read again that moves while it is
// written: its owner moves it with every block.
const holdTries = 100

// Hold asks the owner of a lane to claim nothing new until then, or until
// Release, and returns the position with the hold in it. A block that is
// claimed is stored and recorded as done first. The error says so when another
// name holds the lane.
//
// A holder that dies leaves the lane to the clock.
func (p *Positions) Hold(ctx context.Context, lane int, by string, until time.Time) (flow.Position, error) {
	return p.rewrite(ctx, lane, func(pos *flow.Position) error {
		if pos.Held(time.Now()) && pos.Hold.By != by {
			return fmt.Errorf("lane %d is held by %s until %s", lane, pos.Hold.By, time.UnixMilli(pos.Hold.Until).UTC().Format(time.RFC3339))
		}
		pos.Hold = &flow.Hold{By: by, Until: until.UnixMilli()}
		return nil
	})
}

// Release ends a hold, unless it is of another name.
func (p *Positions) Release(ctx context.Context, lane int, by string) error {
	_, err := p.rewrite(ctx, lane, func(pos *flow.Position) error {
		if pos.Hold == nil || pos.Hold.By != by {
			return errAsItIs
		}
		pos.Hold = nil
		return nil
	})
	return err
}

// HoldAll holds every lane and waits until none has a claim: at most wait long.
// A program that dies holding them leaves them to the clock after hold and wait. What rests
// on it must compare the positions again: see Hold.
func (p *Positions) HoldAll(ctx context.Context, by string, hold, wait time.Duration) (map[int]flow.Position, error) {
	if err := p.stream.Refresh(ctx); err != nil {
		return nil, err
	}
	held := map[int]flow.Position{}
	deadline := time.Now().Add(wait)
	for _, lane := range p.stream.LaneNumbers() {
		pos, err := p.Hold(ctx, lane, by, time.Now().Add(hold+wait))
		if err != nil {
			return held, err
		}
		held[lane] = pos
	}
	for lane, pos := range held {
		for pos.Claim != nil {
			if time.Now().After(deadline) {
				return held, fmt.Errorf("the block %s of lane %d was claimed and is not known to be stored after %v: is its ingester running?", pos.Claim, lane, wait)
			}
			if !sleep(ctx, holdLook) {
				return held, ctx.Err()
			}
			var err error
			if pos, err = p.Read(ctx, lane); err != nil {
				return held, err
			}
		}
		held[lane] = pos
	}
	return held, nil
}

// ReleaseAll ends the holds of HoldAll, also when ctx has ended.
func (p *Positions) ReleaseAll(ctx context.Context, by string) (all error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, lane := range p.stream.LaneNumbers() {
		all = errors.Join(all, p.Release(ctx, lane, by))
	}
	return all
}

// holdLook is how often a lane that is held is looked at until its block is stored.
const holdLook = 50 * time.Millisecond

// kept is what a backup asks of the purge. It stands in an entry of its own, so that
// the owner of the position does not notice.
type kept struct {
	From  uint64 `json:"from"`  // messages from here on stay
	Until int64  `json:"until"` // ms since 1970, by the server's clock
}

func keptKey(lane int) string { return "keep." + strconv.Itoa(lane) }

// Keep makes purges leave the messages of a lane from one on, for so long: what is
// copied from a position on must be there when its turn comes. It is asked for again
// while it is needed; a program that dies leaves the lane to the clock.
func (s *Stream) Keep(ctx context.Context, lane int, from uint64, lasting time.Duration) error {
	state, err := s.state(ctx, lane)
	if err != nil {
		return err
	}
	value, err := json.Marshal(kept{from, state.Now.Add(lasting).UnixMilli()})
	if err == nil {
		_, err = s.positions.Put(ctx, keptKey(lane), value)
	}
	if err != nil {
		return unavailable(fmt.Errorf("keep the messages of lane %d from %d on: %w", lane, from, err), time.Second)
	}
	return nil
}

// LetGo takes Keep back.
func (s *Stream) LetGo(ctx context.Context, lane int) error {
	if err := s.positions.Purge(ctx, keptKey(lane)); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return unavailable(fmt.Errorf("let go of the messages of lane %d: %w", lane, err), time.Second)
	}
	return nil
}

// keptFrom is the first message of a lane that Keep asks for, 0 when it asks for none.
func (s *Stream) keptFrom(ctx context.Context, lane *Lane) (uint64, error) {
	entry, err := s.positions.Get(ctx, keptKey(lane.Number))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, unavailable(fmt.Errorf("look what is to be kept of lane %d: %w", lane.Number, err), time.Second)
	}
	var k kept
	if err := json.Unmarshal(entry.Value(), &k); err != nil {
		return 0, fmt.Errorf("look what is to be kept of lane %d: %w", lane.Number, err)
	}
	if lane.Now.UnixMilli() >= k.Until {
		return 0, nil
	}
	return k.From, nil
}

// errAsItIs says that a position needs no change.
var errAsItIs = errors.New("as it is")

// rewrite changes the position of a lane while others move it.
func (p *Positions) rewrite(ctx context.Context, lane int, change func(*flow.Position) error) (flow.Position, error) {
	for try := 1; ; try++ {
		pos, err := p.Read(ctx, lane)
		if err != nil {
			return pos, err
		}
		if err := change(&pos); errors.Is(err, errAsItIs) {
			return pos, nil
		} else if err != nil {
			return pos, err
		}
		next, err := p.Swap(ctx, lane, pos)
		if err == nil || try == holdTries || !errors.Is(err, flow.ErrNotOwner) {
			return next, err
		}
	}
}

const (
	// lookEvery is how often the position of a lane is read while a request waits
	// for it, however many do.
	lookEvery = 25 * time.Millisecond

	// lookAgain is the pause after NATS could not be asked.
	lookAgain = 250 * time.Millisecond
)

// waits are the positions of lanes that requests wait for, read once for all
// of them.
type waits struct {
	mu    sync.Mutex
	lanes map[int]*seen
}

// seen is a position as it was read last.
type seen struct {
	turn chan struct{} // holds one while it is being read; guards the rest
	at   time.Time     // when that began
	pos  flow.Position
}

// Stored returns nil once everything that the lanes of a source hold when it is
// called can be queried, or is set aside. It waits as long as ctx allows, also
// for an ingester or a NATS that is away, and returns its error then.
func (s *Stream) Stored(ctx context.Context, source string) error {
	if err := s.ready(); err != nil {
		return err
	}
	known := s.view.Load().sources[source]
	if known == nil {
		return nil // it has published nothing
	}
	for _, lane := range known.Lanes {
		if err := s.storedLane(ctx, lane); err != nil {
			return err
		}
	}
	return nil
}

// storedLane is Stored for one lane.
func (s *Stream) storedLane(ctx context.Context, lane int) error {
	state, err := s.state(ctx, lane)
	for ; err != nil; state, err = s.state(ctx, lane) {
		if !sleep(ctx, lookAgain) {
			return ctx.Err()
		}
	}
	for begun := time.Now(); ; begun = time.Now() {
		pos, err := s.positionSince(ctx, lane, begun.Add(-lookEvery))
		pause := lookEvery
		switch {
		case err != nil:
			pause = lookAgain
		case pos.Done >= state.Last && (pos.Stream == state.Identity() || state.Last == 0):
			return nil
		}
		if !sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// positionSince is the position of a lane, read after a time.
func (s *Stream) positionSince(ctx context.Context, lane int, since time.Time) (flow.Position, error) {
	w := s.waits.of(lane)
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return flow.Position{}, ctx.Err()
	}
	if w.at.After(since) {
		return w.pos, nil
	}
	begun := time.Now()
	pos, err := NewPositions(s).entry(ctx, lane)
	if err == nil {
		w.at, w.pos = begun, pos
	}
	return pos, err
}

func (w *waits) of(lane int) *seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lanes == nil {
		w.lanes = map[int]*seen{}
	}
	if w.lanes[lane] == nil {
		w.lanes[lane] = &seen{turn: make(chan struct{}, 1)}
	}
	return w.lanes[lane]
}
