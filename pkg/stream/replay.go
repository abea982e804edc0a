package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/change"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// ErrHistoryPurged means that a replay was interrupted and its lanes have been purged since. Only
// the warehouse shows whether it was published.
var ErrHistoryPurged = errors.New("an earlier replay was interrupted, and its messages may have been purged")

// ErrDropped means that the dead letter was dropped.
var ErrDropped = errors.New("the dead letter was dropped")

// replayNote is the ends of the lanes when a replay began: another attempt searches from there.
// It involves no clocks.
type replayNote map[int]replayFrom

type replayFrom struct {
	Stream string `json:"stream"` // StreamID of the lane
	Last   uint64 `json:"last"`   // its last message
}

// Replay publishes a dead letter again, as a request of its source, to the source's current
// lanes, and removes it. It is published once, however often Replay is called or interrupted:
//
//	note the start → publish under an id of its own → note the outcome → remove letter and first note
//
// Another attempt searches the lanes for the id, from their ends in the note. Of two concurrent
// ones the ingester drops one, as of any request. Replayed means that it was already published.
//
// Errors: those of Publish, ErrHistoryPurged and ErrDropped.
func (l *DeadLetters) Replay(ctx context.Context, p *Publisher, d DeadLetter) (flow.Receipt, error) {
	receipt, err := l.replay(ctx, p, d)
	if err != nil {
		return flow.Receipt{}, fmt.Errorf("replay dead letter %d: %w", d.Number, err)
	}
	// Durable in its lane. A crash here leaves letter and note: the next call finds the
	// message by its id.
	if err := l.settle(ctx, d, OutcomeReplayed); err != nil {
		return flow.Receipt{}, fmt.Errorf("replay dead letter %d: %w", d.Number, err)
	}
	// Settled. A crash here leaves a letter that the next call only removes.
	if err := l.stream.remove(ctx, DeadStream, d.Number); err != nil {
		return flow.Receipt{}, err
	}
	// A crash here leaves an orphaned note, which is harmless.
	return receipt, l.forget(ctx, d)
}

func (l *DeadLetters) replay(ctx context.Context, p *Publisher, d DeadLetter) (flow.Receipt, error) {
	switch outcome, err := l.settled(ctx, d); {
	case err != nil:
		return flow.Receipt{}, err
	case outcome == OutcomeReplayed:
		return flow.Receipt{Replayed: true}, nil
	case outcome == OutcomeDropped:
		return flow.Receipt{}, ErrDropped
	}
	id := flow.ReplayID(d.origin, d.Message.ID)
	note, err := l.stream.js.Last(ctx, NoteStream, ReplayPrefix+d.origin)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
	case err != nil:
		return flow.Receipt{}, unavailable(err, 2*time.Second)
	default:
		found, err := l.stream.has(ctx, id, note.Data)
		switch {
		case err != nil:
			return flow.Receipt{}, err
		case found && d.Index >= 0:
			return flow.Receipt{Replayed: true}, nil
		case found: // in any lane, perhaps not in all of them
			return flow.Receipt{}, ErrHistoryPurged
		}
		return l.publish(ctx, p, id, d)
	}
	body, err := l.stream.noteEnds(ctx)
	if err != nil {
		return flow.Receipt{}, err
	}
	_, err = l.stream.js.Publish(ctx, &nats.Msg{Subject: ReplayPrefix + d.origin, Data: body})
	if err != nil && !isOneTooMany(err) { // another process replays it concurrently
		_, _, answer := judge(err, facts{})
		return flow.Receipt{}, answer
	}
	return l.publish(ctx, p, id, d)
}

// noteEnds is a replayNote of the current ends.
func (s *Stream) noteEnds(ctx context.Context) ([]byte, error) {
	if err := s.Refresh(ctx); err != nil {
		return nil, unavailable(err, 2*time.Second)
	}
	ends := replayNote{}
	for _, lane := range s.Lanes() {
		ends[lane.Number] = replayFrom{lane.StreamID(), lane.Last}
	}
	return json.Marshal(ends)
}

// publish publishes the original of a letter.
func (l *DeadLetters) publish(ctx context.Context, p *Publisher, id string, d DeadLetter) (flow.Receipt, error) {
	m := d.Message
	if m.Topic != RecordTopic(m.Lane) {
		c, err := change.Decode(m.Body)
		if err != nil {
			return flow.Receipt{}, err
		}
		c.ID = id
		_, duplicate, err := p.PublishChange(ctx, &c)
		return flow.Receipt{Replayed: duplicate}, err
	}
	return p.Publish(ctx, &flow.Submission{
		ID: id, Hash: record.Hash(m.Body), Subject: m.Subject, Source: m.Source, Received: m.Received, TraceParent: m.TraceParent,
		Records: letterRecords{d},
	})
}

// letterRecords are the records of a dead letter.
type letterRecords struct{ DeadLetter }

// Cut cuts the dead-lettered records for the lanes of its source. An unreadable message goes
// unchanged to the first of them.
func (l letterRecords) Cut(lanes int) ([]flow.Chunk, error) {
	m := l.Message
	asItWas := []flow.Chunk{{Body: m.Body, Encoding: m.Encoding, Records: max(m.Records, 1)}}
	arrays, counts := make([][]byte, lanes), make([]int, lanes)
	add := func(_ int, raw []byte) error {
		lane := record.LaneOf(raw, lanes)
		arrays[lane] = append(append(arrays[lane], ','), raw...)
		counts[lane]++
		return nil
	}
	var err error
	if l.Index >= 0 {
		err = add(0, m.Body)
	} else {
		m.Index, m.Records = 0, 0 // its entry may have a wrong count
		err = record.Each(&m, add)
	}
	if err != nil {
		return asItWas, nil
	}
	var chunks []flow.Chunk
	for lane, array := range arrays {
		if counts[lane] > 0 {
			array[0] = '[' // a message is an array
			chunks = append(chunks, flow.Chunk{Body: s2.Encode(nil, append(array, ']')), Encoding: flow.EncodingS2, Records: counts[lane], Lane: lane})
		}
	}
	if len(chunks) == 0 { // a message without records
		return asItWas, nil
	}
	return chunks, nil
}

// forget removes the note of a replay.
func (l *DeadLetters) forget(ctx context.Context, d DeadLetter) error {
	note, err := l.stream.js.Last(ctx, NoteStream, ReplayPrefix+d.origin)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return unavailable(err, 2*time.Second)
	}
	return l.stream.remove(ctx, NoteStream, note.Sequence)
}

// has reports whether the lanes hold any part of a submission since a note. A lane missing in the
// note is searched from its beginning.
func (s *Stream) has(ctx context.Context, id string, note []byte) (bool, error) {
	var ends replayNote
	if len(note) > 0 {
		if err := json.Unmarshal(note, &ends); err != nil {
			return false, fmt.Errorf("the note of an earlier replay is corrupt: %w", err)
		}
	}
	if err := s.Refresh(ctx); err != nil {
		return false, unavailable(err, 2*time.Second)
	}
	for _, lane := range s.Lanes() {
		from, named := ends[lane.Number]
		if lane.First > from.Last+1 || named && from.Stream != lane.StreamID() {
			return false, ErrHistoryPurged
		}
		for msg, err := range s.scan(ctx, LaneName(lane.Number), broker.From{Seq: from.Last + 1, Heads: true}) {
			if err != nil {
				return false, unavailable(err, 2*time.Second)
			}
			e := readEntry(lane.Number, msg.Seq, msg.At, msg.Subject, msg.Header, nil)
			if slices.ContainsFunc(e.Messages, func(m flow.Message) bool { return m.ID == id }) {
				if e.Patience == 0 {
					return true, nil
				}
				age, err := s.age(ctx, lane.Number, e.LogEnd+1, e.Seq)
				if err != nil || age <= e.Patience {
					return err == nil, err
				}
			}
		}
	}
	return false, nil
}
