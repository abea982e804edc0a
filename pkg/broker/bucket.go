package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of messages that a bucket is made of, as nats.go writes them.
const (
	headerExpected  = "Nats-Expected-Last-Subject-Sequence"
	headerOperation = "KV-Operation"
	headerMarker    = "Nats-Marker-Reason"
	headerRollup    = "Nats-Rollup"
)

// KeyValue is what stream, lease, and state ask of a key-value bucket. *Bucket is the
// real one. Errors are those of nats.go: jetstream.ErrKeyNotFound, ErrKeyExists, and
// ErrKeyRevisionMismatch.
type KeyValue interface {
	// Get reads the entry of a key from the leader.
	Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error)

	// Put writes an entry, whatever is there; Create only when none is there, Update
	// only when its revision is still the one given. They return the new revision.
	Put(ctx context.Context, key string, value []byte) (uint64, error)
	Create(ctx context.Context, key string, value []byte) (uint64, error)
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)

	// Delete leaves a mark that the entry is deleted; only when its revision is still
	// the one given, unless that is 0. Purge does so, and removes what was there.
	Delete(ctx context.Context, key string, revision uint64) error
	Purge(ctx context.Context, key string) error

	// Watch gives the entries whose keys fit a filter, nil once all that were there
	// are given, and then the changes. Its channel is closed when it ends by itself.
	// With deletes it gives the marks of deleted entries as well.
	Watch(ctx context.Context, filter string, deletes bool) (jetstream.KeyWatcher, error)

	// MaxBytes is what the bucket may hold; 0 or less has no bound.
	MaxBytes(ctx context.Context) (int64, error)
}

// Bucket is a key-value bucket in the form of nats.go: a stream KV_<name> with an
// entry under each subject $KV.<name>.<key>. Its reads ask the leader.
type Bucket struct {
	broker Broker
	name   string
}

// NewBucket returns a bucket, whose stream is there.
func NewBucket(b Broker, name string) *Bucket { return &Bucket{b, name} }

func (b *Bucket) stream() string            { return "KV_" + b.name }
func (b *Bucket) subject(key string) string { return "$KV." + b.name + "." + key }

// Get: see KeyValue. A deleted entry is not found.
func (b *Bucket) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	e, err := b.last(ctx, key)
	if err == nil && e.operation != jetstream.KeyValuePut {
		err = jetstream.ErrKeyNotFound
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// last is the entry of a key, deleted or not.
func (b *Bucket) last(ctx context.Context, key string) (*entry, error) {
	m, err := b.broker.Last(ctx, b.stream(), b.subject(key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, jetstream.ErrKeyNotFound
	}
	if err != nil {
		return nil, err
	}
	return &entry{b.name, key, m.Data, m.Sequence, m.Time, 0, operationOf(m.Header)}, nil
}

// Put: see KeyValue.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	ack, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Data: value})
	return ack.Sequence, err
}

// Create: see KeyValue.
func (b *Bucket) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	revision, err := b.expect(ctx, key, value, 0)
	if !isWrongSequence(err) {
		return revision, err
	}
	if e, read := b.last(ctx, key); read == nil && e.operation != jetstream.KeyValuePut { // a mark
		if revision, err = b.expect(ctx, key, value, e.revision); err == nil {
			return revision, nil
		}
	}
	if isWrongSequence(err) {
		return 0, fmt.Errorf("%w: %w", jetstream.ErrKeyExists, err)
	}
	return 0, err
}

// Update: see KeyValue.
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	revision, err := b.expect(ctx, key, value, revision)
	return revision, mismatch(err)
}

func (b *Bucket) expect(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	ack, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Data: value, Header: expecting(revision)})
	return ack.Sequence, err
}

func expecting(revision uint64) nats.Header {
	return nats.Header{headerExpected: {strconv.FormatUint(revision, 10)}}
}

// Delete: see KeyValue.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	head := nats.Header{}
	if revision > 0 {
		head = expecting(revision)
	}
	head[headerOperation] = []string{"DEL"}
	_, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Header: head})
	return mismatch(err)
}

// Purge: see KeyValue.
func (b *Bucket) Purge(ctx context.Context, key string) error {
	_, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Header: nats.Header{headerOperation: {"PURGE"}, headerRollup: {"sub"}}})
	return err
}

// MaxBytes: see KeyValue.
func (b *Bucket) MaxBytes(ctx context.Context) (int64, error) {
	info, err := b.broker.Info(ctx, b.stream(), "")
	if err != nil {
		return 0, err
	}
	return info.Config.MaxBytes, nil
}

// isWrongSequence says whether an entry was not of the revision that was expected.
func isWrongSequence(err error) bool {
	const single, replicated = 10071, 10164 // of one server, and of several
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == single || api.ErrorCode == replicated)
}

func mismatch(err error) error {
	if isWrongSequence(err) {
		return fmt.Errorf("%w: %w", jetstream.ErrKeyRevisionMismatch, err)
	}
	return err
}

func operationOf(head nats.Header) jetstream.KeyValueOp {
	if operation := head[headerOperation]; len(operation) > 0 {
		switch operation[0] {
		case "DEL":
			return jetstream.KeyValueDelete
		case "PURGE":
			return jetstream.KeyValuePurge
		}
	}
	if reason := head[headerMarker]; len(reason) > 0 { // written by the server
		return jetstream.KeyValuePurge
	}
	return jetstream.KeyValuePut
}

// entry is one of a bucket.
type entry struct {
	bucket, key string
	value       []byte
	revision    uint64
	created     time.Time
	delta       uint64
	operation   jetstream.KeyValueOp
}

func (e *entry) Bucket() string                  { return e.bucket }
func (e *entry) Key() string                     { return e.key }
func (e *entry) Value() []byte                   { return e.value }
func (e *entry) Revision() uint64                { return e.revision }
func (e *entry) Created() time.Time              { return e.created }
func (e *entry) Delta() uint64                   { return e.delta }
func (e *entry) Operation() jetstream.KeyValueOp { return e.operation }

// Watch: see KeyValue.
func (b *Bucket) Watch(ctx context.Context, filter string, deletes bool) (jetstream.KeyWatcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	reading, err := b.broker.Read(ctx, b.stream(), From{Subject: b.subject(filter), Last: true})
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watcher{updates: make(chan jetstream.KeyValueEntry, watched), cancel: cancel, ended: make(chan struct{})}
	go b.watch(ctx, w, reading, deletes) // Stop ends it
	return w, nil
}

// watched is how many entries wait for the caller of a Watch.
const watched = 256

type watcher struct {
	updates chan jetstream.KeyValueEntry
	cancel  context.CancelFunc
	ended   chan struct{}
}

func (w *watcher) Updates() <-chan jetstream.KeyValueEntry { return w.updates }

func (w *watcher) Stop() error {
	w.cancel()
	<-w.ended
	return nil
}

// watch hands the messages of a bucket on as entries.
func (b *Bucket) watch(ctx context.Context, w *watcher, reading Reading, deletes bool) {
	lost, stop := context.WithCancel(ctx)
	var watching = make(chan struct{})
	go func() { defer close(watching); b.broker.Lost(lost, reading.Stop) }()
	defer close(w.ended)
	defer close(w.updates)
	defer reading.Stop()
	defer func() { stop(); <-watching }()
	give := func(e jetstream.KeyValueEntry) bool {
		select {
		case w.updates <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	_, left := reading.Begun()
	if complete := left == 0; complete && !give(nil) {
		return
	}
	for sent := uint64(0); ; {
		m, err := reading.Next(ctx)
		if err != nil || m.Number != sent+1 {
			return
		}
		sent++
		e := &entry{b.name, strings.TrimPrefix(m.Subject, b.subject("")), m.Data, m.Seq, m.At, m.Pending, operationOf(m.Header)}
		if (deletes || e.operation == jetstream.KeyValuePut) && !give(e) {
			return
		}
		if left > 0 && (sent >= left || m.Pending == 0) {
			left = 0
			if !give(nil) {
				return
			}
		}
	}
}
