package verify_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/audit/rebuild"
	"sluice/cmd/internal/audit/verify"
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

// lanes reads lanes for the ingester.
type lanes struct{ *stream.Stream }

func (l lanes) Open(ctx context.Context, lane int, from uint64) (ingest.Reader, error) {
	return l.OpenLane(ctx, lane, from, 0)
}

func (l lanes) OpenChanges(ctx context.Context, from uint64) (ingest.Reader, error) {
	return l.Stream.OpenChanges(ctx, from)
}

// installation is one lane of messages of one record each, every second of which repeats
// the one before, all of it stored.
func installation(t *testing.T, messages int) (*stream.Stream, jetstream.JetStream, *warehouse.DB) {
	log := slog.New(slog.DiscardHandler)
	nc, err := dial.Connect(dial.Config{URL: natstest.Start(t).URL, Name: "test"}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(nc.Close)
	opened, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: 64 << 20}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	_, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url}, log, prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	fatal.If(t, db.Migrate(t.Context()))
	p := stream.NewPublisher(opened)
	for n := range messages {
		body := fmt.Sprintf(`[{"partitionId":1,"position":%d,"key":%[1]d,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","timestamp":%d}]`, 1+n/2, time.Now().UnixMilli()/1e7*1e7)
		_, err := p.Publish(t.Context(), &flow.Submission{
			ID: fmt.Sprint("s", n), Hash: fmt.Sprint(n), Subject: "engine", Source: "engine", Received: time.Now(), Identified: true,
			Records: flow.Chunks{{Body: []byte(body), Records: 1}},
		})
		fatal.If(t, err)
	}
	fatal.If(t, nc.Publish(stream.TickTopic(0), nil))
	i := ingest.New(ingest.Config{Owner: "a"}, ingest.Deps{
		Leases: lease.New(lease.Config{Instance: "a", Bucket: opened.Leases, TTL: stream.LeaseTTL, Lanes: opened.LaneNumbers}, log, prometheus.NewRegistry()),
		Lanes:  lanes{opened}, States: stream.NewLaneStates(opened),
		Tables: db, Index: db, DeadLetters: stream.NewDeadLetters(opened), Forgets: opened,
	}, log, prometheus.NewRegistry())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = i.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		lag, err := opened.Lag(t.Context())
		if err == nil && lag[0].Messages == 0 {
			break
		}
		fatal.When(t, time.Now().After(deadline), "not stored: %+v, %v", lag, err)
	}
	js, err := jetstream.New(nc)
	fatal.If(t, err)
	return opened, js, db
}

// TestAPurgeBetweenTwoLooks: a purge that began before the pin takes half of a lane after it
// was read, before differing runs, here of repeated records, are reread. Verify succeeds: the
// totals account for purged messages.
func TestAPurgeBetweenTwoLooks(t *testing.T) {
	const messages = 520
	opened, js, db := installation(t, messages)
	lane, err := js.Stream(t.Context(), stream.LaneName(0))
	fatal.If(t, err)
	purge := sync.OnceFunc(func() {
		expect.NoError(t, lane.Purge(t.Context(), jetstream.WithPurgeSequence(301)))
	})
	report, err := verify.Run(t.Context(), opened, db, verify.Config{Progress: func(uint64, uint64) { purge() }})
	fatal.If(t, err)
	total, purged := report.Total(), report.Purged()
	expect.Not(t, !report.OK || len(report.Lanes) != 1 || report.Lanes[0].First != 301, "got %+v, want that all is well from message 301 on", report)
	if total.Accepted != messages-300 || total.Stored != (messages-300)/2 || purged.Read != 300 || purged.Stored != 150 || report.Lanes[0].Before != 150 {
		t.Errorf("read %+v, purged %+v with %d rows", total, purged, report.Lanes[0].Before)
	}
}

// TestARebuildPinsItsMessages: none is purged before it is inserted.
func TestARebuildPinsItsMessages(t *testing.T) {
	opened, js, db := installation(t, 20)
	states, err := js.KeyValue(t.Context(), stream.LaneBucket)
	fatal.If(t, err)
	shadow, err := db.Shadow(db.Database() + "_rebuilt")
	fatal.If(t, err)
	t.Cleanup(func() {
		clickhousetest.Exec(t, clickhousetest.Shared(t), "DROP DATABASE IF EXISTS "+db.Database()+"_rebuilt")
	})
	pinned := func() string {
		entry, err := states.Get(t.Context(), "pin.0.rebuild")
		if err != nil {
			return err.Error()
		}
		return string(entry.Value())
	}
	during := ""
	report, err := rebuild.Run(t.Context(), opened, shadow, rebuild.Config{Progress: func(uint64, uint64) { during = pinned() }})
	if err != nil || !report.OK {
		t.Fatalf("rebuild: %+v, %v", report, err)
	}
	expect.Not(t, !strings.HasPrefix(during, `{"from":1,`), "while messages are inserted, the pin is %s", during)
	expect.Not(t, !strings.Contains(pinned(), "not found"), "after the rebuild, the pin is %s", pinned())
}
