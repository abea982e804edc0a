package api_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

// ledger is the stream of changes and the resulting state, in memory. It keeps the contracts of
// Changes, Last and State.
type ledger struct {
	mu      sync.Mutex
	seq     uint64
	changes []change.Change // published, in order
	life    uint64          // the incarnation of new changes
	last    map[string]uint64
	entries map[string]change.Entry
	paused  bool              // nothing is applied: the ingester is down
	begins  int               // the ingester begins to read the lane after this many queries
	before  func()            // runs before a change is checked, as a faster writer
	owners  map[string]string // of fields, by key
	unready bool              // field counts are not loaded yet
	full    bool              // at the size limit
	fault   error             // returned by all calls: the stream is unreachable
}

func newLedger() *ledger {
	return &ledger{life: 1, last: map[string]uint64{}, entries: map[string]change.Entry{}, owners: map[string]string{}}
}

func (l *ledger) PublishChange(_ context.Context, c *change.Change) (uint64, bool, error) {
	if before := l.before; before != nil {
		l.before = nil
		before()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault != nil {
		return 0, false, l.fault
	}
	key := c.Target.Key()
	if c.Expected != nil && *c.Expected != l.last[key] {
		return 0, false, change.ErrStale
	}
	body, err := c.Encode() // as encoded in the stream
	if err != nil {
		return 0, false, err
	}
	travelled, err := change.Decode(body)
	if err != nil {
		return 0, false, err
	}
	l.seq += 3 // other targets have changes in between
	l.last[key] = l.seq
	l.changes = append(l.changes, travelled)
	if !l.paused {
		return l.seq, false, l.apply(travelled, l.seq)
	}
	return l.seq, false, nil
}

func (l *ledger) apply(c change.Change, seq uint64) error {
	next, _, err := change.Apply(l.entries[c.Target.Key()], c, change.Place{Incarnation: l.life, Seq: seq})
	l.entries[c.Target.Key()] = next
	return err
}

func (l *ledger) LastChange(_ context.Context, t change.Target) (change.Last, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.last[t.Key()]
	if seq == 0 {
		return change.Last{}, l.fault
	}
	if l.begins > 0 {
		if l.begins--; l.begins == 0 {
			l.paused = false
			for i, c := range l.changes {
				if err := l.apply(c, uint64(3*i+3)); err != nil {
					return change.Last{}, err
				}
			}
		}
		return change.Last{Seq: seq, Unread: true}, l.fault
	}
	return change.Last{Seq: seq, Applied: change.Place{Incarnation: l.life, Seq: seq}}, l.fault
}

func (l *ledger) Entry(_ context.Context, t change.Target) (change.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[t.Key()], l.fault
}

// Fields counts the fields that a subject changed last, from their publish on.
func (l *ledger) Fields(subject string, t change.Target) (n int, own, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, by := range l.owners {
		if by == subject {
			n++
			own = own || key == t.Key()
		}
	}
	return n, own, !l.unready
}

func (l *ledger) Expect(subject string, t change.Target, _ int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.owners[t.Key()] = subject
}

func (l *ledger) Full() bool { return l.full }

// forget purges the stream: applied changes are only in the state.
func (l *ledger) forget() { clear(l.last) }

// backup copies the stream and the state. restore sets both back to the copy, with a new
// incarnation.
func (l *ledger) backup() (restore func(life uint64)) {
	seq, changes, last, entries := l.seq, slices.Clone(l.changes), maps.Clone(l.last), maps.Clone(l.entries)
	return func(life uint64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.life, l.seq, l.changes, l.last, l.entries = life, seq, changes, last, entries
	}
}

// catchUp applies the last change, and ends the pause.
func (l *ledger) catchUp(t *testing.T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = false
	expect.NoError(t, l.apply(l.changes[len(l.changes)-1], l.seq))
}

func (l *ledger) kinds() []change.Kind {
	l.mu.Lock()
	defer l.mu.Unlock()
	kinds := []change.Kind{}
	for _, c := range l.changes {
		kinds = append(kinds, c.Kind)
	}
	return kinds
}

var errDown = &flow.RetryError{Err: flow.ErrUnavailable, After: 0}
