package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

const (
	// beat is how often leases are renewed and the balance looked at.
	beat = 2 * time.Second

	// cooling is how long a lane whose work has failed is left alone.
	cooling = 3 * time.Second

	// minRest is for how long an instance takes no lanes whose work has given
	// one up to the others; each time again it is twice as long, up to maxRest.
	minRest = 30 * time.Second
	maxRest = 5 * time.Minute

	// backlog is how many changes of the bucket wait to be seen.
	backlog = 4096
)

// Keys of the bucket are version 1; changing one needs a migration.
const (
	lanePrefix   = "lane."   // and a number: the instance that holds the lane
	memberPrefix = "member." // and a name: an instance that is there

	instanceLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
)

// Config says whose leases, and of what.
type Config struct {
	Instance string        // name of this process, unlike any other's: letters, digits, - and _
	TTL      time.Duration // how long the bucket keeps an entry that is not renewed
	Lanes    func() []int  // numbers of the lanes there are, as they were looked up last

	// Bucket is where the leases are; it is there when Run begins.
	Bucket func() (broker.KeyValue, error)
}

// Leases shares the lanes among the instances that run: each lane is worked on
// by one of them, each works on as many as the others give or take one. A lane
// of an instance that stopped is taken at once, of one that died after Config.TTL.
//
// A lease keeps two instances from doing the same work. It is not what keeps
// them from harm: one whose clock or process stood still may believe in a lease
// that has run out. That is what the compare-and-swap of positions is for.
type Leases struct {
	cfg    Config
	bucket broker.KeyValue // from the beginning of Run on
	log    *slog.Logger
	m      *metrics
	others atomic.Bool // another instance is there
}

// New prepares the Leases of an instance; Run holds them.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) *Leases {
	return &Leases{cfg: cfg, log: log.With("instance", cfg.Instance), m: newMetrics(reg)}
}

// fence is when a holder that could not renew stops working: before others may
// take the lane.
func (l *Leases) fence() time.Duration { return l.cfg.TTL - beat }

// Run calls work for every lane this instance comes to hold, each in a
// goroutine of its own and never twice at once for one lane. The context of
// work ends when the lane is to be given up; others get the lane when work has
// returned, or when the lease has run out. When work returns before, Run may
// call it again later; with flow.ErrUnreachable, the other instances share the
// lanes for a while. Run returns when ctx is done and all work has returned.
func (l *Leases) Run(ctx context.Context, work func(ctx context.Context, lane int) error) error {
	if l.cfg.Instance == "" || strings.Trim(l.cfg.Instance, instanceLetters) != "" {
		return fmt.Errorf("instance %q: a name of letters, digits, - and _ is needed", l.cfg.Instance)
	}
	var err error
	if l.bucket, err = l.cfg.Bucket(); err != nil {
		return fmt.Errorf("open the leases: %w", err)
	}
	// Leases are kept until the work has ended, so beyond ctx.
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	r := &holder{
		Leases: l, work: work, held: map[int]*lease{}, ended: make(chan ended),
		seen: map[string]sighting{}, cooling: map[int]time.Time{},
	}
	updates, blind := make(chan jetstream.KeyValueEntry, backlog), make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() { defer close(watched); l.watch(alive, updates, blind) }()
	defer func() { stop(); <-watched }()

	tick := time.NewTicker(beat)
	defer tick.Stop()
	done := ctx.Done()
	for {
		select {
		case entry := <-updates:
			known, news := r.known, r.see(entry)
			for range len(updates) { // All that is known by now, or lanes are tried for that others have.
				news = r.see(<-updates) || news
			}
			if r.known && !known {
				r.renew(alive) // all that are there are known: join them
			}
			if r.known && news {
				r.balance(alive) // an instance came, went or gave up a lane
			}
		case <-tick.C:
			r.renew(alive)
			r.balance(alive)
			if r.isBlind() {
				select {
				case blind <- struct{}{}:
				default: // it opens again already
				}
			}
		case e := <-r.ended:
			r.end(alive, e)
		case <-done:
			done = nil
			r.leaving = true
			for _, lease := range r.held {
				lease.cancel()
			}
		}
		if r.leaving && len(r.held) == 0 {
			r.leave(alive)
			return nil
		}
	}
}

// watch sends every entry of the lease bucket as it changes, and a nil once all
// present ones were sent; and all of that again whenever it is told that it
// does not see any more.
func (l *Leases) watch(ctx context.Context, updates chan<- jetstream.KeyValueEntry, blind <-chan struct{}) {
	for {
		l.watchOnce(ctx, updates, blind)
		if !sleep(ctx, beat/2) {
			return
		}
	}
}

func (l *Leases) watchOnce(ctx context.Context, updates chan<- jetstream.KeyValueEntry, blind <-chan struct{}) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watcher, err := l.bucket.Watch(ctx, ">", true)
	if err != nil {
		return
	}
	for {
		select {
		case entry, open := <-watcher.Updates():
			if !open {
				return
			}
			select {
			case updates <- entry:
			case <-ctx.Done():
				return
			}
		case <-blind:
			l.log.Info("watching the leases anew")
			return
		case <-ctx.Done():
			return
		}
	}
}

// holder is the state of one Run, used by its goroutine only.
type holder struct {
	*Leases
	work    func(context.Context, int) error
	ended   chan ended
	held    map[int]*lease
	seen    map[string]sighting // entries of the bucket, by key
	cooling map[int]time.Time   // lanes whose work failed, until when they are left alone
	known   bool                // seen is complete
	said    time.Time           // when this instance announced itself first without seeing that since
	leaving bool
	resting time.Time     // until when the others share the lanes among them
	rest    time.Duration // how long that was the last time
}

// lease is a lane held here.
type lease struct {
	revision uint64
	renewed  time.Time          // when the last renewal that succeeded was begun
	cancel   context.CancelFunc // ends the work
	until    *time.Timer        // calls it when the lease was not renewed in time, whatever Run is busy with
	giving   bool               // the work has been told to end
	lost     bool               // another instance may hold the lane
}

// sighting is an entry of the bucket. The server drops entries by age without
// a word, so one that was not renewed for longer is taken for gone; whether it is,
// the server says when an instance takes the lane. A server whose clock was set
// back keeps entries for as long again: then it is the revision that says so.
type sighting struct {
	owner    string
	revision uint64
	at       time.Time // by the clock of this process, which does not step
}

// ended is the end of the work on a lane.
type ended struct {
	lane int
	err  error
}

// see takes in an entry, nil when all present ones were sent, and says whether it
// is news. That something goes on as before is not: with a thousand lanes there
// are five hundred renewals a second, and sharing anew looks at every lane.
func (r *holder) see(entry jetstream.KeyValueEntry) (news bool) {
	if entry == nil {
		r.known = true
		return true
	}
	before, known := r.seen[entry.Key()]
	if entry.Operation() != jetstream.KeyValuePut {
		delete(r.seen, entry.Key())
		return true
	}
	now := sighting{string(entry.Value()), entry.Revision(), time.Now()}
	r.seen[entry.Key()] = now
	if entry.Key() == memberPrefix+r.cfg.Instance {
		r.said = time.Time{}
	}
	return !known || before.owner != now.owner || now.at.Sub(before.at) >= r.cfg.TTL
}

// isBlind tells whether the watch has not shown this instance's own entry for long.
// After the bucket was set back, by a backup that was restored, a watch waits
// for numbers that the bucket will not reach for as long again.
func (r *holder) isBlind() bool {
	if r.said.IsZero() || time.Since(r.said) < r.cfg.TTL/2 {
		return false
	}
	r.said = time.Time{}
	return true
}

// renew says that this instance is there, and keeps what it holds. An instance that
// cannot renew for long, because NATS is away or because this process stood still,
// stops its work before others may begin.
func (r *holder) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if !r.leaving && !r.isResting() {
		switch _, err := r.bucket.Put(ctx, memberPrefix+r.cfg.Instance, []byte(r.cfg.Instance)); {
		case err != nil:
			r.log.Debug("renew membership", "error", err)
		case r.said.IsZero():
			r.said = time.Now()
		}
	}
	// The one renewed longest ago comes first, so that none runs out when there is
	// not the time for all.
	lanes := slices.SortedFunc(maps.Keys(r.held), func(a, b int) int { return r.held[a].renewed.Compare(r.held[b].renewed) })
	for _, lane := range lanes {
		held := r.held[lane]
		if held.lost {
			continue
		}
		begun := time.Now()
		if begun.Sub(held.renewed) > r.fence() {
			r.lose(lane, held, errors.New("it could not be renewed in time"))
			continue
		}
		revision, err := r.bucket.Update(ctx, lanePrefix+strconv.Itoa(lane), []byte(r.cfg.Instance), held.revision)
		switch {
		case err == nil:
			r.renewed(held, revision, begun)
		case isMoved(err):
			if !r.ours(ctx, lane, held, begun) {
				r.lose(lane, held, err)
			}
		default:
			r.log.Debug("renew lease", "lane", lane, "error", err)
		}
	}
}

// ours says whether the lease is still held here although its revision is
// another: the answer to an earlier renewal was lost.
func (r *holder) ours(ctx context.Context, lane int, held *lease, begun time.Time) bool {
	entry, err := r.bucket.Get(ctx, lanePrefix+strconv.Itoa(lane))
	if err != nil {
		return false
	}
	if owner := string(entry.Value()); owner != r.cfg.Instance {
		// The watch has not told it yet. When it did, it counts from then: one that
		// is not renewed is to be taken some time.
		if s, known := r.seen[entry.Key()]; !known || s.revision != entry.Revision() {
			r.seen[entry.Key()] = sighting{owner, entry.Revision(), time.Now()}
		}
		return false
	}
	r.renewed(held, entry.Revision(), begun)
	return true
}

// renewed notes that a lease was renewed, by something that was begun then.
func (l *Leases) renewed(held *lease, revision uint64, begun time.Time) {
	held.revision, held.renewed = revision, begun
	held.until.Reset(l.fence() - time.Since(begun))
}

func (r *holder) lose(lane int, held *lease, err error) {
	r.log.Warn("lease lost", "lane", lane, "error", err)
	held.lost = true
	held.cancel()
}

// end lets go of a lane whose work has ended.
func (r *holder) end(ctx context.Context, e ended) {
	held := r.held[e.lane]
	if held.until.Stop(); time.Since(held.renewed) >= r.fence() {
		held.lost = true // its time had run out
	}
	held.cancel()
	delete(r.held, e.lane)
	r.m.held.Set(float64(len(r.held)))
	switch {
	case held.giving || held.lost || r.leaving:
	case errors.Is(e.err, flow.ErrUnreachable):
		if time.Since(r.resting) > maxRest {
			r.rest = 0 // long ago
		}
		if !r.isResting() {
			r.rest = min(max(2*r.rest, minRest), maxRest)
			r.resting = time.Now().Add(r.rest)
			r.leave(ctx)
		}
		r.log.Error("giving up a lane to instances that may do better", "lane", e.lane, "error", e.err, "pause", time.Until(r.resting))
	default:
		r.log.Error("the work on a lane ended", "lane", e.lane, "error", e.err)
		r.cooling[e.lane] = time.Now().Add(cooling)
	}
	if held.lost {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	err := r.bucket.Delete(ctx, lanePrefix+strconv.Itoa(e.lane), held.revision)
	if err != nil {
		r.log.Warn("release lease: it will run out", "lane", e.lane, "error", err)
	}
}

// isResting says whether the other instances share the lanes among them: from
// here their work cannot be done.
func (r *holder) isResting() bool { return time.Now().Before(r.resting) }

// Others says whether another instance is there.
func (l *Leases) Others() bool { return l.others.Load() }

// leave says that this instance is gone.
func (r *holder) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if err := r.bucket.Delete(ctx, memberPrefix+r.cfg.Instance, 0); err != nil {
		r.log.Debug("end membership", "error", err)
	}
}

// isMoved says whether an entry was not of the revision that was expected.
func isMoved(err error) bool {
	const single, replicated = 10071, 10164 // wrong last sequence, of one server and of several
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == single || api.ErrorCode == replicated)
}

// sleep waits and says whether ctx still stands.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
