package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/benchtest"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/load"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// BenchmarkSentAgain stores records in the real engine, and then the same
// records in other messages: both as fast as they can be read from memory. An
// operation is a million records, or fewer with BENCH_RECORDS.
func BenchmarkSentAgain(b *testing.B) {
	for _, kind := range []struct {
		name     string
		envelope load.Envelope
	}{{"positions", load.FullEnvelope}, {"ids", load.SlimEnvelope}} {
		b.Run(kind.name, func(b *testing.B) {
			const records = 500_000
			bodies := benchtest.BatchesOf(b, kind.envelope, records/perMessage, perMessage)
			again := regroup(b, bodies, 700)
			e := clickhousetest.Start(b)
			db, err := warehouse.Open(warehouse.Config{URL: e.URL("flow")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			if err := db.Migrate(b.Context()); err != nil {
				b.Fatal(err)
			}
			f := &finite{}
			first := f.drain(b, db, messagesOf(bodies))
			second := f.drain(b, db, messagesOf(again))
			b.ReportMetric(records/first.Seconds(), "first-records/s")
			b.ReportMetric(records/second.Seconds(), "again-records/s")
			b.ReportMetric(0, "ns/op")
			if got := clickhousetest.Exec(b, e, "SELECT count() FROM flow.records"); got != fmt.Sprintln(records) {
				b.Errorf("%s rows, want %d", got, records)
			}
			if got := f.position.Totals; got.Stored != records || got.Repeated != records {
				b.Errorf("the totals are %+v, want %d stored and as many repeated", got, records)
			}
		})
	}
}

// regroup makes other messages of the same records, of n each.
func regroup(b *testing.B, bodies [][]byte, n int) (again [][]byte) {
	var body []byte
	count := 0
	end := func() {
		if count > 0 {
			again = append(again, append(body, ']'))
			body, count = nil, 0
		}
	}
	for _, whole := range bodies {
		err := record.Each(&flow.Message{Body: whole}, func(_ int, raw []byte) error {
			if count++; count == 1 {
				body = append(body, '[')
			} else {
				body = append(body, ',')
			}
			if body = append(body, raw...); count == n {
				end()
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	end()
	return again
}

func messagesOf(bodies [][]byte) (all []flow.Message) {
	for _, body := range bodies {
		all = append(all, flow.Message{
			Topic: "flow.0.record", Source: "engine", Received: benchtest.Start.Add(time.Hour),
			Body: s2.Encode(nil, body), Encoding: flow.EncodingS2,
		})
	}
	return all
}

// finite is a lane in memory that grows by what is drained.
type finite struct {
	flood
	messages []flow.Message
	reached  chan struct{}
}

func (f *finite) drain(b *testing.B, db *warehouse.DB, more []flow.Message) time.Duration {
	f.messages = append(f.messages, more...)
	f.reached = make(chan struct{})
	i := ingest.New(ingest.Config{Owner: "bench"}, ingest.Deps{
		Leases: onlyLane{}, Lanes: f, Positions: f, Warehouse: db, DeadLetters: deadLetters{},
	}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- i.Run(ctx) }()
	<-f.reached
	took := time.Since(start)
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return took
}

func (f *finite) Open(_ context.Context, _ int, from uint64) (ingest.Reader, error) {
	return &finiteReader{f, from}, nil
}

func (f *finite) Swap(ctx context.Context, lane int, next flow.Position) (flow.Position, error) {
	if next.Done == uint64(len(f.messages)) && f.position.Done < next.Done {
		close(f.reached)
	}
	return f.flood.Swap(ctx, lane, next)
}

type finiteReader struct {
	*finite
	next uint64
}

func (r *finiteReader) Next(ctx context.Context) (flow.Entry, error) {
	if r.next > uint64(len(r.messages)) {
		<-ctx.Done()
		return flow.Entry{}, ctx.Err()
	}
	m := r.messages[r.next-1]
	m.Seq = r.next
	r.next++
	return flow.Entry{Seq: m.Seq, Topic: m.Topic, Body: m.Body, Messages: []flow.Message{m}}, nil
}
