package console

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// Stream is the lanes and the dead letters, as they are now. The real one is
// wired in cmd, of *stream.Stream.
type Stream interface {
	Standing(ctx context.Context) (Standing, error)
}

// Standing is what NATS says at one moment.
type Standing struct {
	Lanes   []Lane
	Dead    DeadRoom
	Sources []Source
}

// Lane is one lane, and what of it is stored.
type Lane struct {
	Number       int
	Stream       string // its JetStream stream
	Last         uint64 // newest message
	Bytes        uint64 // on disk, what is kept as history included
	MaxBytes     int64  // what it may hold
	Waiting      uint64 // messages that are not stored yet
	WaitingBytes uint64 // of those, estimated
	Position     flow.Position
}

// DeadRoom is how many dead letters there are, and what room they take.
type DeadRoom struct {
	Letters uint64
	Bytes   uint64
	Max     int64
}

// Source is which lanes an engine's records go to.
type Source struct {
	Name   string
	Lanes  []int
	Moving []int // where it is being moved to: its posts are refused meanwhile
}

// sample is one look at everything.
type sample struct {
	At       time.Time
	Programs reports
	Standing Standing
	NATS     error // why Standing is not known
	Answered time.Duration
	Database error         // why ClickHouse is not to be had
	Rows     uint64        // of flow.records
	Took     time.Duration // for ClickHouse to say so
	Version  string

	telling sync.Once
	told    []byte // message of it, once a browser watches
}

// point is what is kept of a look, to tell rates from.
type point struct {
	At                            time.Time
	Accepted, Stored, Repeated    float64 // in sum
	Dead, Waiting                 float64
	HasAccepted, HasStored        bool
	WaitingBytes                  map[int]float64 // by lane
	fresh, ack                    buckets
	acceptedRate, storedRate      float64 // per second, over the last seconds
	repeatedRate, deadRate        float64
	freshMedian, freshP99, ackP99 float64 // of the last minute, in seconds; negative when nothing was measured
	ackMedian                     float64
}

const (
	keptPoints = 300             // five minutes of looks while a browser watches
	rateSpan   = 5 * time.Second // what a rate is told over: blocks are stored in steps
	waitSpan   = time.Minute     // what percentiles are told over
	growSpan   = 5 * time.Minute // what the growth of what waits is told over
)

// watch looks at everything once a second while browsers watch, once for all of
// them, and seldom while none does.
type watch struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	wake chan struct{} // a browser has come

	mu     sync.Mutex
	latest *sample
	points []point
	seen   chan struct{} // closed when there is a new look, and replaced
	people int
}

func newWatch(cfg Config, deps Deps, log *slog.Logger) *watch {
	return &watch{cfg: cfg, deps: deps, log: log, wake: make(chan struct{}, 1), seen: make(chan struct{})}
}

// run looks until ctx ends.
func (w *watch) run(ctx context.Context) {
	for {
		begun := time.Now()
		w.look(ctx)
		w.mu.Lock()
		pause := w.cfg.Rest
		if w.people > 0 {
			pause = w.cfg.Every
		}
		w.mu.Unlock()
		timer := time.NewTimer(max(0, pause-time.Since(begun)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-w.wake:
			timer.Stop()
		}
	}
}

// How long a look waits: a program answers after it has asked its own servers.
const (
	serverTime  = 2 * time.Second
	programTime = 3 * time.Second
)

// ask asks all programs at once for metrics of these names, or all without any.
func (w *watch) ask(ctx context.Context, names ...string) reports {
	all := make(reports, len(w.deps.Programs))
	var asking sync.WaitGroup
	for i, p := range w.deps.Programs {
		asking.Go(func() { all[i] = p.ask(ctx, names...) })
	}
	asking.Wait()
	return all
}

// look asks all programs at once, and waits for none of them long.
func (w *watch) look(ctx context.Context) {
	next := &sample{At: time.Now()}
	var all sync.WaitGroup
	all.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, programTime)
		defer cancel()
		next.Programs = w.ask(ctx, watched...)
	})
	soon, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	all.Go(func() {
		begun := time.Now()
		next.Standing, next.NATS = w.deps.Stream.Standing(soon)
		next.Answered = time.Since(begun)
	})
	all.Go(func() {
		begun := time.Now()
		next.Database = one(soon, w.deps.Warehouse, []any{&next.Rows, &next.Version}, rowsQuery)
		next.Took = time.Since(begun)
	})
	all.Wait()

	w.mu.Lock()
	defer w.mu.Unlock()
	w.latest = next
	w.points = append(w.points, w.measure(next))
	if len(w.points) > keptPoints {
		w.points = append([]point(nil), w.points[len(w.points)-keptPoints:]...)
	}
	close(w.seen)
	w.seen = make(chan struct{})
}

// rowsQuery takes no time: ClickHouse knows how many rows its parts have.
const rowsQuery = "SELECT count(), version() FROM flow.records SETTINGS final = 0"

// measure tells rates and percentiles from a look and those before it.
func (w *watch) measure(s *sample) point {
	p := point{At: s.At, WaitingBytes: map[int]float64{}}
	p.Accepted, p.HasAccepted = s.Programs.sum(acceptedMetric, nil)
	p.HasStored = s.NATS == nil
	for _, lane := range s.Standing.Lanes {
		t := lane.Position.Totals
		p.Stored += float64(t.Stored)
		p.Repeated += float64(t.Repeated)
		p.Dead += float64(t.Dead)
		p.Waiting += float64(lane.Waiting)
		p.WaitingBytes[lane.Number] = float64(lane.WaitingBytes)
	}
	p.fresh = s.Programs.histogram(freshMetric, nil)
	p.ack = s.Programs.histogram(ackMetric, func(labels map[string]string) bool { return labels["route"] == batchRoute })

	if before, ok := w.before(s.At, rateSpan); ok {
		seconds := s.At.Sub(before.At).Seconds()
		rate := func(now, then float64, both bool) float64 {
			if !both || now < then { // it began anew
				return 0
			}
			return (now - then) / seconds
		}
		p.acceptedRate = rate(p.Accepted, before.Accepted, p.HasAccepted && before.HasAccepted)
		stored := p.HasStored && before.HasStored
		p.storedRate = rate(p.Stored, before.Stored, stored)
		p.repeatedRate = rate(p.Repeated, before.Repeated, stored)
		p.deadRate = rate(p.Dead, before.Dead, stored)
	}
	var fresh, ack buckets
	if before, ok := w.before(s.At, waitSpan); ok {
		fresh, ack = p.fresh.since(before.fresh), p.ack.since(before.ack)
	}
	p.freshMedian, p.freshP99 = quantileOr(fresh, 0.5), quantileOr(fresh, 0.99)
	p.ackMedian, p.ackP99 = quantileOr(ack, 0.5), quantileOr(ack, 0.99)
	return p
}

// Metrics of api and ingester, as they name them.
const (
	acceptedMetric  = "sluice_api_records_total"
	freshMetric     = "sluice_ingest_freshness_seconds"
	ackMetric       = "sluice_api_request_seconds"
	laneStateMetric = "sluice_ingest_state"
	laneAgeMetric   = "sluice_ingest_lag_seconds"

	batchRoute = "POST /flow/flowRecord/batch" // the route of records in ackMetric
)

func quantileOr(b buckets, q float64) float64 {
	if seconds, ok := b.quantile(q); ok {
		return seconds
	}
	return -1
}

// before is the newest point that is at least so old, or the oldest there is.
func (w *watch) before(now time.Time, age time.Duration) (found point, ok bool) {
	for i := len(w.points) - 1; i >= 0; i-- {
		found, ok = w.points[i], true
		if now.Sub(found.At) >= age {
			break
		}
	}
	return found, ok && now.After(found.At)
}

// growth is how fast what waits in a lane grows, in bytes per second; ok is
// false until that is known.
func (w *watch) growth(lane int) (perSecond float64, ok bool) {
	if len(w.points) == 0 {
		return 0, false
	}
	now := w.points[len(w.points)-1]
	before, ok := w.before(now.At, growSpan)
	seconds := now.At.Sub(before.At).Seconds()
	if !ok || seconds < 5 {
		return 0, false
	}
	return (now.WaitingBytes[lane] - before.WaitingBytes[lane]) / seconds, true
}

// state is what is known now: the last look, its figures, and those before it.
// A browser that comes after a while waits for a look.
func (w *watch) state(ctx context.Context) (*sample, []point, error) {
	w.mu.Lock()
	latest, points, seen := w.latest, w.points, w.seen
	w.mu.Unlock()
	if latest != nil && time.Since(latest.At) < 3*w.cfg.Every {
		return latest, points, nil
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
	select {
	case <-seen:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest, w.points, nil
}

// join says that a browser watches, until leave is called.
func (w *watch) join() (leave func()) {
	w.mu.Lock()
	w.people++
	first := w.people == 1
	w.mu.Unlock()
	if first {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
	return func() {
		w.mu.Lock()
		w.people--
		w.mu.Unlock()
	}
}

// after is closed once there is a newer look than this one.
func (w *watch) after(s *sample) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.latest == s {
		return w.seen
	}
	now := make(chan struct{})
	close(now)
	return now
}
