package camunda

import (
	"context"
	"slices"
	"sync"
	"time"
)

type Failure struct {
	Kind Kind
	From int // if Restored: the record from which it resumes
}

type Kind int

const (
	// LeaderChanged: a follower leads, with the acknowledged position of some seconds
	// ago.
	LeaderChanged Kind = iota
	// Unnoticed: likewise, but the stale leader still posts its bulk.
	Unnoticed
	// Restarted: the broker resumes from its last snapshot.
	Restarted
	// RestartedOlder: likewise, but the last snapshot had failed.
	RestartedOlder
	// Restored: from a backup. The log was truncated there, and later positions were
	// reused for other records.
	Restored
)

func (k Kind) String() string {
	return [...]string{"another leader", "another leader, unnoticed", "killed", "killed, its last snapshot had failed", "restored"}[k]
}

// Fail schedules a failure of the broker.
func (e *Exporter) Fail(f Failure) { e.failures <- f }

// remembered is the acknowledged position stored outside this leader.
type remembered struct {
	followers int // sent to all followers
	reported  time.Time
	snapshot  int // on the broker's disk
	before    int // in the previous snapshot
	taken     time.Time
}

// remember updates followers and snapshot when due.
func (e *Exporter) remember(now time.Time) {
	r := &e.remembered
	if now.Sub(r.reported) >= e.cfg.Followers {
		r.followers, r.reported = e.acked, now
	}
	if now.Sub(r.taken) >= e.cfg.Snapshot {
		r.before, r.snapshot, r.taken = r.snapshot, e.acked, now
	}
}

// lead starts a leadership from an acknowledged position.
func (e *Exporter) lead(now time.Time, from int) {
	e.bulk.reset()
	e.next, e.acked = from, from
	e.tries, e.again = 0, time.Time{}
	e.timer = now.Add(e.cfg.BulkDelay)
	e.open = false
	e.leadership++
	r := &e.remembered
	r.followers, r.reported = from, now
	r.snapshot, r.before = min(r.snapshot, from), min(r.before, from)
	if r.taken.IsZero() {
		r.taken = now
	}
}

// fail ends a leadership and starts the next.
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
		e.maxAcked = min(e.maxAcked, f.From) // later records are new
		e.lead(now, f.From)
	}
}

// strayed bounds the attempts of a stale leader.
const strayed = 3

// stray posts the bulk of a stale leader while its successor posts.
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
