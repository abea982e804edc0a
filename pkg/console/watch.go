package console

import (
	"context"
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
	MaxBytes     int64  // its disk budget
	Backlog      uint64 // messages that are not stored yet
	BacklogBytes uint64 // of those, estimated
	Position     flow.LaneState
}

// Used is the share of the disk budget that is used, in percent.
func (l Lane) Used() float64 { return share(float64(l.Bytes), float64(l.MaxBytes)) }

// DeadRoom is how many dead letters there are, and what room they take.
type DeadRoom struct {
	Letters uint64
	Written uint64 // ever, those replayed and dropped included
	Bytes   uint64
	Max     int64
}

// Source is which lanes an engine's records go to.
type Source struct {
	Name   string
	Lanes  []int
	Moving []int // where it is being moved to: its posts are rejected meanwhile
}

// look is what programs, NATS and ClickHouse say at one moment.
type look struct {
	At       time.Time
	Programs reports
	Standing Standing
	NATS     error // why Standing is not known
	Answered time.Duration
	Database error         // why ClickHouse does not answer
	Rows     uint64        // of flow.records
	Took     time.Duration // for ClickHouse to say so
	Version  string
	DiskFree uint64 // of ClickHouse's fullest disk, bytes; both 0 where that is not known
	DiskSize uint64
}

// How long a look waits: a program answers after it has asked its own servers.
const (
	serverTime  = 2 * time.Second
	programTime = 3 * time.Second
	rateSpan    = 5 * time.Second // rates are over this time: blocks are stored in steps
)

// watch looks at everything when a page asks for it, at most once per Config.Every
// for all browsers together.
type watch struct {
	cfg  Config
	deps Deps

	mu     sync.Mutex // held during a look: whoever comes meanwhile shares it
	recent []*look    // oldest first: those of the last rateSpan, and one before
}

// latest is the newest look and the one that rates are told from, which may be the same.
func (w *watch) latest(ctx context.Context) (now, before *look) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.recent); n == 0 || time.Since(w.recent[n-1].At) >= w.cfg.Every {
		w.recent = append(w.recent, w.look(context.WithoutCancel(ctx))) // others wait for it too
	}
	now = w.recent[len(w.recent)-1]
	for len(w.recent) > 1 && now.At.Sub(w.recent[1].At) >= rateSpan {
		w.recent = w.recent[1:]
	}
	return now, w.recent[0]
}

// look asks all at once, and waits for none of them long.
func (w *watch) look(ctx context.Context) *look {
	next := &look{At: time.Now().Truncate(time.Millisecond), Programs: make(reports, len(w.deps.Programs))}
	var all sync.WaitGroup
	slow, cancel := context.WithTimeout(ctx, programTime)
	defer cancel()
	for i, p := range w.deps.Programs {
		all.Go(func() { next.Programs[i] = p.ask(slow) })
	}
	soon, cancel := context.WithTimeout(ctx, serverTime)
	defer cancel()
	all.Go(func() {
		began := time.Now()
		next.Standing, next.NATS = w.deps.Stream.Standing(soon)
		next.Answered = time.Since(began)
	})
	all.Go(func() {
		began := time.Now()
		next.Database = one(soon, w.deps.Warehouse, []any{&next.Rows, &next.Version}, rowsQuery)
		next.Took = time.Since(began)
		_ = one(soon, w.deps.Warehouse, []any{&next.DiskFree, &next.DiskSize}, disksQuery) // a user may lack the right to it
	})
	all.Wait()
	return next
}

// rowsQuery takes no time: ClickHouse knows how many rows its parts have.
const rowsQuery = "SELECT count(), version() FROM flow.records SETTINGS final = 0"

const disksQuery = "SELECT free_space, total_space FROM system.disks WHERE total_space > 0 ORDER BY free_space / total_space LIMIT 1"
