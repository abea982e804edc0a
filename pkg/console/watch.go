package console

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// Stream reads the current state of the lanes and dead letters. The real one wraps
// *stream.Stream in cmd.
type Stream interface {
	Standing(ctx context.Context) (Standing, error)
}

// Standing is the state in NATS at one moment.
type Standing struct {
	Lanes   []Lane
	Dead    DeadRoom
	Sources []Source
}

// Lane is the state of one lane.
type Lane struct {
	Number       int
	Stream       string // its JetStream stream
	Last         uint64 // sequence of the newest message
	Bytes        uint64 // on disk, including history
	MaxBytes     int64  // its disk budget
	Backlog      uint64 // messages not stored yet
	BacklogBytes uint64 // bytes of the backlog, estimated
	Position     flow.LaneState
}

// Used is the used share of the disk budget, in percent.
func (l Lane) Used() float64 { return share(float64(l.Bytes), float64(l.MaxBytes)) }

// DeadRoom is the number of dead letters and their disk usage.
type DeadRoom struct {
	Letters uint64
	Written uint64 // ever written, including those replayed and dropped
	Bytes   uint64
	Max     int64
}

// Source maps a source to its lanes.
type Source struct {
	Name   string
	Lanes  []int
	Moving []int // target lanes of a move in progress: posts are rejected meanwhile
}

// look is the state of programs, NATS and ClickHouse at one moment.
type look struct {
	At       time.Time
	Programs reports
	Standing Standing
	NATS     error // why Standing could not be read
	Answered time.Duration
	Database error         // error of ClickHouse
	Rows     uint64        // of flow.records
	Took     time.Duration // time of rowsQuery
	Version  string
	DiskFree uint64 // of ClickHouse's fullest disk, bytes; both 0 if not known
	DiskSize uint64
}

// Timeouts of a look. A program has more time, since it queries its own servers first.
const (
	serverTime  = 2 * time.Second
	programTime = 3 * time.Second
	rateSpan    = 5 * time.Second // rates are averaged over this time, since blocks are stored in steps
)

// watch takes a look when a page needs one, at most once per Config.Every for all
// browsers.
type watch struct {
	cfg  Config
	deps Deps

	mu     sync.Mutex // held during a look: concurrent callers share its result
	recent []*look    // oldest first: the last rateSpan, and one before
}

// latest returns the newest look and the base of rates, which may be the same.
func (w *watch) latest(ctx context.Context) (now, before *look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.recent); n == 0 || time.Since(w.recent[n-1].At) >= w.cfg.Every {
		w.recent = append(w.recent, w.look(context.WithoutCancel(ctx))) // other callers wait for it too
	}
	now = w.recent[len(w.recent)-1]
	for len(w.recent) > 1 && now.At.Sub(w.recent[1].At) >= rateSpan {
		w.recent = w.recent[1:]
	}
	return now, w.recent[0]
}

// look queries all programs and servers in parallel, with timeouts.
func (w *watch) look(ctx context.Context) *look {
	next := &look{At: time.Now().Truncate(time.Millisecond), Programs: make(reports, len(w.deps.Programs))}
	var all sync.WaitGroup
	slow, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	for i, p := range w.deps.Programs {
		all.Go(func() { next.Programs[i] = p.ask(slow) })
	}
	soon, cancel := context.WithTimeoutCause(ctx, serverTime, fmt.Errorf("no answer within %g s", serverTime.Seconds()))
	defer cancel()
	all.Go(func() {
		began := time.Now()
		next.Standing, next.NATS = w.deps.Stream.Standing(soon)
		ended(soon, &next.NATS)
		next.Answered = time.Since(began)
	})
	all.Go(func() {
		began := time.Now()
		next.Database = one(soon, w.deps.Warehouse, []any{&next.Rows, &next.Version}, rowsQuery)
		next.Took = time.Since(began)
		_ = one(soon, w.deps.Warehouse, []any{&next.DiskFree, &next.DiskSize}, disksQuery) // the user may lack the grant
	})
	all.Wait()
	return next
}

// rowsQuery is cheap: ClickHouse counts rows from part metadata.
const rowsQuery = "SELECT count(), version() FROM flow.records SETTINGS final = 0"

const disksQuery = "SELECT free_space, total_space FROM system.disks WHERE total_space > 0 ORDER BY free_space / total_space LIMIT 1"
