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

	"sluice/pkg/record"
)

// Stream is the lanes, the dead letters and the buckets of one installation.
// Everything else of this package works on one.
type Stream struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	cfg  Config
	log  *slog.Logger
	m    *metrics
	link *link

	positions jetstream.KeyValue
	sources   jetstream.KeyValue
	leases    jetstream.KeyValue
	states    jetstream.KeyValue
	dead      jetstream.Stream
	notes     jetstream.Stream // about dead letters

	view    atomic.Pointer[view] // what was looked up last
	refresh sync.Mutex           // one look-up at a time
	lane0   jetstream.Stream     // for changes
	waits   waits                // of who waits until records are stored
}

// Open makes or checks lane 0, the dead letters and the buckets, and finds the
// other lanes. It waits for NATS as long as ctx allows.
func Open(ctx context.Context, nc *nats.Conn, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Stream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("JetStream: %w", err)
	}
	s := &Stream{nc: nc, js: js, cfg: cfg.withDefaults(), log: log, m: newMetrics(reg), link: newLink(nc)}
	if err := connected(ctx, nc); err != nil {
		return nil, err
	}
	if err := s.checkSync(ctx); err != nil {
		return nil, err
	}
	if err := s.untilOpen(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// open makes or checks everything once.
func (s *Stream) open(ctx context.Context) (err error) {
	if s.lane0, err = s.ensure(ctx, s.laneConfig(0)); err != nil {
		return err
	}
	if s.dead, err = s.ensure(ctx, s.deadConfig()); err != nil {
		return err
	}
	if s.notes, err = s.ensure(ctx, s.noteConfig()); err != nil {
		return err
	}
	if s.positions, err = s.bucket(ctx, PositionBucket, 0); err != nil {
		return err
	}
	if s.sources, err = s.bucket(ctx, SourceBucket, 0); err != nil {
		return err
	}
	if s.leases, err = s.bucket(ctx, LeaseBucket, LeaseTTL); err != nil {
		return err
	}
	if s.states, err = s.bucket(ctx, StateBucket, 0); err != nil {
		return err
	}
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	for _, lane := range s.view.Load().lanes {
		if _, err := s.ensure(ctx, s.laneConfig(lane.Number)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stream) bucket(ctx context.Context, name string, ttl time.Duration) (jetstream.KeyValue, error) {
	want := s.bucketConfig(name, ttl)
	if name == StateBucket {
		if err := s.boundState(ctx, &want); err != nil {
			return nil, err
		}
	}
	if _, err := s.ensure(ctx, want); err != nil {
		return nil, err
	}
	kv, err := s.js.KeyValue(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	return kv, nil
}

// connected waits until nc is connected.
func connected(ctx context.Context, nc *nats.Conn) error {
	for nc.Status() != nats.CONNECTED {
		if nc.IsClosed() {
			if err := nc.LastError(); err != nil { // such as a wrong password
				return fmt.Errorf("%w: the connection is closed: %w", record.ErrUnavailable, err)
			}
			return fmt.Errorf("%w: the connection is closed", record.ErrUnavailable)
		}
		select {
		case <-ctx.Done():
			err := nc.LastError()
			if err == nil {
				err = ctx.Err()
			}
			return fmt.Errorf("%w: %w", record.ErrUnavailable, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// State is the bucket of users and fields.
func (s *Stream) State(context.Context) (jetstream.KeyValue, error) { return s.states, nil }

// Leases is the bucket of who works on which lane. It drops what is not renewed for
// LeaseTTL.
func (s *Stream) Leases() jetstream.KeyValue { return s.leases }

// ForgetState removes an entry of the state store without a trace, if it is of
// this revision or older: one that was written meanwhile stays.
func (s *Stream) ForgetState(ctx context.Context, key string, revision uint64) error {
	bucket, err := s.js.Stream(ctx, "KV_"+StateBucket)
	if err == nil {
		err = bucket.Purge(ctx, jetstream.WithPurgeSubject("$KV."+StateBucket+"."+key), jetstream.WithPurgeSequence(revision+1))
	}
	if err != nil {
		return unavailable(fmt.Errorf("remove an entry of the state store: %w", err), 2*time.Second)
	}
	return nil
}

// Now is the time by the clock of the server that stamps what is set aside,
// which this machine's may differ from.
func (s *Stream) Now(ctx context.Context) (time.Time, error) {
	info, err := s.dead.Info(ctx)
	if err != nil {
		return time.Time{}, unavailable(fmt.Errorf("ask for the time: %w", err), 2*time.Second)
	}
	return info.TimeStamp, nil
}

// Check says whether NATS answers for lane 0: for readiness.
func (s *Stream) Check(ctx context.Context) error {
	if s.nc.Status() != nats.CONNECTED {
		return fmt.Errorf("%w: NATS is %s", record.ErrUnavailable, s.nc.Status())
	}
	if _, err := s.lane0.Info(ctx); err != nil {
		return fmt.Errorf("%w: lane 0: %w", record.ErrUnavailable, err)
	}
	return nil
}

// Run watches the connection and keeps the lanes up to date until ctx is done.
func (s *Stream) Run(ctx context.Context) error {
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
		_, err := s.Lag(ctx) // looks the lanes up
		_, changes := s.ChangeLag(ctx)
		err = errors.Join(err, changes, s.deadGauges(ctx))
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			s.log.Warn("lanes can not be looked up", "error", err)
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
	if _, err := s.ensure(ctx, cfg); err != nil {
		return 0, err
	}
	return next, s.Refresh(ctx)
}

// RepeatWindow is how long a repeated request is known, in stream time.
func (s *Stream) RepeatWindow() time.Duration { return s.cfg.RepeatWindow }

// Refresh looks lanes and sources up now.
func (s *Stream) Refresh(ctx context.Context) error {
	s.refresh.Lock()
	defer s.refresh.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return s.look(ctx)
}

// Lanes are the lanes as they were looked up last, in order.
func (s *Stream) Lanes() []Lane {
	v := s.view.Load()
	lanes := make([]Lane, len(v.lanes))
	for i, l := range v.lanes {
		lanes[i] = *l
	}
	return lanes
}

// LaneNumbers are the numbers of Lanes.
func (s *Stream) LaneNumbers() []int {
	v := s.view.Load()
	numbers := make([]int, len(v.lanes))
	for i, l := range v.lanes {
		numbers[i] = l.Number
	}
	return numbers
}

// message reads one message of a lane from its leader.
func (s *Stream) message(ctx context.Context, lane int, seq uint64) (*jetstream.RawStreamMsg, error) {
	handle, err := s.handle(ctx, lane)
	if err != nil {
		return nil, err
	}
	return handle.GetMsg(ctx, seq)
}

// handle is the lane for reading.
func (s *Stream) handle(ctx context.Context, lane int) (jetstream.Stream, error) {
	if lane == 0 {
		return s.lane0, nil
	}
	return s.js.Stream(ctx, LaneName(lane))
}

// roomAfter is how long until a full lane is likely to have room for size
// bytes.
func (s *Stream) roomAfter(lane, size int) time.Duration {
	l, ok := s.view.Load().lane(lane)
	if !ok {
		return unknownRetryAfter
	}
	return l.drain.after(size, time.Now())
}

// state looks a lane up now, and its limits with it.
func (s *Stream) state(ctx context.Context, lane int) (*Lane, error) {
	handle, err := s.handle(ctx, lane)
	if err == nil {
		var info *jetstream.StreamInfo
		if info, err = handle.Info(ctx); err == nil {
			before, _ := s.view.Load().lane(lane)
			return newLane(info, before, time.Now()), nil
		}
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("lane %d: %w", lane, err)
	}
	return nil, unavailable(fmt.Errorf("look up lane %d: %w", lane, err), 2*time.Second)
}
