// Package stream keeps records in NATS JetStream from the moment they are
// accepted until they are stored, and keeps the checkpoint of each lane.
//
//	Publish ──▶ lane FLOW_n ──▶ Reader ──▶ (the ingester)
//	               ▲    │                      │
//	        Purger ┘    └─ Lag     LaneStates, DeadLetters
//
// A lane is one JetStream stream: one log, one writer thread in the server,
// one reader at a time. A record always goes to the same lane of its source's
// list, because each lane deduplicates only what it has stored itself.
//
// What happens in Publish:
//
//  1. The source's list of lanes is looked up, and the records are cut for it.
//  2. The chunks are copied into the last batch of each lane's queue, which is open
//     while the batch before is in flight. No request waits for company.
//  3. When its turn comes the batch is closed, and goes out as one message with one
//     sync to disk. After an unknown outcome the same bytes go out again under the
//     same id to the same lane.
//  4. The sender sets the outcome once; every call that has a chunk in the batch
//     returns, and so does a repeat that came meanwhile.
//
// Where what is:
//
//	stream.go       opening everything         config.go     sizes, names, rights, settings of streams
//	lanes.go        the lanes there are        sources.go    the list of lanes of each source
//	publisher.go    Publish                    spread.go     moves of sources to other lanes
//	requests.go     repeats at this api        batcher.go    many requests in one entry
//	judge.go        attempts and their errors  link.go       the connection
//	reader.go       reading back               scan.go       reading once, headers, one entry
//	lanestates.go   states of lanes, holds     stored.go     waiting until records are stored
//	purger.go       lag, and what may go       forgets.go    orders to forget instances
//	monitors.go     what the servers show
//	changes.go      users and dataset fields   deadletters.go, deadroom.go, replay.go  what cannot be stored
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

// Stream is the lanes, the dead letters and the buckets of one installation.
// Everything else of this package works on one.
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

	view    atomic.Pointer[view]   // what was looked up last
	refresh turn                   // one look-up at a time
	room    *deadRoom              // shared by all Streams of this process
	waits   waits                  // for callers that wait until records are stored
	behind  sync.Map               // since when a lane ends before what was read from it, by number
	trouble atomic.Pointer[string] // why a server of Config.Monitors cannot write, in its words
	settle  time.Duration          // settleTime
	silence time.Duration          // readSilence

	opening turn          // one Open at a time
	opened  chan struct{} // closed once all of the above is there
}

// New prepares a Stream; Run, or Open, opens it. Until it is open nothing can be
// published or asked: the answer is flow.ErrUnavailable.
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

// Over prepares another Stream, over a connection of its own, that counts together
// with s.
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

// turn is a lock that is held while a server is asked: unlike a mutex it lets
// virtual time pass for those who wait for it.
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

// Open is New and the method Open.
func Open(ctx context.Context, nc *nats.Conn, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Stream, error) {
	s, err := New(nc, cfg, log, reg)
	if err != nil {
		return nil, err
	}
	return s, s.Open(ctx)
}

// Open makes or checks lane 0, the dead letters and the buckets, and finds the
// other lanes, unless that is done. It waits for NATS as long as ctx allows.
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

// errNotOpen is the answer to callers that come before: nothing was published.
var errNotOpen = &flow.RetryError{Err: fmt.Errorf("%w: it is not open yet", flow.ErrUnavailable), After: time.Second}

// ready fails until the Stream is open.
func (s *Stream) ready() error {
	select {
	case <-s.opened:
		return nil
	default:
		return errNotOpen
	}
}

// open makes or checks everything once.
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

// Leases is the bucket of leases of lanes. It drops what is not renewed for
// LeaseTTL.
func (s *Stream) Leases() (broker.KeyValue, error) { return s.leases, s.ready() }

// ForgetState removes an entry of the state store without a trace, if it is of
// this revision or older: one that was written meanwhile stays.
func (s *Stream) ForgetState(ctx context.Context, key string, revision uint64) error {
	if err := s.js.Purge(ctx, "KV_"+StateBucket, "$KV."+StateBucket+"."+key, revision+1); err != nil {
		return unavailable(fmt.Errorf("remove an entry of the state store: %w", err), 2*time.Second)
	}
	return nil
}

// Now is the time by the clock of the server that stamps what is set aside,
// which this machine's may differ from.
func (s *Stream) Now(ctx context.Context) (time.Time, error) {
	info, err := s.js.Info(ctx, DeadStream, "")
	if err != nil {
		return time.Time{}, unavailable(fmt.Errorf("ask for the time: %w", err), 2*time.Second)
	}
	return info.TimeStamp, nil
}

// Check says whether NATS answers for lane 0: for readiness.
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

// Run opens the Stream, watches the connection and keeps the lanes up to date until
// ctx is done. It fails when what there is cannot be used.
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
		_, err := s.Lag(ctx) // looks the lanes up
		_, changes := s.ChangeLag(ctx)
		err = errors.Join(err, changes, s.room.look(ctx, s))
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			s.log.Warn("lanes cannot be looked up", "error", err)
		case err == nil && failing:
			s.log.Info("lanes can be looked up again")
		}
		failing = err != nil
	}
}

// AddLane makes the next lane and returns its number. It takes records of
// sources that are seen for the first time from now on; the others stay where
// they are until they are spread.
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
		cfg.MaxBytes = s.Lanes()[0].MaxBytes // the lanes of a source share its load evenly, so they are of one size
	}
	if cfg.Duplicates == 0 {
		cfg.Duplicates = s.Lanes()[0].Window // a request that is cut over several lanes is known in all of them as long
	}
	if err := s.ensure(ctx, cfg); err != nil {
		return 0, err
	}
	return next, s.Refresh(ctx)
}

// RepeatWindow is how long a repeated request is known, in stream time.
func (s *Stream) RepeatWindow() time.Duration { return s.cfg.RepeatWindow }

const (
	// openLimit ends one try to open: servers without a leader do not answer,
	// and do not come back to it when they have one.
	openLimit = 5 * time.Second

	// openPause is the pause between two tries.
	openPause = 500 * time.Millisecond
)

// untilOpen opens until it succeeds, ctx ends, or something fails that does not
// pass: the servers of a cluster answer connections before they have agreed on
// a leader, and a program that starts meanwhile must not give up.
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

// passes tells whether an error of opening comes from servers that are just
// starting, or from none.
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
