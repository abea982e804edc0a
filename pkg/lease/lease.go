package lease

import (
	"cmp"
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
	// beat is the interval of renewals and of balancing.
	beat = 2 * time.Second

	// cooling is the pause after the work on a lane failed.
	cooling = 3 * time.Second

	// minRest is the pause in taking lanes after this instance released one whose work
	// it cannot do; it doubles up to maxRest.
	minRest = 30 * time.Second
	maxRest = 5 * time.Minute

	// backlog bounds the buffered changes of the bucket.
	backlog = 4096
)

// Keys of the bucket.
const (
	lanePrefix   = "lane."   // and a number; the value is the holder
	memberPrefix = "member." // and the name of a running instance

	instanceLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
)

// Config configures the Leases of an instance.
type Config struct {
	Instance string        // unique name of this process: letters, digits, - and _
	TTL      time.Duration // of the bucket's entries
	Lanes    func() []int  // numbers of the known lanes

	// Bucket returns the bucket of leases, which exists when Run starts.
	Bucket func() (broker.KeyValue, error)
}

// Leases assigns each lane to one of the running instances, evenly. A lane of an instance
// that stopped is taken immediately, of one that died after Config.TTL.
//
// A lease avoids double work; it does not guarantee exclusion: a paused process may still
// act on an expired lease. The compare-and-swap of checkpoints excludes it.
type Leases struct {
	cfg    Config
	bucket broker.KeyValue // set by Run
	log    *slog.Logger
	m      *metrics
	others atomic.Bool // another instance runs
}

func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) *Leases {
	return &Leases{cfg: cfg, log: log.With("instance", cfg.Instance), m: newMetrics(reg)}
}

// fence is when a holder that could not renew stops working: before others may take the
// lane.
func (l *Leases) fence() time.Duration { return l.cfg.TTL - beat }

// Run calls work for every lane this instance holds, each in its own goroutine and never
// concurrently for one lane. The context of work ends when the lane is to be released;
// others get it once work has returned or the lease has expired. If work returns early, Run
// may call it again later; after flow.ErrUnreachable the other instances share the lanes
// for a while. Run returns when ctx is done and all work has returned.
func (l *Leases) Run(ctx context.Context, work func(ctx context.Context, lane int) error) error {
	if l.cfg.Instance == "" || strings.Trim(l.cfg.Instance, instanceLetters) != "" {
		return fmt.Errorf("instance %q: use letters, digits, - and _", l.cfg.Instance)
	}
	var err error
	if l.bucket, err = l.cfg.Bucket(); err != nil {
		return fmt.Errorf("open the leases: %w", err)
	}
	// Leases are renewed until the work has ended, beyond ctx.
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
		known, news, due := r.known, false, false
		select {
		case entry := <-updates:
			news = r.see(entry)
		case <-tick.C:
			due = true
		case e := <-r.ended:
			r.end(alive, e)
		case <-done:
		}
		// All that is ready is handled in one order, updates before balancing, to avoid trying for held lanes.
		if ctx.Err() != nil && !r.leaving {
			done, r.leaving = nil, true
			for _, lease := range r.held {
				lease.cancel()
			}
		}
		for more := true; more; {
			select {
			case e := <-r.ended:
				r.end(alive, e)
			default:
				more = false
			}
		}
		for range len(updates) {
			news = r.see(<-updates) || news
		}
		select {
		case <-tick.C:
			due = true
		default:
		}
		if due || r.known && !known {
			r.renew(alive) // once all instances are known: join them
		}
		if due || r.known && news {
			r.balance(alive) // an instance started, stopped, or released a lane
		}
		if due && r.isBlind() {
			select {
			case blind <- struct{}{}:
			default: // already reopening
			}
		}
		if r.leaving && len(r.held) == 0 {
			r.leave(alive)
			return nil
		}
	}
}

// watch sends every entry of the lease bucket as it changes, and nil once all present ones
// are sent. A value on blind starts it over.
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
			l.log.Info("restarting the watch of leases")
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
	cooling map[int]time.Time   // lanes whose work failed, with the end of their pause
	known   bool                // seen is complete
	said    time.Time           // first announcement not seen since
	leaving bool
	resting time.Time     // end of the pause in which the others share the lanes
	rest    time.Duration // length of the last such pause
}

type lease struct {
	revision uint64
	renewed  time.Time          // start of the last successful renewal
	cancel   context.CancelFunc // ends the work
	until    *time.Timer        // calls cancel when the lease was not renewed in time, independently of Run
	giving   bool               // the work is ending
	lost     bool               // another instance may hold the lane
}

// sighting is an entry of the bucket. The server expires entries silently, so one that was
// not renewed within the TTL counts as gone; the server confirms that when an instance
// takes the lane. A server whose clock was set back keeps entries longer: then the
// unchanged revision shows it.
type sighting struct {
	owner    string
	revision uint64
	at       time.Time // by this process's monotonic clock
}

// ended is the result of the work on a lane.
type ended struct {
	lane int
	err  error
}

// see stores an entry, nil at the end of the present ones, and reports whether it changes
// the balance. Renewals do not: a thousand lanes have five hundred a second, and balancing
// visits every lane.
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

// isBlind reports whether the watch has not shown this instance's own entry for long. After a
// restore set the bucket back, a watch waits for sequences beyond the bucket's end.
func (r *holder) isBlind() bool {
	if r.said.IsZero() || time.Since(r.said) < r.cfg.TTL/2 {
		return false
	}
	r.said = time.Time{}
	return true
}

// renew renews this instance's membership and leases. An instance that cannot renew,
// because NATS is unreachable or the process was paused, stops its work before others may
// begin.
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
	// The least recently renewed comes first, so that none expires if time is short.
	lanes := slices.SortedFunc(maps.Keys(r.held), func(a, b int) int {
		return cmp.Or(r.held[a].renewed.Compare(r.held[b].renewed), cmp.Compare(a, b))
	})
	for _, lane := range lanes {
		held := r.held[lane]
		if held.lost {
			continue
		}
		begun := time.Now()
		if begun.Sub(held.renewed) > r.fence() {
			r.lose(lane, held, errors.New("not renewed in time"))
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

// ours reports whether the lease is still held here under another revision: the answer to an
// earlier renewal was lost.
func (r *holder) ours(ctx context.Context, lane int, held *lease, begun time.Time) bool {
	entry, err := r.bucket.Get(ctx, lanePrefix+strconv.Itoa(lane))
	if err != nil {
		return false
	}
	if owner := string(entry.Value()); owner != r.cfg.Instance {
		// The watch has not shown it yet. Once it does, the TTL counts from then: a lease
		// that is not renewed must be taken at some time.
		if s, known := r.seen[entry.Key()]; !known || s.revision != entry.Revision() {
			r.seen[entry.Key()] = sighting{owner, entry.Revision(), time.Now()}
		}
		return false
	}
	r.renewed(held, entry.Revision(), begun)
	return true
}

// renewed records a renewal that started at begun.
func (l *Leases) renewed(held *lease, revision uint64, begun time.Time) {
	held.revision, held.renewed = revision, begun
	held.until.Reset(l.fence() - time.Since(begun))
}

func (r *holder) lose(lane int, held *lease, err error) {
	r.log.Warn("lease lost", "lane", lane, "error", err)
	held.lost = true
	held.cancel()
}

// end releases a lane whose work has ended.
func (r *holder) end(ctx context.Context, e ended) {
	held := r.held[e.lane]
	if held.until.Stop(); time.Since(held.renewed) >= r.fence() {
		held.lost = true // it had expired
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
		r.log.Error("releasing a lane to instances that may reach the warehouse", "lane", e.lane, "error", e.err, "pause", time.Until(r.resting))
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
		r.log.Warn("release lease: it will expire", "lane", e.lane, "error", err)
	}
}

// isResting reports whether this instance takes no lanes, since it cannot do their work.
func (r *holder) isResting() bool { return time.Now().Before(r.resting) }

// Others reports whether another instance runs.
func (l *Leases) Others() bool { return l.others.Load() }

// leave deletes this instance's membership.
func (r *holder) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if err := r.bucket.Delete(ctx, memberPrefix+r.cfg.Instance, 0); err != nil {
		r.log.Debug("end membership", "error", err)
	}
}

// isMoved reports whether an expected revision did not match.
func isMoved(err error) bool {
	const single, replicated = 10071, 10164 // wrong last sequence, of one server and of several
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == single || api.ErrorCode == replicated)
}

// sleep waits, and reports whether ctx is still open.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
