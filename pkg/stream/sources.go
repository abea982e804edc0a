package stream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/flow"
)

// Source is an engine as the lanes know it: which of them its records go to. A
// record that is sent again must find the lane that had it before, because each
// lane by itself knows what it has seen. So the list is written once, when the
// source is first seen, and changes only by Spread.
type Source struct {
	Name   string `json:"source"`           // as the tokens say
	Lanes  []int  `json:"lanes"`            // a record of slot i goes to Lanes[i]
	Moving []int  `json:"moving,omitempty"` // where it is being moved to: its posts are refused meanwhile

	revision uint64 // of its entry
}

// sourceKey names a source in its bucket, whatever characters it has.
func sourceKey(name string) string { return "s" + base64.RawURLEncoding.EncodeToString([]byte(name)) }

// sourceState tells whether the bucket of sources has changed.
type sourceState struct {
	created time.Time
	last    uint64
}

// lookUpSources looks up every source. What is known already is not read again:
// mostly one question tells that nothing has changed.
func (s *Stream) lookUpSources(ctx context.Context, old *view) (map[string]*Source, sourceState, error) {
	name := "KV_" + SourceBucket
	handle, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, sourceState{}, fmt.Errorf("look up sources: %w", err)
	}
	info := handle.CachedInfo()
	now := sourceState{info.Created, info.State.LastSeq}
	known, from := map[string]*Source{}, uint64(1)
	switch {
	case old == nil || !old.sourcesAt.created.Equal(now.created) || now.last < old.sourcesAt.last:
		// All of them: nothing is known yet, or the bucket was made again or set
		// back, as by a backup.
	case now.last == old.sourcesAt.last:
		return old.sources, now, nil
	default:
		known, from = maps.Clone(old.sources), old.sourcesAt.last+1
	}
	for msg, err := range s.scan(ctx, name, scanFrom{seq: from}) {
		if err != nil {
			return nil, sourceState{}, fmt.Errorf("look up sources: %w", err)
		}
		s.learn(known, msg)
	}
	return known, now, nil
}

// learn takes over one entry. A damaged one stops its source and no other.
func (s *Stream) learn(known map[string]*Source, msg scanned) {
	key := strings.TrimPrefix(msg.Subject(), "$KV."+SourceBucket+".s")
	name, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil {
		s.log.Error("an entry in the bucket of sources names none", "key", key)
		return
	}
	if first(msg.Headers(), headerKVOperation) != "" { // deleted by hand: the next record begins anew
		delete(known, string(name))
		return
	}
	source := &Source{revision: msg.seq}
	if err := json.Unmarshal(msg.Data(), source); err != nil || len(source.Lanes) == 0 {
		s.log.Error("the entry of a source is damaged: its posts are refused until it is mended", "source", string(name), "error", err)
		source = &Source{revision: msg.seq}
	}
	source.Name = string(name)
	known[source.Name] = source
}

// meet gives a source that is first seen its lanes: all that are known. Of two
// processes that meet it at once, one is first; the other hears of it when it looks again.
func (s *Stream) meet(ctx context.Context, name string, lanes []*Lane) error {
	source := Source{Name: name}
	for _, lane := range lanes {
		source.Lanes = append(source.Lanes, lane.Number)
	}
	value, err := json.Marshal(source)
	if err != nil {
		return err
	}
	_, err = s.sources.Create(ctx, sourceKey(name), value)
	switch {
	case err == nil:
		s.log.Info("a source is seen for the first time", "source", name, "lanes", source.Lanes)
		return nil
	case errors.Is(err, jetstream.ErrKeyExists), isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		return nil
	}
	return fmt.Errorf("give source %q its lanes: %w", name, err)
}

// source reads the entry of a source from its leader; found is false when it
// was never seen.
func (s *Stream) source(ctx context.Context, name string) (source Source, found bool, err error) {
	entry, err := s.sources.Get(ctx, sourceKey(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Source{}, false, nil
	}
	if err != nil {
		return Source{}, false, unavailable(fmt.Errorf("read the lanes of source %q: %w", name, err), 2*time.Second)
	}
	if err := json.Unmarshal(entry.Value(), &source); err != nil {
		return Source{}, false, fmt.Errorf("the entry %s of source %q is damaged: %w", entry.Key(), name, err)
	}
	source.revision = entry.Revision()
	return source, true, nil
}

// swapSource writes an entry unless another has since it was read, and returns it
// with its new revision.
func (s *Stream) swapSource(ctx context.Context, next Source) (Source, error) {
	value, err := json.Marshal(next)
	if err != nil {
		return Source{}, err
	}
	revision, err := s.sources.Update(ctx, sourceKey(next.Name), value, next.revision)
	switch {
	case err == nil:
		next.revision = revision
		return next, nil
	case isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		// It may have been this very write, in an attempt whose answer was lost.
		if entry, err := s.sources.Get(ctx, sourceKey(next.Name)); err == nil && entry.Revision() > next.revision && bytes.Equal(entry.Value(), value) {
			next.revision = entry.Revision()
			return next, nil
		}
		return Source{}, fmt.Errorf("the lanes of source %q were written by another process meanwhile", next.Name)
	}
	return Source{}, unavailable(fmt.Errorf("write the lanes of source %q: %w", next.Name, err), 2*time.Second)
}

// Sources are the sources as they were looked up last, by name.
func (s *Stream) Sources() []Source {
	var list []Source
	for _, source := range s.view.Load().sources {
		list = append(list, *source)
	}
	slices.SortFunc(list, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Spreading says where a source is to go.
type Spreading struct {
	Source string
	Lanes  []int                // a record of slot i will go to Lanes[i]
	Say    func(string, ...any) // told what happens next; default none
}

const (
	// spreadLook is how often it is looked whether a lane is stored past its
	// fence.
	spreadLook = 100 * time.Millisecond

	// spreadQuestion is how long one question may take before it is asked again:
	// the connection it went out on may be gone.
	spreadQuestion = 5 * time.Second

	// undoLimit is how long the end of an attempt may take.
	undoLimit = 30 * time.Second
)

// Spread moves a source to other lanes. Each lane knows only what it has seen
// itself, so whatever was sent before must be stored before anything goes
// another way:
//
//	mark the source → wait until no api sends by the old list → fences → wait until they are stored → write the new list
//
// From the mark to the end its posts are refused with flow.ErrHeld. When ctx
// ends before, or something fails, the mark is taken back and the source stays
// where it is. A crash leaves the mark: Spread again begins anew, to the same
// lanes or to others, and Stay takes the mark back.
func (s *Stream) Spread(ctx context.Context, to Spreading) error {
	if to.Say == nil {
		to.Say = func(string, ...any) {}
	}
	var source Source
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		source, err = s.markMoving(ctx, to) // a mark whose answer was lost is found
		return err
	})
	if err != nil || source.Moving == nil {
		return err
	}
	if err := s.moveMarked(ctx, source, to.Say); err != nil {
		return errors.Join(err, s.unmark(ctx, source))
	}
	return nil
}

// markMoving marks a source, unless it is where it should be.
func (s *Stream) markMoving(ctx context.Context, to Spreading) (Source, error) {
	if err := s.Refresh(ctx); err != nil {
		return Source{}, err
	}
	for i, lane := range to.Lanes {
		if _, ok := s.view.Load().lane(lane); !ok {
			return Source{}, fmt.Errorf("there is no lane %d", lane)
		}
		if slices.Contains(to.Lanes[:i], lane) {
			return Source{}, fmt.Errorf("lane %d is named twice", lane)
		}
	}
	source, found, err := s.source(ctx, to.Source)
	switch {
	case err != nil:
		return Source{}, err
	case !found:
		return Source{}, fmt.Errorf("source %q has not been seen yet: its first record gives it all lanes there are", to.Source)
	case len(to.Lanes) == 0:
		return Source{}, errors.New("a source needs a lane")
	case source.Moving == nil && slices.Equal(source.Lanes, to.Lanes):
		to.Say("source %q has lanes %v already", to.Source, to.Lanes)
		return source, nil
	case source.Moving != nil:
		to.Say("source %q is marked by an earlier attempt: beginning anew", to.Source)
	}
	source.Moving = to.Lanes
	return s.swapSource(ctx, source)
}

// moveMarked moves a source once it is marked.
func (s *Stream) moveMarked(ctx context.Context, source Source, say func(string, ...any)) error {
	// Marked. An api that knows sources from before the mark may act on that for a
	// while. And the lanes must have forgotten the ids of requests: one that is
	// repeated afterwards goes another way.
	wait := s.cfg.Fresh + attemptLimit + time.Second
	for _, lane := range s.view.Load().lanes {
		wait = max(wait, s.cfg.Fresh+attemptLimit+lane.Window)
	}
	say("records of source %q are refused from now on; waiting %v until no api sends to lanes %v any more", source.Name, wait, source.Lanes)
	if !sleep(ctx, wait) {
		return fmt.Errorf("wait until no api sends to the old lanes: %w", ctx.Err())
	}
	for _, lane := range source.Lanes {
		var fence uint64
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			fence, err = s.fence(ctx, lane, source.Name) // two say no more than one
			return err
		})
		if err != nil {
			return err
		}
		say("waiting until lane %d is stored up to message %d", lane, fence)
		if err := s.storedUpTo(ctx, lane, fence); err != nil {
			return fmt.Errorf("wait until lane %d is stored up to message %d: %w", lane, fence, err)
		}
	}
	// All of the source is stored. A crash here leaves the mark.
	source.Lanes, source.Moving = source.Moving, nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		return err
	}
	say("records of source %q go to lanes %v", source.Name, source.Lanes)
	return nil
}

// fence puts a message into a lane behind the last record of a source.
func (s *Stream) fence(ctx context.Context, lane int, source string) (uint64, error) {
	body, err := json.Marshal(map[string]string{"fence": source}) // for those who look at the lane
	if err != nil {
		return 0, err
	}
	ack, err := s.js.PublishMsg(ctx, &nats.Msg{Subject: FenceTopic(lane), Header: nats.Header{headerSource: {source}}, Data: body})
	if err != nil {
		_, _, answer := judge(err)
		return 0, fmt.Errorf("put a fence into lane %d: %w", lane, answer)
	}
	return ack.Sequence, nil
}

// storedUpTo waits until a lane is stored up to a message.
func (s *Stream) storedUpTo(ctx context.Context, number int, seq uint64) error {
	for {
		var lane *Lane
		var at flow.Position
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			if lane, err = s.state(ctx, number); err == nil {
				at, err = NewPositions(s).fitting(ctx, lane)
			}
			return err
		})
		switch {
		case err != nil:
			return err
		case lane.Last < seq:
			return fmt.Errorf("the lane ends at %d by now: it was made again", lane.Last)
		case at.Done >= seq:
			return nil
		case !sleep(ctx, spreadLook):
			return ctx.Err()
		}
	}
}

// insist asks NATS until it is answered or ctx ends, each time for a while: a
// question whose connection is lost is never answered.
func (s *Stream) insist(ctx context.Context, ask func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, spreadQuestion)
		err := ask(limited)
		cancel()
		if err == nil || !errors.Is(err, flow.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if !sleep(ctx, spreadLook) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// unmark takes the mark of an attempt back.
func (s *Stream) unmark(ctx context.Context, source Source) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	source.Moving = nil
	if err := s.insist(ctx, func(ctx context.Context) error {
		_, err := s.swapSource(ctx, source)
		return err
	}); err != nil {
		if now, found, asked := s.source(ctx, source.Name); asked == nil && found && now.Moving == nil {
			return nil // another process was quicker, or the end of this attempt was written though its answer was lost
		}
		return fmt.Errorf("source %q is still marked, and its records are refused until it is moved or told to stay: %w", source.Name, err)
	}
	return nil
}

// Stay takes the mark of an attempt back that was interrupted.
func (s *Stream) Stay(ctx context.Context, name string) error {
	var source Source
	var found bool
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		source, found, err = s.source(ctx, name)
		return err
	})
	if err != nil || !found || source.Moving == nil {
		return err
	}
	return s.unmark(ctx, source)
}

// Fences are when fences were put into the lanes, in order: from there on the
// records of a source are in other lanes.
func (s *Stream) Fences(ctx context.Context) (all []time.Time, err error) {
	for _, lane := range s.LaneNumbers() {
		state, err := s.state(ctx, lane)
		if err != nil {
			return nil, err
		}
		handle, err := s.handle(ctx, lane)
		if err != nil {
			return nil, err
		}
		for next := max(state.First, 1); next <= state.Last; {
			m, err := handle.GetMsg(ctx, next, jetstream.WithGetMsgSubject(FenceTopic(lane)))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("look for fences in lane %d: %w", lane, err)
			}
			all = append(all, m.Time)
			next = m.Sequence + 1
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all, nil
}
