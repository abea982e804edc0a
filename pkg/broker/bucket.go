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

// Headers of a bucket's messages, as nats.go writes them.
const (
	headerExpected  = "Nats-Expected-Last-Subject-Sequence"
	headerOperation = "KV-Operation"
	headerMarker    = "Nats-Marker-Reason"
	headerRollup    = "Nats-Rollup"
)

// KeyValue is a key-value bucket. *Bucket is the real one. Errors are those of nats.go:
// jetstream.ErrKeyNotFound, ErrKeyExists, and ErrKeyRevisionMismatch.
type KeyValue interface {
	// Get reads the entry of a key from the leader.
	Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error)

	// Put writes an entry; Create only if there is none, Update only at the given
	// revision. They return the new revision.
	Put(ctx context.Context, key string, value []byte) (uint64, error)
	Create(ctx context.Context, key string, value []byte) (uint64, error)
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)

	// Delete writes a delete marker, only at the given revision unless that is 0. Purge
	// also removes the history.
	Delete(ctx context.Context, key string, revision uint64) error
	Purge(ctx context.Context, key string) error

	// Watch sends the entries whose keys match a filter, nil once all present ones are
	// sent, and then the changes. It closes the channel when it ends by itself. With
	// deletes it also sends delete markers.
	Watch(ctx context.Context, filter string, deletes bool) (jetstream.KeyWatcher, error)

	// MaxBytes is the size limit of the bucket; 0 or less: none.
	MaxBytes(ctx context.Context) (int64, error)
}

// Bucket is a key-value bucket in the format of nats.go: a stream KV_<name> with an entry
// under each subject $KV.<name>.<key>. It reads from the leader.
type Bucket struct {
	broker Broker
	name   string
}

// NewBucket returns a bucket, whose stream must exist.
func NewBucket(b Broker, name string) *Bucket { return &Bucket{b, name} }

func (b *Bucket) stream() string            { return "KV_" + b.name }
func (b *Bucket) subject(key string) string { return "$KV." + b.name + "." + key }

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

func (b *Bucket) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	ack, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Data: value})
	return ack.Sequence, err
}

func (b *Bucket) Create(ctx context.Context, key string, value []byte) (uint64, error) {
	revision, err := b.expect(ctx, key, value, 0)
	if !isWrongSequence(err) {
		return revision, err
	}
	if e, read := b.last(ctx, key); read == nil && e.operation != jetstream.KeyValuePut { // a delete marker
		if revision, err = b.expect(ctx, key, value, e.revision); err == nil {
			return revision, nil
		}
	}
	if isWrongSequence(err) {
		return 0, fmt.Errorf("%w: %w", jetstream.ErrKeyExists, err)
	}
	return 0, err
}

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

func (b *Bucket) Delete(ctx context.Context, key string, revision uint64) error {
	head := nats.Header{}
	if revision > 0 {
		head = expecting(revision)
	}
	head[headerOperation] = []string{"DEL"}
	_, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Header: head})
	return mismatch(err)
}

func (b *Bucket) Purge(ctx context.Context, key string) error {
	_, err := b.broker.Publish(ctx, &nats.Msg{Subject: b.subject(key), Header: nats.Header{headerOperation: {"PURGE"}, headerRollup: {"sub"}}})
	return err
}

func (b *Bucket) MaxBytes(ctx context.Context) (int64, error) {
	info, err := b.broker.Info(ctx, b.stream(), "")
	if err != nil {
		return 0, err
	}
	return info.Config.MaxBytes, nil
}

// isWrongSequence reports whether an expected revision did not match.
func isWrongSequence(err error) bool {
	const single, replicated = 10071, 10164 // error codes
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
	if reason := head[headerMarker]; len(reason) > 0 { // set by the server
		return jetstream.KeyValuePurge
	}
	return jetstream.KeyValuePut
}

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

func (b *Bucket) Watch(ctx context.Context, filter string, deletes bool) (jetstream.KeyWatcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	reading, err := b.broker.Read(ctx, b.stream(), From{Subject: b.subject(filter), Last: true})
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watcher{updates: make(chan jetstream.KeyValueEntry, watched), cancel: cancel, ended: make(chan struct{})}
	go b.watch(ctx, w, reading, deletes) // ended by Stop
	return w, nil
}

// watched bounds the entries buffered for the caller of Watch.
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

// watch converts messages of a bucket to entries.
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
