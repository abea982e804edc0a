// Package state keeps users and dataset fields in a NATS key-value bucket: one
// change.Entry per target under its Key.
//
// Only the ingester writes, in stream order, by compare-and-swap. Every entry carries the
// place of its last change, so reapplied messages, after a crash or by a stale owner,
// change nothing: the bucket can always be rebuilt from the stream.
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

// Bucket returns the bucket of users and fields, or fails until it is open.
// *stream.Stream's State is the real one.
type Bucket func() (broker.KeyValue, error)

// Store reads and writes the entries of a bucket.
type Store struct{ bucket Bucket }

// New makes a store of a bucket, whose direct gets must be off (*stream.Stream's State sets
// that): a replica may lack an entry that was just written.
func New(bucket Bucket) *Store { return &Store{bucket: bucket} }

// Entry returns the entry of a target after the changes applied so far; Seq 0 if none. The
// error is flow.ErrUnavailable, unless the entry is corrupt.
func (s *Store) Entry(ctx context.Context, target change.Target) (change.Entry, error) {
	e, _, err := s.read(ctx, target.Key())
	return e, err
}

// Entries iterates over the entries whose keys match a filter, unordered, tombstones
// included: ">" for all, "user.>" for users, or the key of a target. It ends after the
// first error.
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

// values iterates over the raw entries of the bucket.
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
				if kv == nil || !yield(kv, nil) { // nil: end of the entries present at the start
					return
				}
			}
		}
	}
}

// Incarnation returns the latest incarnation of lane 0 in any entry: changes of earlier
// ones would be ignored.
func (s *Store) Incarnation(ctx context.Context) (last uint64, err error) {
	for e, err := range s.Entries(ctx, ">") {
		var damaged *flow.StoreError
		if errors.As(err, &damaged) {
			continue // changes of it are dead-lettered, not ignored
		}
		if err != nil {
			return 0, err
		}
		last = max(last, e.Incarnation)
	}
	return last, nil
}

// maxConflicts bounds the retries of one update. The only other writer is a superseded owner.
const maxConflicts = 10

// update replaces the entry under key by the result of next, unless unchanged, without
// losing other updates. After an error the outcome is unknown; the update can be retried.
// conflicts counts retries.
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
	return unavailable("write an entry", errors.New("too many conflicting writers"))
}

// read returns the entry under key and its revision, zeros if there is none.
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

// errConflict means that another writer has replaced the entry.
var errConflict = errors.New("the entry has another revision")

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
		return refused(&change.BadChangeError{Code: "document_too_large", Reason: "the resulting document would exceed the message limit of NATS"})
	}
	return unavailable("write an entry", err)
}

func decode(kv jetstream.KeyValueEntry) (change.Entry, error) {
	e, err := change.DecodeEntry(kv.Value())
	if err != nil || e.Target.Key() != kv.Key() {
		err = fmt.Errorf("the entry %s at revision %d is corrupt", kv.Key(), kv.Revision())
		return change.Entry{}, &flow.StoreError{Class: flow.ClassPoison, Err: err}
	}
	return e, nil
}

func unavailable(doing string, err error) error {
	err = fmt.Errorf("%s: %w: %w", doing, flow.ErrUnavailable, err)
	return &flow.RetryError{Err: err, After: 2 * time.Second}
}
