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
// who meet it at once, one is first; the other hears of it when it looks again.
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

// swapSource writes an entry if nobody has since it was read, and returns it
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
		return Source{}, fmt.Errorf("the lanes of source %q were written by somebody else meanwhile", next.Name)
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
