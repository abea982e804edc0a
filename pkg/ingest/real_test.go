package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/change"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/lease"
	"sluice/pkg/state"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// site is a real NATS server and a real engine.
type site struct {
	t      *testing.T
	nats   *natstest.Server
	engine *clickhousetest.Engine
}

// open connects to the streams, as a process would.
func (s *site) open(name string) *stream.Stream {
	s.t.Helper()
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	nc, err := dial.Connect(dial.Config{URL: s.nats.URL, Name: name}, log, reg)
	if err != nil {
		s.t.Fatal(err)
	}
	opened, err := stream.Open(s.t.Context(), nc, stream.Config{MaxBytes: 64 << 20, Poll: 100 * time.Millisecond}, log, reg)
	if err != nil {
		s.t.Fatal(err)
	}
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
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { db.Close() })
	return db
}

// lanes reads lanes for the ingester.
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

// connect is a connection to NATS and no more.
func (s *site) connect() *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(s.nats.URL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// ingester runs one with connections of its own, until stop.
func (s *site) ingester(name string) (stop func()) {
	stop, _ = s.ingesterToCheck(name, s.warehouse())
	return stop
}

// ingesterToCheck is ingester, and how it is.
func (s *site) ingesterToCheck(name string, db *warehouse.DB) (stop func(), check func(context.Context) error) {
	return s.ingesterOf(name, db, func(*ingest.Deps) {})
}

// ingesterOf is ingesterToCheck with others to work with.
func (s *site) ingesterOf(name string, db *warehouse.DB, with func(*ingest.Deps)) (stop func(), check func(context.Context) error) {
	opened := s.open(name)
	deps := ingest.Deps{
		Leases: lease.New(lease.Config{Instance: name, Bucket: opened.Leases, TTL: stream.LeaseTTL, Lanes: opened.LaneNumbers}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()),
		Lanes:  lanes{opened}, States: stream.NewLaneStates(opened),
		Tables: db, Index: db, DeadLetters: stream.NewDeadLetters(opened), Forgets: opened,
	}
	with(&deps)
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

// TestRealPartsFailAndNothingIsLostOrDoubled publishes while the engine is
// killed and ingesters come and go, with records among them that a constraint
// of the table refuses.
func TestRealPartsFailAndNothingIsLostOrDoubled(t *testing.T) {
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	fatal.If(t, s.warehouse().Migrate(t.Context()))
	clickhousetest.Exec(t, s.engine, "ALTER TABLE flow.records ADD CONSTRAINT no_poison CHECK NOT startsWith(own_id, 'poison')")

	opened := s.open("api")
	publisher := stream.NewPublisher(opened)
	stopA := s.ingester("a")
	defer stopA()
	stopB := func() {}
	defer func() { stopB() }()

	const submissions, records, poisonEvery = 240, 50, 80 // each that is refused takes some twenty inserts to be found
	poison := 0
	for n := range submissions {
		var body strings.Builder
		for r := range records {
			id := fmt.Sprintf("1-%d", n*records+r)
			if r == n%records && n%poisonEvery == poisonEvery-1 {
				id = "poison-" + id
				poison++
			}
			fmt.Fprintf(&body, `,{"id":%q,"key":%d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d}`, id, n*records+r, time.Now().UnixMilli())
		}
		_, err := publisher.Publish(t.Context(), &flow.Submission{
			ID: fmt.Sprint("s", n), Hash: fmt.Sprint(n), Subject: "engine", Received: time.Now(),
			Records: flow.Chunks{{Body: []byte("[" + body.String()[1:] + "]"), Records: records}},
		})
		fatal.If(t, err)
		switch n {
		case 60, 150:
			s.engine.Kill()
			s.engine.Restart()
		case 100:
			stopB = s.ingester("b")
			stopA()
		}
		time.Sleep(10 * time.Millisecond)
	}
	deadline := time.Now().Add(3 * time.Minute) // of a busy machine
	for {
		lag, err := opened.Lag(t.Context())
		if err == nil && lag[0].Messages == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not done: %+v, %v", lag, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	stopB()

	all := submissions*records - poison
	want := fmt.Sprintf("%d\t%d\t%d\n", all, all, all)
	if got := clickhousetest.Exec(t, s.engine, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records"); got != want {
		t.Errorf("rows, ids, counted: got %swant %s", got, want)
	}
	dead := 0
	for d, err := range stream.NewDeadLetters(opened).List(t.Context(), stream.DeadFilter{}) {
		fatal.If(t, err)
		dead++
		if body := string(d.Message.Body); !strings.HasPrefix(body, `{"id":"poison-1-`) || !strings.Contains(d.Reason, "VIOLATED_CONSTRAINT") {
			t.Errorf("a dead letter holds %s for %s", body, d.Reason)
		}
	}
	if dead != poison || poison != 3 {
		t.Errorf("%d dead letters of %d refused records", dead, poison)
	}
}

// TestALostPositionStoresNothingTwice: the bucket of positions is gone, and the
// lane holds what was stored of it.
func TestALostPositionStoresNothingTwice(t *testing.T) {
	t.Parallel()
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	fatal.If(t, s.warehouse().Migrate(t.Context()))
	opened := s.open("test")
	publisher := stream.NewPublisher(opened)
	publish := func(id string) {
		t.Helper()
		if _, err := publisher.Publish(t.Context(), &flow.Submission{ID: id, Hash: id, Source: "a", Received: time.Now(),
			Records: flow.Chunks{{Body: []byte(`[{"intent":"` + id + `"}]`), Records: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(done uint64) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if pos, err := stream.NewLaneStates(opened).Read(t.Context(), 0); err == nil && pos.Done == done {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("the lane stands at %+v, %v, want %d", pos, err, done)
			}
		}
	}
	publish("one")
	publish("two")
	stop, _ := s.ingesterToCheck("a", s.warehouse())
	stored(2)
	stop()

	js, err := s.connect().JetStream()
	fatal.If(t, err)
	kv, err := js.KeyValue(stream.LaneBucket)
	fatal.If(t, err)
	fatal.If(t, kv.Purge("lane.0"))
	stop, check := s.ingesterToCheck("b", s.warehouse())
	defer func() { stop() }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := check(t.Context()); err != nil && strings.Contains(err.Error(), "sluice lanes reset --lane 0") {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("Check says %v, want what to do", err)
		}
	}
	if _, err := stream.NewLaneStates(opened).Reset(t.Context(), 0, 2, 0); err != nil {
		t.Fatal(err)
	}
	publish("three")
	stop()
	stop, _ = s.ingesterToCheck("c", s.warehouse())
	stored(3)
	if got, want := clickhousetest.Exec(t, s.engine, "SELECT count(), uniqExact(intent), uniqExact(incarnation) FROM flow.records"), "3\t3\t2\n"; got != want {
		t.Errorf("rows, records, lives: got %swant %s", got, want)
	}
}

// TestChangesAreVisibleWithoutClickHouse: a user is changed and read while it is
// away, also when the change of another one can never be applied; and it is
// written down when ClickHouse is back.
func TestChangesAreVisibleWithoutClickHouse(t *testing.T) {
	t.Parallel()
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	db := s.warehouse()
	fatal.If(t, db.Migrate(t.Context()))
	s.engine.Kill()
	opened := s.open("test")
	bucket, err := opened.State()
	fatal.If(t, err)
	ann, bob := change.Target{User: "ann"}, change.Target{User: "bob"}
	if _, err := bucket.Put(t.Context(), bob.Key(), []byte("damaged")); err != nil {
		t.Fatal(err)
	}
	publisher, store := stream.NewPublisher(opened), state.New(opened.State)
	patch := func(target change.Target, body string) {
		t.Helper()
		c, _, err := change.NewUserPatch(t.Context(), target.User, false, []byte(body), &change.Secrets{Key: make([]byte, 32)})
		if err == nil {
			_, _, err = publisher.PublishChange(t.Context(), c)
		}
		fatal.If(t, err)
	}
	visible := func(doc string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if e, err := store.Entry(t.Context(), ann); err == nil && string(e.Doc) == doc {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("the user is %s, %v, want %s", e.Doc, err, doc)
			}
		}
	}
	run := func(name string) (stop func()) {
		stop, _ = s.ingesterOf(name, db, func(deps *ingest.Deps) {
			deps.Audits, deps.ChangeStates = state.NewAuditor(db), stream.NewChangeStates(opened)
			deps.Changes = state.NewApplier(store, prometheus.NewRegistry())
		})
		return stop
	}
	if _, err := publisher.Publish(t.Context(), &flow.Submission{ID: "id", Hash: "hash", Source: "a", Received: time.Now(),
		Records: flow.Chunks{{Body: []byte(`[{"intent":"CREATED"}]`), Records: 1}}}); err != nil {
		t.Fatal(err)
	}
	patch(bob, `{"name":"Bob"}`)
	patch(ann, `{"name":"Ann"}`)
	stop := run("a")
	visible(`{"name":"Ann"}`)
	stop()
	patch(ann, `{"remarks":"while no ingester ran"}`)
	stop = run("b")
	defer func() { stop() }()
	visible(`{"name":"Ann","remarks":"while no ingester ran"}`)

	s.engine.Restart()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		pos, err := stream.NewLaneStates(opened).Read(t.Context(), 0)
		if err == nil && pos.Done == 4 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the lane stands at %+v, %v", pos, err)
		}
	}
	if got, want := clickhousetest.Exec(t, s.engine, "SELECT groupArray(stream_seq), (SELECT count() FROM flow.records) FROM (SELECT stream_seq FROM flow.changes ORDER BY stream_seq)"), "[2,3,4]\t1\n"; got != want {
		t.Errorf("written down, and records: got %swant %s", got, want)
	}
	letters := 0
	for d, err := range stream.NewDeadLetters(opened).List(t.Context(), stream.DeadFilter{}) {
		if letters++; err != nil || d.Message.Seq != 2 || !strings.Contains(d.Reason, "corrupt") {
			t.Errorf("set aside is %+v, %v", d, err)
		}
	}
	if letters != 1 {
		t.Errorf("%d letters, want the change of the damaged entry", letters)
	}
}

// TestABlockThatTakesTooMuchMemoryIsStoredInPieces: ClickHouse refuses it, and
// would refuse it for ever.
func TestABlockThatTakesTooMuchMemoryIsStoredInPieces(t *testing.T) {
	t.Parallel()
	s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
	fatal.If(t, s.warehouse().Migrate(t.Context()))
	const rows = 2000
	var body strings.Builder
	for r := range rows {
		fmt.Fprintf(&body, `,{"id":"1-%d","key":%d,"valueType":"JOB","timestamp":%d,"value":{"errorMessage":%q}}`, r, r, time.Now().UnixMilli(), strings.Repeat("long ", 2000))
	}
	opened := s.open("test")
	if _, err := stream.NewPublisher(opened).Publish(t.Context(), &flow.Submission{ID: "id", Hash: "hash", Source: "a", Received: time.Now(),
		Records: flow.Chunks{{Body: s2.Encode(nil, []byte("["+body.String()[1:]+"]")), Encoding: flow.EncodingS2, Records: rows}}}); err != nil {
		t.Fatal(err)
	}
	stop, check := s.ingesterToCheck("a", s.warehouseAt(s.engine.URL("flow")+"?max_memory_usage=60000000"))
	defer stop()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if pos, err := stream.NewLaneStates(opened).Read(t.Context(), 0); err == nil && pos.Done == 1 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the lane stands at %+v, %v: %v", pos, err, check(t.Context()))
		}
	}
	want := fmt.Sprintf("%d\t%d\t%d\n", rows, rows, rows)
	if got := clickhousetest.Exec(t, s.engine, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records"); got != want {
		t.Errorf("rows, ids, counted: got %swant %s", got, want)
	}
}

// TestAnIngesterThatHasLostClickHouseGivesUpItsLanes: another one can reach it.
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
	wait("the one that is alone keeps the lane, and says what is wrong", func() bool { return owner() == "cut-off" && check(t.Context()) != nil })
	stopOther := s.ingester("other")
	defer stopOther()
	wait("the other one stores", func() bool {
		return clickhousetest.Exec(t, s.engine, "SELECT count() FROM flow.records") == "1\n"
	})
	if got := owner(); got != "other" {
		t.Errorf("the lane is %s's", got)
	}
}
