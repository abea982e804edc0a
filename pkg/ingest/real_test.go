package ingest_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

type site struct {
	t      *testing.T
	nats   *natstest.Server
	engine *clickhousetest.Engine
}

// open connects to the streams as a separate process.
func (s *site) open(name string) *stream.Stream {
	s.t.Helper()
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	nc, err := dial.Connect(dial.Config{URL: s.nats.URL, Name: name}, log, reg)
	fatal.If(s.t, err)
	opened, err := stream.Open(s.t.Context(), nc, stream.Config{MaxBytes: 64 << 20, Poll: 100 * time.Millisecond}, log, reg)
	fatal.If(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- opened.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		<-ended
		nc.Close()
	})
	return opened
}

func (s *site) warehouse() *warehouse.DB {
	s.t.Helper()
	return s.warehouseAt(s.engine.URL("flow"))
}

func (s *site) warehouseAt(url string) *warehouse.DB {
	s.t.Helper()
	db, err := warehouse.Open(warehouse.Config{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(s.t, err)
	s.t.Cleanup(func() { db.Close() })
	return db
}

type lanes struct{ *stream.Stream }

func (l lanes) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	c, err := l.OpenLane(ctx, lane, from, 0)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l lanes) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	c, err := l.Stream.OpenChanges(ctx, from)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ingester runs an ingester on its own connections until stop.
func (s *site) ingester(name string) (stop func()) {
	stop, _ = s.ingesterToCheck(name, s.warehouse())
	return stop
}

// ingesterToCheck is ingester with its health check.
func (s *site) ingesterToCheck(name string, db *warehouse.DB) (stop func(), check func(context.Context) error) {
	opened := s.open(name)
	deps := ingest.Deps{
		Leases: lease.New(lease.Config{Instance: name, Bucket: opened.Leases, TTL: stream.LeaseTTL, Lanes: opened.LaneNumbers}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()),
		Lanes:  lanes{opened}, States: stream.NewLaneStates(opened),
		Tables: db, Index: db, DeadLetters: stream.NewDeadLetters(opened), Forgets: opened,
	}
	i := ingest.New(ingest.Config{Owner: name, MaxRows: 500, PieceBytes: 1, RetryMax: time.Second, GiveUp: 500 * time.Millisecond}, deps, slog.New(slog.NewTextHandler(s.t.Output(), nil)), prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- i.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("ingester %s: %v", name, err)
		}
	}), i.Check
}

// TestAnIngesterThatHasLostClickHouseGivesUpItsLanes: another ingester can reach it.
func TestAnIngesterThatHasLostClickHouseGivesUpItsLanes(t *testing.T) {
	t.Parallel()
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	fatal.If(t, s.warehouse().Migrate(t.Context()))
	opened := s.open("test")
	if _, err := stream.NewPublisher(opened).Publish(t.Context(), &flow.Submission{ID: "id", Hash: "hash", Source: "a", Received: time.Now(),
		Records: flow.Chunks{{Body: []byte(`[{"intent":"CREATED"}]`), Records: 1}}}); err != nil {
		t.Fatal(err)
	}
	owner := func() string {
		pos, err := stream.NewLaneStates(opened).Read(t.Context(), 0)
		fatal.If(t, err)
		return pos.Owner
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the lane is %s's", what, owner())
			}
		}
	}
	stop, check := s.ingesterToCheck("cut-off", s.warehouseAt("clickhouse://default@127.0.0.1:1/flow"))
	defer stop()
	wait("the one that is alone keeps the lane, and reports the failure", func() bool { return owner() == "cut-off" && check(t.Context()) != nil })
	stopOther := s.ingester("other")
	defer stopOther()
	wait("the other one stores", func() bool {
		return clickhousetest.Exec(t, s.engine, "SELECT count() FROM flow.records") == "1\n"
	})
	expect.Equal(t, "owner of the lane", "other", owner())
}
