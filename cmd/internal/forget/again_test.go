package forget_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/audit/rebuild"
	"sluice/cmd/internal/audit/recount"
	"sluice/cmd/internal/audit/verify"
	"sluice/cmd/internal/forget"
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

// lanes reads lanes for the ingester.
type lanes struct{ *stream.Stream }

func (l lanes) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	return l.OpenLane(ctx, lane, from, 0)
}

func (l lanes) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	return l.Stream.OpenChanges(ctx, from)
}

// site is one lane, an ingester, and tables.
type site struct {
	*stream.Stream
	t        *testing.T
	p        *stream.Publisher
	db       *warehouse.DB
	database string
	requests int
}

func newSite(t *testing.T) *site {
	log := slog.New(slog.DiscardHandler)
	nc, err := dial.Connect(dial.Config{URL: natstest.Start(t).URL, Name: "test"}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	s, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: 64 << 20}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	name, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	fatal.If(t, db.Migrate(t.Context()))
	i := ingest.New(ingest.Config{Owner: "a"}, ingest.Deps{
		Leases: lease.New(lease.Config{Instance: "a", Bucket: s.Leases, TTL: stream.LeaseTTL, Lanes: s.LaneNumbers}, log, prometheus.NewRegistry()),
		Lanes:  lanes{s}, States: stream.NewLaneStates(s),
		Tables: db, Index: db, DeadLetters: stream.NewDeadLetters(s), Forgets: s,
	}, log, prometheus.NewRegistry())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = i.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return &site{Stream: s, t: t, p: stream.NewPublisher(s), db: db, database: name}
}

// post publishes records in a request of their own, and waits until they are stored.
func (s *site) post(records ...string) {
	s.t.Helper()
	s.requests++
	receipt, err := s.p.Publish(s.t.Context(), &flow.Submission{
		ID: fmt.Sprint("s", s.requests), Hash: fmt.Sprint(s.requests), Subject: "engine", Source: "engine", Received: time.Now(),
		Records: flow.Chunks{{Body: []byte("[" + strings.Join(records, ",") + "]"), Records: len(records)}},
	})
	if err == nil {
		err = s.WaitStored(s.t.Context(), receipt.Places)
	}
	fatal.If(s.t, err)
}

func (s *site) exec(statement string) string {
	s.t.Helper()
	return strings.TrimSpace(clickhousetest.Exec(s.t, clickhousetest.Shared(s.t), strings.ReplaceAll(statement, "flow.", s.database+".")))
}

func (s *site) forget(cfg forget.Config) []*forget.Receipt {
	s.t.Helper()
	cfg.Wait, cfg.Running, cfg.Recount = 20*time.Second, true, recount.Config{Wait: 20 * time.Second}
	receipts, err := forget.Run(s.t.Context(), s.Stream, s.db, cfg)
	fatal.If(s.t, err)
	return receipts
}

// wantRows checks the number of records of each instance.
func (s *site) wantRows(when string, forgotten, other int) {
	s.t.Helper()
	got := s.exec("SELECT countIf(process_instance_key = '77'), countIf(process_instance_key = '5') FROM flow.records FINAL")
	if want := fmt.Sprintf("%d\t%d", forgotten, other); got != want {
		s.t.Errorf("%s: %q records of the forgotten and of the other instance, want %q", when, got, want)
	}
}

// TestAForgottenInstanceStaysForgotten: after ClickHouse was restored from before the order and
// its tables rebuilt, after its records are resent, and after NATS was restored too.
func TestAForgottenInstanceStaysForgotten(t *testing.T) {
	s := newSite(t)
	now := time.Now().UnixMilli()
	of := func(instance, position int) string {
		return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%[1]d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,"value":{"processInstanceKey":%d}}`, position, now, instance)
	}
	s.post(of(77, 1), of(5, 2), of(77, 3))
	s.exec("CREATE TABLE flow.saved ENGINE = MergeTree ORDER BY position AS SELECT * FROM flow.records")
	receipts := s.forget(forget.Config{Instance: "77"})
	s.wantRows("forgotten", 0, 1)
	s.post(of(77, 3), of(5, 4), of(77, 5), `{"id":"none","timestamp":1,"valueType":"NOTE","value":{"about":77}}`)
	s.wantRows("sent again", 0, 2)
	expect.Equal(t, "records of no instance that name it are stored", "0", s.exec("SELECT count() FROM flow.records WHERE id = 'none'"))

	setBack := func() {
		s.exec("INSERT INTO flow.records SELECT * FROM flow.saved WHERE process_instance_key = '77'")
		s.exec("TRUNCATE TABLE flow.receipts")
		s.exec("TRUNCATE TABLE flow.forgotten")
		s.wantRows("set back", 2, 2)
	}
	setBack()
	report, err := verify.Run(t.Context(), s.Stream, s.db, verify.Config{})
	if err != nil || !strings.Contains(fmt.Sprint(report.Problems), "was not carried out") {
		t.Errorf("verify: %v, %v, want that the order was not carried out", report.Problems, err)
	}
	shadow, err := s.db.Shadow(s.database + "_rebuilt")
	fatal.If(t, err)
	t.Cleanup(func() { s.exec("DROP DATABASE IF EXISTS " + s.database + "_rebuilt") })
	if _, err := rebuild.Run(t.Context(), s.Stream, shadow, rebuild.Config{}); err == nil || !strings.Contains(err.Error(), "was not carried out") {
		t.Errorf("rebuild: %v, want that the order was not carried out", err)
	}
	if again := s.forget(forget.Config{Instance: "77"}); len(again) != 1 || again[0].ID != receipts[0].ID || again[0].Records != 2 { // asked for again, as after an interruption
		t.Errorf("carried out once more: %+v", again)
	}
	s.wantRows("carried out once more", 0, 2)
	if _, err := rebuild.Run(t.Context(), s.Stream, shadow, rebuild.Config{}); err != nil {
		t.Fatal(err)
	}
	expect.Equal(t, "records of it in the rebuilt tables", "0", s.exec("SELECT count() FROM "+s.database+"_rebuilt.records WHERE process_instance_key = '77'"))
	if report, err = verify.Run(t.Context(), s.Stream, s.db, verify.Config{}); err != nil || !report.OK {
		t.Errorf("verify: %+v, %v", report, err)
	}

	// A backup from before the order: KV has no order, and ClickHouse no receipt.
	fatal.If(t, s.EndForget(t.Context(), receipts[0].ID))
	setBack()
	kept, printed := new(forget.Receipt), must(json.Marshal(receipts[0]))
	fatal.If(t, json.Unmarshal(printed, kept))
	if again := s.forget(forget.Config{Receipts: []*forget.Receipt{kept}}); len(again) != 1 || again[0].ID != kept.ID {
		t.Errorf("from the receipt: %+v", again)
	}
	s.wantRows("from the receipt", 0, 2)
	s.post(of(77, 6))
	s.wantRows("sent again after that", 0, 2)
}

// TestAnOrderEnds: when it is older than backups and records, and not before.
func TestAnOrderEnds(t *testing.T) {
	s := newSite(t)
	s.post(fmt.Sprintf(`{"partitionId":1,"position":1,"key":1,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d,"value":{"processInstanceKey":77}}`, time.Now().UnixMilli()))
	r := s.forget(forget.Config{Instance: "77"})[0]
	orders := func(want int, when string) {
		t.Helper()
		if all, err := s.Forgets(t.Context()); err != nil || len(all) != want {
			t.Errorf("%s: %d orders, %v, want %d", when, len(all), err, want)
		}
	}
	const day = 24 * time.Hour
	r.Done = r.Done.Add(-10 * day) // as if it had been then
	fatal.If(t, s.db.WriteReceipt(t.Context(), r.ID, r.Begun, r.Done, string(must(json.Marshal(r)))))
	retain := func(days int) {
		t.Helper()
		fatal.If(t, s.db.Retain(t.Context(), warehouse.Retention{Table: "records", Days: days}))
	}
	retain(0)
	s.forget(forget.Config{Backups: day})
	orders(1, "records kept forever")
	retain(20)
	s.forget(forget.Config{Backups: day})
	orders(1, "with records for longer")
	retain(5)
	s.forget(forget.Config{})
	orders(1, "when nobody says how long backups are kept")
	s.forget(forget.Config{Backups: 11 * day})
	orders(1, "with backups for longer")
	s.forget(forget.Config{Backups: 9 * day})
	orders(0, "with neither")
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
