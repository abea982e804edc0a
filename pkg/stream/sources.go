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

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
)

// Source is an engine and its lane list. A resent record must reach the lane that had it
// before, since each lane deduplicates only what it stored. So the list is written once, when
// the source is first seen, and changes only by Spread.
type Source struct {
	Name     string `json:"source"`         // from tokens
	Lanes    []int  `json:"lanes"`          // list[partition mod length], list[hash of the id mod length], or the first
	Revision uint64 `json:"revision"`       // of the list, raised by every write; see renew
	Move     []int  `json:"move,omitempty"` // the new list during a move: posts are refused meanwhile

	entry uint64 // revision of its entry in the bucket
}

// usable is flow.ErrHeld while the source's records cannot be routed.
func (s *Source) usable() error {
	switch {
	case len(s.Lanes) == 0:
		return held(10*time.Second, "%q has a corrupt entry", s.Name)
	case s.Move != nil:
		return held(10*time.Second, "%q is being moved to lanes %v", s.Name, s.Move)
	}
	return nil
}

// renew makes the next revision a time in ms: above those that a lost or set-back bucket had, and
// above their move markers.
func (s *Source) renew() { s.Revision = max(s.Revision, uint64(time.Now().UnixMilli())-1) }

// sourceKey is the key of a source in its bucket.
func sourceKey(name string) string { return "s" + base64.RawURLEncoding.EncodeToString([]byte(name)) }

// sourceState identifies a state of the bucket of sources.
type sourceState struct {
	created time.Time
	last    uint64
}

// lookUpSources looks up all sources. It reads only changes since old; usually one request
// shows that nothing has.
func (s *Stream) lookUpSources(ctx context.Context, old *view) (map[string]*Source, sourceState, error) {
	name := "KV_" + SourceBucket
	info, err := s.js.Info(ctx, name, "")
	if err != nil {
		return nil, sourceState{}, fmt.Errorf("look up sources: %w", err)
	}
	now := sourceState{info.Created, info.State.LastSeq}
	known, from := map[string]*Source{}, uint64(1)
	switch {
	case old == nil || !old.sourcesAt.created.Equal(now.created) || now.last < old.sourcesAt.last:
		// All of them: the first look-up, or the bucket was recreated or set back, as
		// by a restore.
	case now.last == old.sourcesAt.last:
		return old.sources, now, nil
	default:
		known, from = maps.Clone(old.sources), old.sourcesAt.last+1
	}
	for msg, err := range s.scan(ctx, name, broker.From{Seq: from}) {
		if err != nil {
			return nil, sourceState{}, fmt.Errorf("look up sources: %w", err)
		}
		s.learn(known, msg)
	}
	return known, now, nil
}

// learn adds one entry. A corrupt one affects only its source.
func (s *Stream) learn(known map[string]*Source, msg broker.Message) {
	key := strings.TrimPrefix(msg.Subject, "$KV."+SourceBucket+".s")
	name, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil {
		s.log.Error("invalid key in the bucket of sources", "key", key)
		return
	}
	if first(msg.Header, headerKVOperation) != "" { // deleted by hand: the next record creates it
		delete(known, string(name))
		return
	}
	source := &Source{entry: msg.Seq}
	if err := json.Unmarshal(msg.Data, source); err != nil || len(source.Lanes) == 0 {
		s.log.Error("the entry of a source is corrupt: its posts are refused until it is fixed", "source", string(name), "error", err)
		source = &Source{entry: msg.Seq}
	}
	source.Name = string(name)
	known[source.Name] = source
}

// meet gives a new source its lanes: all known ones. Of two concurrent processes one is first;
// the other finds it at its next look-up.
func (s *Stream) meet(ctx context.Context, name string, lanes []*Lane) error {
	source := Source{Name: name}
	source.renew()
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
		s.log.Info("new source", "source", name, "lanes", source.Lanes)
		return nil
	case errors.Is(err, jetstream.ErrKeyExists), isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		return nil
	}
	return fmt.Errorf("assign lanes to source %q: %w", name, err)
}

// lookUpRoute returns a source and the known lanes. It looks up again if the last look-up may be
// older than the source or one of its lanes, and adds a new source.
func (s *Stream) lookUpRoute(ctx context.Context, name string) (*Source, *view, error) {
	v, err := s.routable(ctx)
	for look := 1; err == nil; look++ {
		source := v.sources[name]
		switch {
		case source != nil && (source.usable() != nil || v.has(source.Lanes)):
			return source, v, nil
		case look == 1:
		case source != nil:
			return nil, nil, held(10*time.Second, "%q: one of its lanes %v is missing", name, source.Lanes)
		case look > 2:
			return nil, nil, fmt.Errorf("%w: source %q is not visible yet", errStale, name)
		default:
			asking, done := s.link.attempt(ctx, patience)
			err = lossCause(asking, s.meet(asking, name, v.lanes))
			done()
			if err != nil {
				return nil, nil, fmt.Errorf("%w: %w", errStale, err)
			}
			// Written. A crash here leaves a source without records.
		}
		v, err = s.lookNow(ctx)
	}
	return nil, nil, err
}

// source reads the entry of a source from its leader; found is false if it was never seen.
func (s *Stream) source(ctx context.Context, name string) (source Source, found bool, err error) {
	entry, err := s.sources.Get(ctx, sourceKey(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return Source{}, false, nil
	}
	if err != nil {
		return Source{}, false, unavailable(fmt.Errorf("read the lanes of source %q: %w", name, err), 2*time.Second)
	}
	if err := json.Unmarshal(entry.Value(), &source); err != nil {
		return Source{}, false, fmt.Errorf("the entry %s of source %q is corrupt: %w", entry.Key(), name, err)
	}
	source.entry = entry.Revision()
	return source, true, nil
}

// Revision is the revision of a source's lane list, from the bucket's leader; 0 if none.
func (s *Stream) Revision(ctx context.Context, name string) (uint64, error) {
	source, _, err := s.source(ctx, name)
	return source.Revision, err
}

// swapSource writes an entry with the next revision of its list, by compare-and-swap.
func (s *Stream) swapSource(ctx context.Context, next Source) (Source, error) {
	next.Revision++
	value, err := json.Marshal(next)
	if err != nil {
		return Source{}, err
	}
	written, err := s.sources.Update(ctx, sourceKey(next.Name), value, next.entry)
	switch {
	case err == nil:
		next.entry = written
		return next, nil
	case isCode(err, codeWrongLastSequence, codeWrongLastSequenceR3):
		// It may be this very write, whose answer was lost.
		if entry, err := s.sources.Get(ctx, sourceKey(next.Name)); err == nil && entry.Revision() > next.entry && bytes.Equal(entry.Value(), value) {
			next.entry = entry.Revision()
			return next, nil
		}
		return Source{}, changedMeanwhile(next.Name)
	}
	return Source{}, unavailable(fmt.Errorf("write the lanes of source %q: %w", next.Name, err), 2*time.Second)
}

func changedMeanwhile(source string) error {
	return fmt.Errorf("the lanes of source %q were changed concurrently by another process, or NATS was set back", source)
}

// Sources are the sources at the last look-up, by name.
func (s *Stream) Sources() []Source {
	var list []Source
	for _, source := range s.view.Load().sources {
		list = append(list, *source)
	}
	slices.SortFunc(list, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
