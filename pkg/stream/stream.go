// Package stream keeps records in NATS JetStream until they are stored, and the checkpoint of each
// lane.
//
//	Publish ──▶ lane FLOW_n ──▶ Reader ──▶ (the ingester)
//	               ▲    │                      │
//	        Purger ┘    └─ Lag     LaneStates, DeadLetters
//
// A lane is one JetStream stream: one log, one writer thread in the server, one reader. A record
// always goes to the same lane of its source's list, since each lane deduplicates only what it
// stored itself.
//
// Life of a Publish:
//
//  1. Look up the source's lane list and cut the records for it.
//  2. Copy the chunks into the last batch of each lane's queue, which is open while the batch
//     before is in flight, and until the clients just answered have posted again: 2 ms at most.
//  3. Close the batch and send it as one message with one sync to disk. After an unknown
//     outcome the same bytes are sent again, under the same id, to the same lane.
//  4. The sender sets the outcome once; every call with a chunk in the batch returns, and so
//     does a concurrent repeat.
//
// Files:
//
//	stream.go       opening everything         config.go     sizes, names, permissions, stream settings
//	lanes.go        look-up of lanes           sources.go    the lane list of each source
//	publisher.go    Publish                    spread.go     moves of sources to other lanes
//	requests.go     repeats at this api        batcher.go    many requests in one entry
//	judge.go        attempts and their errors  link.go       the connection
//	reader.go       reading in order           scan.go       one-time reads, headers, one entry
//	lanestates.go   lane states                stored.go     waiting until records are stored
//	purger.go       backlog and purges         forgets.go    orders to forget instances
//	monitors.go     health of the servers      holds.go      holds and pins
//	changes.go      users and dataset fields   deadletters.go, deadroom.go, replay.go  dead letters
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// Stream is the lanes, dead letters, and buckets of one deployment, the base of this package.
type Stream struct {
	js   broker.Broker
	cfg  Config
	log  *slog.Logger
	m    *metrics
	link *link

	checkpoints broker.KeyValue
	sources     broker.KeyValue
	leases      broker.KeyValue
	states      broker.KeyValue

	view    atomic.Pointer[view]   // the last look-up
	refresh turn                   // one look-up at a time
	room    *deadRoom              // shared by all Streams of this process
	waits   waits                  // for callers that wait until records are stored
	behind  sync.Map               // when a lane was first seen to end before a message read from it
	trouble atomic.Pointer[string] // a server's reason, on Config.Monitors, why it cannot write
	settle  time.Duration          // settleTime
	silence time.Duration          // readSilence

	opening turn          // one Open at a time
	opened  chan struct{} // closed once open
}

// New makes a Stream; Run or Open opens it. Before that all calls fail with flow.ErrUnavailable.
func New(nc *nats.Conn, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Stream, error) {
	js, err := broker.OverNATS(nc)
	if err != nil {
		return nil, err
	}
	return NewOver(js, cfg, log, reg), nil
}

// NewOver is New for another broker.
func NewOver(js broker.Broker, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Stream {
	return newStream(js, cfg.withDefaults(), log, newMetrics(reg))
}

// Over makes another Stream with its own connection and the metrics of s.
func (s *Stream) Over(nc *nats.Conn) (*Stream, error) {
	js, err := broker.OverNATS(nc)
	if err != nil {
		return nil, err
	}
	other := newStream(js, s.cfg, s.log, s.m)
	other.room = s.room
	return other, nil
}

func newStream(js broker.Broker, cfg Config, log *slog.Logger, m *metrics) *Stream {
	s := &Stream{
		js: js, cfg: cfg, log: log, m: m, link: newLink(js, cfg.Now), settle: settleTime, silence: readSilence,
		room: newDeadRoom(), refresh: newTurn(), opening: newTurn(), opened: make(chan struct{}),
		checkpoints: broker.NewBucket(js, LaneBucket), sources: broker.NewBucket(js, SourceBucket),
		leases: broker.NewBucket(js, LeaseBucket), states: broker.NewBucket(js, StateBucket),
	}
	s.view.Store(&view{})
	return s
}

// turn is a lock held during requests to a server: unlike with a mutex, virtual time passes for
// waiters.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

func (t turn) Lock()   { t <- struct{}{} }
func (t turn) Unlock() { <-t }

func (t turn) TryLock() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Open makes and opens a Stream.
func Open(ctx context.Context, nc *nats.Conn, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Stream, error) {
	s, err := New(nc, cfg, log, reg)
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
}

// Open creates or checks lane 0, dead letters, and buckets, and finds the other lanes, once. It
// waits for NATS as long as ctx allows.
func (s *Stream) Open(ctx context.Context) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.ready() == nil {
		return nil
	}
	if err := connected(ctx, s.js.Status); err != nil {
		return err
	}
	if err := s.checkSync(ctx); err != nil {
		return err
	}
	if err := s.untilOpen(ctx); err != nil {
		return err
	}
	close(s.opened)
	return nil
}

// Opened waits until the Stream is open, or ctx ends.
func (s *Stream) Opened(ctx context.Context) error {
	select {
	case <-s.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errNotOpen is the error before Open: nothing was published.
var errNotOpen = &flow.RetryError{Err: fmt.Errorf("%w: not open yet", flow.ErrUnavailable), After: time.Second}

// ready fails until the Stream is open.
func (s *Stream) ready() error {
	select {
	case <-s.opened:
		return nil
	default:
		return errNotOpen
	}
}

// open creates or checks everything once.
func (s *Stream) open(ctx context.Context) error {
	for _, cfg := range []jetstream.StreamConfig{
		s.laneConfig(0), s.deadConfig(), s.noteConfig(),
		s.bucketConfig(LaneBucket, 0), s.bucketConfig(SourceBucket, 0), s.bucketConfig(LeaseBucket, LeaseTTL), s.bucketConfig(StateBucket, 0),
	} {
		if err := s.ensure(ctx, cfg); err != nil {
			return err
		}
	}
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	for _, lane := range s.view.Load().lanes {
		if err := s.ensure(ctx, s.laneConfig(lane.Number)); err != nil {
			return err
		}
	}
	return nil
}

// Connected waits until nc is connected, or ctx ends.
func Connected(ctx context.Context, nc *nats.Conn) error {
	return connected(ctx, func() (nats.Status, error) { return nc.Status(), nc.LastError() })
}

func connected(ctx context.Context, status func() (nats.Status, error)) error {
	for {
		is, failed := status()
		switch is {
		case nats.CONNECTED:
			return nil
		case nats.CLOSED:
			if failed != nil { // such as a wrong password
				return fmt.Errorf("%w: the connection is closed: %w", flow.ErrUnavailable, failed)
			}
			return fmt.Errorf("%w: the connection is closed", flow.ErrUnavailable)
		}
		if !sleep(ctx, 20*time.Millisecond) {
			if failed == nil {
				failed = ctx.Err()
			}
			return fmt.Errorf("%w: %w", flow.ErrUnavailable, failed)
		}
	}
}

// State is the bucket of users and fields.
func (s *Stream) State() (broker.KeyValue, error) { return s.states, s.ready() }

// Leases is the bucket of leases, whose entries expire after LeaseTTL.
func (s *Stream) Leases() (broker.KeyValue, error) { return s.leases, s.ready() }

// ForgetState removes an entry of the state store without a marker, if it is of this revision or
// older.
func (s *Stream) ForgetState(ctx context.Context, key string, revision uint64) error {
	if err := s.js.Purge(ctx, "KV_"+StateBucket, "$KV."+StateBucket+"."+key, revision+1); err != nil {
		return unavailable(fmt.Errorf("remove an entry of the state store: %w", err), 2*time.Second)
	}
	return nil
}

// Now is the time by the clock of the server that stamps dead letters.
func (s *Stream) Now(ctx context.Context) (time.Time, error) {
	info, err := s.js.Info(ctx, DeadStream, "")
	if err != nil {
		return time.Time{}, unavailable(fmt.Errorf("ask for the time: %w", err), 2*time.Second)
	}
	return info.TimeStamp, nil
}

// Check fails unless NATS answers for lane 0, for readiness.
func (s *Stream) Check(ctx context.Context) error {
	if err := s.ready(); err != nil {
		return err
	}
	if status, _ := s.js.Status(); status != nats.CONNECTED {
		return fmt.Errorf("%w: NATS is %s", flow.ErrUnavailable, status)
	}
	if _, err := s.js.Info(ctx, LaneName(0), ""); err != nil {
		return fmt.Errorf("%w: lane 0: %w", flow.ErrUnavailable, err)
	}
	return nil
}

// Run opens the Stream, watches the connection, and keeps the look-up of lanes fresh until ctx is
// done. It fails if the streams are unusable.
func (s *Stream) Run(ctx context.Context) error {
	if err := s.Open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var watch sync.WaitGroup
	watch.Go(func() { s.link.run(ctx) })
	defer watch.Wait()
	tick := time.NewTicker(s.cfg.Poll)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.askMonitors(ctx)
		_, err := s.Lag(ctx) // looks up the lanes
		_, changes := s.ChangeLag(ctx)
		err = errors.Join(err, changes, s.room.look(ctx, s))
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			s.log.Warn("look-up of lanes failed", "error", err)
		case err == nil && failing:
			s.log.Info("look-up of lanes succeeded again")
		}
		failing = err != nil
	}
}

// AddLane creates the next lane and returns its number. It is assigned to new sources; existing
// ones must be spread.
func (s *Stream) AddLane(ctx context.Context) (int, error) {
	if err := s.Refresh(ctx); err != nil {
		return 0, err
	}
	next := 0
	for _, lane := range s.Lanes() {
		next = max(next, lane.Number+1)
	}
	cfg := s.laneConfig(next)
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = s.Lanes()[0].MaxBytes // lanes of a source share its load evenly, so they have one size
	}
	if cfg.Duplicates == 0 {
		cfg.Duplicates = s.Lanes()[0].Window // a request cut over several lanes has one duplicate window
	}
	if err := s.ensure(ctx, cfg); err != nil {
		return 0, err
	}
	return next, s.Refresh(ctx)
}

// RepeatWindow is the deduplication window of requests, in stream time.
func (s *Stream) RepeatWindow() time.Duration { return s.cfg.RepeatWindow }

const (
	// openLimit bounds one attempt to open: servers without a leader do not answer, not
	// even once they have one.
	openLimit = 5 * time.Second

	// openPause is the pause between attempts.
	openPause = 500 * time.Millisecond
)

// untilOpen retries until it succeeds, ctx ends, or an error is permanent: the servers of a
// cluster accept connections before they have elected a leader.
func (s *Stream) untilOpen(ctx context.Context) error {
	for said := false; ; said = true {
		try, cancel := context.WithTimeout(ctx, openLimit)
		err := s.open(try)
		cancel()
		if err == nil || !passes(err) {
			return err
		}
		if !said && ctx.Err() == nil {
			s.log.Warn("waiting for JetStream", "error", err)
		}
		if !sleep(ctx, openPause) {
			return err
		}
	}
}

// passes reports whether an error of opening is temporary: servers that are starting, or none.
func passes(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case codeNoSuitablePeers, codeNotEnabled, codeInsufficientResources:
			return true
		}
		v, _, _ := judgeCode(api)
		return v != giveUp
	}
	for _, transient := range []error{
		flow.ErrUnavailable, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, jetstream.ErrJetStreamNotEnabled,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}
