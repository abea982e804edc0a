package warehouse_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/warehouse"
)

// tap is a proxy that keeps the bytes clients send.
type tap struct {
	net.Listener
	mu   sync.Mutex
	sent bytes.Buffer
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	p := &tap{Listener: l}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				near.Close()
				continue
			}
			open.Go(func() { defer far.Close(); _, _ = io.Copy(far, io.TeeReader(near, p)) })
			open.Go(func() { defer near.Close(); _, _ = io.Copy(near, far) })
		}
	})
	t.Cleanup(func() { l.Close(); open.Wait() })
	return p
}

func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent.Write(b)
}

// has reports whether clients have sent a trace context: its ids are on the wire in groups of
// eight bytes, reversed.
func (p *tap) has(ids ...[]byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		id = slices.Clone(id)
		for i := 0; i < len(id); i += 8 {
			slices.Reverse(id[i : i+8])
		}
		if !bytes.Contains(p.sent.Bytes(), id) {
			return false
		}
	}
	return true
}

// TestClickHouseReceivesTheTrace: queries within a span carry its context, an insert that of its
// own span. A failure records no text of ClickHouse there.
func TestClickHouseReceivesTheTrace(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	u, err := url.Parse(address)
	fatal.If(t, err)
	wire := newTap(t, u.Host)
	u.Host = wire.Addr().String()
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	db, err := warehouse.Open(warehouse.Config{URL: u.String(), Tracer: provider.Tracer("test")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	closing := sync.OnceFunc(func() { db.Close() })
	defer closing()
	fatal.If(t, db.Migrate(t.Context()))
	ctx, parent := provider.Tracer("test").Start(t.Context(), "block")
	fatal.If(t, db.Insert(ctx, block(t, 0, 1, jobs(1, 10)...)))
	trace, asked := parent.SpanContext().TraceID(), parent.SpanContext().SpanID()
	inserted := spans.Ended()[0]
	own := inserted.SpanContext().SpanID()
	if inserted.Parent().SpanID() != asked || inserted.Name() != "INSERT "+db.Database()+".records" {
		t.Errorf("the span is %q, child of %s, want an insert, child of %s", inserted.Name(), inserted.Parent().SpanID(), asked)
	}
	expect.Not(t, !wire.has(trace[:], own[:]), "the insert was sent without its trace context")
	fatal.When(t, wire.has(asked[:]), "the span of the block was sent before anything was asked in it: the test shows nothing")
	if _, _, err := db.Last(ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	expect.Not(t, !wire.has(asked[:]), "a question was sent without the trace context")

	query(t, db, "DROP TABLE {db}.records")
	err = db.Insert(ctx, block(t, 0, 2, jobs(11, 10)...))
	var failed *flow.StoreError
	fatal.When(t, !errors.As(err, &failed), "an insert into nothing gives %v", err)
	last := spans.Ended()[len(spans.Ended())-1]
	if s := last.Status(); s.Code != codes.Error || s.Description != "halt" || len(last.Events()) != 0 {
		t.Errorf("the span of an attempt that failed says %+v %v, want halt and nothing else", s, last.Events())
	}
	closing()
	wire.Close()
}
