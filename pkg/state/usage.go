package state

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"

	"sluice/pkg/change"
)

// Usage counts the dataset fields of each subject and the bytes of the bucket, by watching
// every entry. It takes some 60 bytes per entry.
type Usage struct {
	bucket Bucket
	log    *slog.Logger

	mu  sync.Mutex
	now *tally // nil until all entries were seen
}

// followFor bounds one watch: the next notices entries that were removed without a marker.
const followFor = time.Hour

func NewUsage(bucket Bucket, log *slog.Logger) *Usage {
	return &Usage{bucket: bucket, log: log}
}

// Run follows the bucket until ctx ends. While the bucket cannot be reached, the last
// counts are used.
func (u *Usage) Run(ctx context.Context) error {
	for said := false; ctx.Err() == nil; {
		err := u.follow(ctx)
		if err == nil {
			said = false
			continue
		}
		if ctx.Err() == nil && !said {
			u.log.Warn("follow the state store", "error", err) // retried
			said = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

// follow follows the bucket for at most followFor.
func (u *Usage) follow(ctx context.Context) error {
	bucket, err := u.bucket()
	if err != nil {
		return err
	}
	maxBytes, err := bucket.MaxBytes(ctx)
	if err != nil {
		return unavailable("read the size of the state store", err)
	}
	watch, err := bucket.Watch(ctx, ">", true)
	if err != nil {
		return unavailable("watch the state store", err)
	}
	defer func() { _ = watch.Stop() }()
	next := &tally{max: maxBytes, entries: map[uint64]used{}, numbers: map[string]uint32{}}
	over := time.NewTimer(followFor)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-over.C:
			return nil
		case kv, ok := <-watch.Updates():
			if !ok {
				return errors.New("the watch ended")
			}
			u.mu.Lock()
			if kv == nil {
				u.now = next
			} else {
				next.see(kv)
			}
			u.mu.Unlock()
		}
	}
}

// Fields counts the dataset fields of a subject, tombstones included, and reports whether the
// target is one of them. A field belongs to the subject that changed it last. ready is
// false until all entries were seen.
func (u *Usage) Fields(subject string, target change.Target) (n int, own, ready bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now == nil {
		return 0, false, false
	}
	number, known := u.now.numbers[subject]
	if !known {
		return 0, false, true
	}
	entry, ok := u.now.entries[xxh3.HashString(target.Key())]
	return u.now.fields[number], ok && entry.subject == number, true
}

// Expect counts a change of a field before it is applied.
func (u *Usage) Expect(subject string, target change.Target, size int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.now != nil {
		key := target.Key()
		u.now.put(key, len(key)+size+entryRoom, u.now.number(subject))
	}
}

// Full reports whether nine tenths of the bucket are used: the rest is reserved for accepted
// changes that are not applied yet.
func (u *Usage) Full() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now != nil && u.now.max > 0 && u.now.bytes > u.now.max-u.now.max/10
}

// tally sums up all entries.
type tally struct {
	max, bytes int64
	entries    map[uint64]used   // by hash of the key: of colliding keys one is counted
	numbers    map[string]uint32 // of subjects
	fields     []int             // of the subject of this number
}

// used is the usage of an entry.
type used struct {
	bytes   uint32
	subject uint32 // of the last change; noSubject for a user
}

const noSubject = ^uint32(0)

// entryRoom is the overhead of NATS per entry.
const entryRoom = 64

// see counts a written entry.
func (t *tally) see(kv jetstream.KeyValueEntry) {
	key, subject := kv.Key(), noSubject
	if kv.Operation() != jetstream.KeyValuePut {
		t.drop(key)
		return
	}
	if strings.HasPrefix(key, "field.") {
		var by struct {
			UpdatedBy string `json:"updatedBy"`
		}
		_ = json.Unmarshal(kv.Value(), &by) // a corrupt entry belongs to ""
		subject = t.number(by.UpdatedBy)
	}
	t.put(key, len(key)+len(kv.Value())+entryRoom, subject)
}

func (t *tally) number(subject string) uint32 {
	n, ok := t.numbers[subject]
	if !ok {
		n = uint32(len(t.fields))
		t.numbers[subject] = n
		t.fields = append(t.fields, 0)
	}
	return n
}

// put sets the usage of an entry.
func (t *tally) put(key string, size int, subject uint32) {
	t.drop(key)
	t.entries[xxh3.HashString(key)] = used{uint32(size), subject}
	t.bytes += int64(size)
	if subject != noSubject {
		t.fields[subject]++
	}
}

// drop removes an entry.
func (t *tally) drop(key string) {
	hash := xxh3.HashString(key)
	before, ok := t.entries[hash]
	if !ok {
		return
	}
	delete(t.entries, hash)
	t.bytes -= int64(before.bytes)
	if before.subject != noSubject {
		t.fields[before.subject]--
	}
}
