// Package state keeps users and dataset fields in a NATS key-value bucket: one
// change.Entry per target under its Key.
//
// Only the ingester writes, in the order of the stream, by compare-and-swap.
// Every entry carries the place of the last change in it, so that messages read
// again, after a crash or by an owner that has lost its lane, change nothing: the
// bucket can always be rebuilt from the stream's changes.
package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/change"
	"sluice/pkg/flow"
)

// Bucket gives the bucket of users and fields, or fails while it is not open yet.
// *stream.Stream's State is the real one.
type Bucket func() (broker.KeyValue, error)

// Store reads and writes the entries of a bucket.
type Store struct{ bucket Bucket }

// New makes a store of a bucket. Reads of the bucket must ask the leader
// (direct gets off), as *stream.Stream's State sees to: a replica may not have
// an entry that was just written.
func New(bucket Bucket) *Store { return &Store{bucket: bucket} }

// Entry returns what is remembered of a target, as of the changes applied so
// far; an entry with Seq 0 when that is nothing. The error is
// flow.ErrUnavailable, unless the entry is damaged.
func (s *Store) Entry(ctx context.Context, target change.Target) (change.Entry, error) {
	e, _, err := s.read(ctx, target.Key())
	return e, err
}

// Entries gives every entry whose key matches a filter, in no certain order:
// ">" for all, "user.>" for users, or the key of a target. Tombstones are among
// them. It ends after the first error.
func (s *Store) Entries(ctx context.Context, filter string) iter.Seq2[change.Entry, error] {
	return func(yield func(change.Entry, error) bool) {
		for kv, err := range s.values(ctx, filter) {
			var e change.Entry
			if err == nil {
				e, err = decode(kv)
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// values gives the entries as the bucket keeps them.
func (s *Store) values(ctx context.Context, filter string) iter.Seq2[jetstream.KeyValueEntry, error] {
	return func(yield func(jetstream.KeyValueEntry, error) bool) {
		bucket, err := s.bucket()
		if err != nil {
			yield(nil, err)
			return
		}
		watch, err := bucket.Watch(ctx, filter, false)
		if err != nil {
			yield(nil, unavailable("list the entries", err))
			return
		}
		defer func() { _ = watch.Stop() }()
		for {
			select {
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			case kv, ok := <-watch.Updates():
				if !ok {
					yield(nil, unavailable("list the entries", errors.New("the watch ended")))
					return
				}
				if kv == nil || !yield(kv, nil) { // nil: all that were there when it began
					return
				}
			}
		}
	}
}

// Incarnation returns the latest incarnation of lane 0 in any entry: a change of an
// incarnation that is not above it would be ignored.
func (s *Store) Incarnation(ctx context.Context) (last uint64, err error) {
	for e, err := range s.Entries(ctx, ">") {
		var damaged *flow.StoreError
		if errors.As(err, &damaged) {
			continue // no change is ignored for it: none is applied to it
		}
		if err != nil {
			return 0, err
		}
		last = max(last, e.Incarnation)
	}
	return last, nil
}

// maxConflicts is how often one update gives way to others before it fails.
// There are no others, but for an owner of the lane that does not know yet
// that it has lost it.
const maxConflicts = 10

// update replaces the entry under key by what next makes of it, unless that
// is the same. No other update is lost. After an error the entry may be
// replaced or not; the same update can be tried again. conflicts counts the updates
// of others that came first.
func (s *Store) update(ctx context.Context, key string, conflicts prometheus.Counter, next func(change.Entry) (change.Entry, bool, error)) error {
	for range maxConflicts {
		e, revision, err := s.read(ctx, key)
		if err != nil {
			return err
		}
		e, changed, err := next(e)
		if err != nil || !changed {
			return err
		}
		value, err := e.Encode()
		if err != nil {
			return err
		}
		if err = s.write(ctx, key, value, revision); !errors.Is(err, errConflict) {
			return err
		}
		conflicts.Inc()
	}
	return unavailable("write an entry", errors.New("others write it all the time"))
}

// read returns the entry under key and its revision, zeros when there is none.
func (s *Store) read(ctx context.Context, key string) (change.Entry, uint64, error) {
	bucket, err := s.bucket()
	if err != nil {
		return change.Entry{}, 0, err
	}
	kv, err := bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return change.Entry{}, 0, nil
	}
	if err != nil {
		return change.Entry{}, 0, unavailable("read an entry", err)
	}
	e, err := decode(kv)
	return e, kv.Revision(), err
}

// errConflict says that another writer has written the entry meanwhile.
var errConflict = errors.New("another revision was written")

// write replaces the entry of this revision, 0 for none or a deleted one.
func (s *Store) write(ctx context.Context, key string, value []byte, revision uint64) (err error) {
	bucket, err := s.bucket()
	if err != nil {
		return err
	}
	if revision == 0 {
		_, err = bucket.Create(ctx, key, value)
	} else {
		_, err = bucket.Update(ctx, key, value, revision)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrKeyExists), errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return errConflict
	case errors.Is(err, nats.ErrMaxPayload):
		return refused(&change.BadChangeError{Code: "document_too_large", Reason: "the document would be larger than a NATS message may be"})
	}
	return unavailable("write an entry", err)
}

func decode(kv jetstream.KeyValueEntry) (change.Entry, error) {
	e, err := change.DecodeEntry(kv.Value())
	if err != nil || e.Target.Key() != kv.Key() {
		err = fmt.Errorf("the entry %s of revision %d is damaged", kv.Key(), kv.Revision())
		return change.Entry{}, &flow.StoreError{Class: flow.ClassPoison, Err: err}
	}
	return e, nil
}

func unavailable(doing string, err error) error {
	err = fmt.Errorf("%s: %w: %w", doing, flow.ErrUnavailable, err)
	return &flow.RetryError{Err: err, After: 2 * time.Second}
}
