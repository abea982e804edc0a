package camunda

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Failure is what happens to a broker.
type Failure struct {
	Kind Kind
	From int // of a Restored one: the record that it goes on from
}

// Kind of a failure.
type Kind int

const (
	// LeaderChanged: a follower leads. It knows what was acknowledged some seconds
	// ago.
	LeaderChanged Kind = iota
	// Unnoticed: likewise, but the leader before has not noticed, and posts its
	// bulk still.
	Unnoticed
	// Restarted: the broker goes on from its last snapshot.
	Restarted
	// RestartedOlder: likewise, but the last snapshot had failed.
	RestartedOlder
	// Restored: from a backup. The log has been cut there, and what was written
	// behind is other records at positions that were in use.
	Restored
)

func (k Kind) String() string {
	return [...]string{"another leader", "another leader, unnoticed", "killed", "killed, its last snapshot had failed", "restored"}[k]
}

// Fail lets something happen to the broker, soon.
func (e *Exporter) Fail(f Failure) { e.failures <- f }

// remembered is what is known of the acknowledged records beyond this leader.
type remembered struct {
	followers int // all followers know
	told      time.Time
	snapshot  int // on the broker's disk
	before    int // in the snapshot before
	taken     time.Time
}

// remember tells the followers, and takes a snapshot, when it is time.
func (e *Exporter) remember(now time.Time) {
	r := &e.remembered
	if now.Sub(r.told) >= e.cfg.Followers {
		r.followers, r.told = e.acked, now
	}
	if now.Sub(r.taken) >= e.cfg.Snapshot {
		r.before, r.snapshot, r.taken = r.snapshot, e.acked, now
	}
}

// lead begins a leadership with what is known to be acknowledged.
func (e *Exporter) lead(now time.Time, from int) {
	e.bulk.reset()
	e.next, e.acked = from, from
	e.tries, e.again = 0, time.Time{}
	e.timer = now.Add(e.cfg.BulkDelay)
	e.open = false
	e.leadership++
	r := &e.remembered
	r.followers, r.told = from, now
	r.snapshot, r.before = min(r.snapshot, from), min(r.before, from)
	if r.taken.IsZero() {
		r.taken = now
	}
}

// fail ends a leadership, and begins the next.
func (e *Exporter) fail(now time.Time, f Failure, late *sync.Mutex) {
	e.count.Failures++
	r := e.remembered
	switch f.Kind {
	case LeaderChanged, Unnoticed:
		if e.bulk.records > 0 && f.Kind == Unnoticed {
			e.stray(slices.Clone(e.bulk.body), late)
		}
		e.lead(now, r.followers)
	case Restarted:
		e.lead(now, r.snapshot)
	case RestartedOlder:
		e.lead(now, r.before)
	case Restored:
		e.most = min(e.most, f.From) // what comes now is new
		e.lead(now, f.From)
	}
}

// strayed is how often a leader that has not noticed tries.
const strayed = 3

// stray lets the leader before post its bulk while its successor posts.
func (e *Exporter) stray(body []byte, late *sync.Mutex) {
	pause := time.Duration(e.cfg.Random.Int64N(int64(e.cfg.BulkDelay)))
	ctx := e.straying
	e.strays.Go(func() {
		for range strayed {
			if !sleep(ctx, pause) {
				return
			}
			if e.cfg.To.Bulk(ctx, body) == nil {
				late.Lock()
				e.count.Late++
				late.Unlock()
				return
			}
		}
	})
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
