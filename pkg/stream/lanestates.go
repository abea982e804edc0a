package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// LaneStates reads and writes lane states.
type LaneStates struct {
	stream *Stream
	prefix string // of keys
}

const (
	storedPrefix  = "lane."
	appliedPrefix = "changes."
)

// NewLaneStates returns the lane states of s.
func NewLaneStates(s *Stream) *LaneStates { return &LaneStates{s, storedPrefix} }

// NewChangeStates returns the checkpoint of the changes of users and dataset fields on lane 0.
// It has no claim or totals, and its own incarnations, so that applying changes does not depend
// on ClickHouse.
func NewChangeStates(s *Stream) *LaneStates { return &LaneStates{s, appliedPrefix} }

func (p *LaneStates) key(lane int) string { return p.prefix + strconv.Itoa(lane) }

// of names a lane state in errors.
func (p *LaneStates) of(lane int) string {
	if p.prefix == appliedPrefix {
		return fmt.Sprintf("the changes of lane %d", lane)
	}
	return fmt.Sprintf("lane %d", lane)
}

// StreamID looks up the id of a lane's stream, FLOW_n@<creation, unix ns>. A recreated stream
// has another one.
func (p *LaneStates) StreamID(ctx context.Context, lane int) (string, error) {
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return "", err
	}
	return state.StreamID(), nil
}

// Read returns the lane state of a lane, the zero one if nothing was stored yet.
//
// The error is flow.ErrGap if the lane no longer holds what the checkpoint depends on: the same
// stream with earlier data, as after a restore. A recreated stream is not an error here: its
// id differs from LaneState.StreamID.
func (p *LaneStates) Read(ctx context.Context, lane int) (flow.LaneState, error) {
	pos, unread := p.entry(ctx, lane)
	// Read after the lane state, which may move meanwhile.
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return flow.LaneState{}, err
	}
	if unread == nil && pos.StreamID == state.StreamID() {
		return pos, p.check(ctx, state, pos)
	}
	return pos, unread
}

// entry reads a lane state unchecked; the zero one if none.
func (p *LaneStates) entry(ctx context.Context, lane int) (pos flow.LaneState, err error) {
	entry, err := p.stream.checkpoints.Get(ctx, p.key(lane))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return flow.LaneState{}, nil
	}
	if err != nil {
		return flow.LaneState{}, unavailable(fmt.Errorf("read the lane state of %s: %w", p.of(lane), err), 2*time.Second)
	}
	if err := json.Unmarshal(entry.Value(), &pos); err != nil {
		return flow.LaneState{Revision: entry.Revision()}, fmt.Errorf("read the lane state of %s: %w", p.of(lane), err)
	}
	pos.Revision = entry.Revision()
	return pos, nil
}

// check compares a lane state with its lane: the last message read must exist and be the same.
// No clocks are compared: a message keeps the time at which the stream stored it.
func (p *LaneStates) check(ctx context.Context, lane *Lane, pos flow.LaneState) error {
	needed, stamp := pos.Done, pos.Stamp
	if pos.Claim != nil && pos.Claim.Last > needed {
		needed, stamp = pos.Claim.Last, pos.Claim.Stamp
	}
	if lane.Last < needed {
		return p.stream.endsBefore(lane, gap("lane %d ends at %d, but %d was read from it: it was set back", lane.Number, lane.Last, needed))
	}
	p.stream.reaches(lane)
	if stamp == 0 {
		return nil // unknown
	}
	now, err := p.stamp(ctx, lane, needed)
	if err != nil {
		return err
	}
	if now != 0 && now != stamp {
		return gap("message %d of lane %d was stored at %s, but the one read before at %s: the lane was set back, and other messages have its sequences",
			needed, lane.Number, moment(now), moment(stamp))
	}
	return nil
}

// stamp is when the lane stored a message, ns since 1970; 0 if the lane does not hold it. A former
// leader may lack it, and then lacks all later ones too: its answer is no proof of a purge.
func (p *LaneStates) stamp(ctx context.Context, lane *Lane, seq uint64) (int64, error) {
	if seq < max(lane.First, 1) || seq > lane.Last {
		return 0, nil
	}
	msg, err := p.stream.js.Get(ctx, LaneName(lane.Number), seq, ">")
	if err != nil {
		return 0, unavailable(fmt.Errorf("read message %d of lane %d: %w", seq, lane.Number, err), 2*time.Second)
	}
	if msg.Sequence != seq {
		return 0, nil
	}
	return msg.Time.UnixNano(), nil
}

func moment(stamp int64) string { return time.Unix(0, stamp).UTC().Format(time.RFC3339Nano) }

// CompareAndSwap writes next if the entry is at next.Revision (0: does not exist), and returns
// it with its new revision. The error is flow.ErrNotOwner if the entry has moved; after any
// other error it may be written, and the same call again settles it.
func (p *LaneStates) CompareAndSwap(ctx context.Context, lane int, next flow.LaneState) (flow.LaneState, error) {
	value, err := json.Marshal(next)
	if err != nil {
		return flow.LaneState{}, fmt.Errorf("write the lane state of %s: %w", p.of(lane), err)
	}
	key := p.key(lane)
	var revision uint64
	if next.Revision == 0 {
		revision, err = p.stream.checkpoints.Create(ctx, key, value)
	} else {
		revision, err = p.stream.checkpoints.Update(ctx, key, value, next.Revision)
	}
	switch {
	case err == nil:
		next.Revision = revision
		return next, nil
	case isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		return p.moved(ctx, lane, next, value)
	}
	return flow.LaneState{}, unavailable(fmt.Errorf("write the lane state of %s: %w", p.of(lane), err), time.Second)
}

// Reset declares the messages of a lane up to last unchanged: its checkpoint was written for them, or they were
// appended since. All later ones belong to a new incarnation, whose id is above every earlier one and above. It is for
// operators, after a stream was recreated, or NATS or its lane states were restored or lost.
//
// Nothing is skipped: the lane resumes at its checkpoint, or after last if that is earlier and the checkpoint's message is
// gone, or without a checkpoint at its first message. Messages up to last keep their incarnation, so that stored ones are recognised. So do messages up to a
// checkpoint, to the end of an open claim, or to the last of an earlier reset, if the lane still holds that message: they
// are as they were then. The owner is fenced and takes the lane again. Changes resume likewise, after last.
func (p *LaneStates) Reset(ctx context.Context, lane int, last, above uint64) (flow.LaneState, error) {
	state, err := p.stream.state(ctx, lane)
	if err != nil {
		return flow.LaneState{}, err
	}
	if last > state.Last {
		return flow.LaneState{}, fmt.Errorf("reset lane %d: message %d is not in it, it ends at %d", lane, last, state.Last)
	}
	before, err := p.entry(ctx, lane)
	if err != nil && before.Revision == 0 { // a corrupt one is replaced
		return flow.LaneState{}, err
	}
	changes := NewChangeStates(p.stream)
	if lane == 0 {
		applied, err := changes.entry(ctx, lane)
		if err != nil && applied.Revision == 0 {
			return flow.LaneState{}, err
		}
		above = max(above, applied.Incarnation())
	}
	id := max(uint64(state.Now.UnixMilli()), before.Incarnation()+1, above+1)
	kept, read := last, []flow.Claim{{Last: before.Done, Stamp: before.Stamp}, {Last: before.Base(), Stamp: before.BaseStamp}}
	if before.Claim != nil && before.Claim.Last > last {
		read = append(read, *before.Claim)
		before.Claim = nil // decided again
	}
	for _, one := range read {
		if one.Last <= kept || one.Stamp == 0 || before.StreamID != state.StreamID() {
			continue
		}
		stamp, err := p.stamp(ctx, state, one.Last)
		if err != nil {
			return flow.LaneState{}, err
		}
		if stamp == one.Stamp {
			kept = one.Last
		}
	}
	next, err := p.behind(ctx, state, before, kept, id)
	if err != nil {
		return flow.LaneState{}, err
	}
	at, err := p.CompareAndSwap(ctx, lane, next)
	if err != nil || lane != 0 {
		return at, err
	}
	// Reset. A crash here leaves the changes unchanged, or halted: another Reset moves
	// them.
	return at, changes.follow(ctx, state, last, id)
}

// behind is flow.LaneState.Behind with the lane's messages.
func (p *LaneStates) behind(ctx context.Context, lane *Lane, before flow.LaneState, last, id uint64) (flow.LaneState, error) {
	next := before.Behind(last, max(lane.First, 1), id)
	next.StreamID = lane.StreamID()
	var err error
	if next.Stamp, err = p.stamp(ctx, lane, next.Done); err == nil {
		next.BaseStamp, err = p.stamp(ctx, lane, last)
	}
	return next, err
}

// follow resets the changes of a lane, even while an ingester applies them. Without a
// checkpoint they start at the first message.
func (p *LaneStates) follow(ctx context.Context, lane *Lane, last, id uint64) error {
	for try := 1; ; try++ {
		before, err := p.entry(ctx, lane.Number)
		if err != nil && before.Revision == 0 {
			return err
		}
		next := flow.LaneState{Revision: before.Revision}
		if before.Incarnation() > 0 {
			if next, err = p.behind(ctx, lane, before, last, id); err != nil {
				return err
			}
			next.DedupFrom, next.Reset = 0, false
		} else if before.Revision == 0 {
			return nil
		}
		_, err = p.CompareAndSwap(ctx, lane.Number, next)
		if err == nil || try == holdTries || !errors.Is(err, flow.ErrNotOwner) {
			return err
		}
	}
}

// moved reports whether this very call moved the entry, in an attempt whose answer was lost: no
// other owner writes the same.
func (p *LaneStates) moved(ctx context.Context, lane int, next flow.LaneState, value []byte) (flow.LaneState, error) {
	entry, err := p.stream.checkpoints.Get(ctx, p.key(lane))
	if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return flow.LaneState{}, unavailable(fmt.Errorf("read the lane state of %s: %w", p.of(lane), err), time.Second)
	}
	if err == nil && entry.Revision() > next.Revision && bytes.Equal(entry.Value(), value) {
		next.Revision = entry.Revision()
		return next, nil
	}
	return flow.LaneState{}, fmt.Errorf("%s: %w", p.of(lane), flow.ErrNotOwner)
}

// fitting is the state of a lane if it matches the lane; the zero one if the stream was
// recreated, or its data is of an earlier time: then nothing is known to be stored or applied.
func (p *LaneStates) fitting(ctx context.Context, lane *Lane) (flow.LaneState, error) {
	pos, err := p.Read(ctx, lane.Number)
	if errors.Is(err, flow.ErrGap) {
		return flow.LaneState{}, nil
	}
	if err != nil || pos.StreamID != "" && pos.StreamID != lane.StreamID() {
		return flow.LaneState{}, err
	}
	return pos, nil
}
