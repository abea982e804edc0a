package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/ingest"
	"sluice/pkg/record"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// line is a TCP connection to the engine. It delays the rows of the first insert, after its
// statement, until land, and hides the sender's later actions.
type line struct {
	t       *testing.T
	to      string
	l       net.Listener
	mu      sync.Mutex
	stalled bool
	held    []byte
	server  net.Conn // the destination
}

func newLine(t *testing.T, to string) *line {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	p := &line{t: t, to: to, l: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c)
		}
	}()
	return p
}

func (p *line) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	p.t.Cleanup(func() { server.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			_, _ = client.Write(buffer[:n]) // the client may have closed
			if err != nil {
				client.Close()
				return
			}
		}
	}()
	buffer, mine := make([]byte, 64<<10), false
	var since time.Time // when the rows arrived
	for {
		n, err := client.Read(buffer)
		p.mu.Lock()
		switch {
		case mine && n > 0 && (since.IsZero() || time.Since(since) < time.Second):
			if since.IsZero() {
				since = time.Now()
			}
			p.held = append(p.held, buffer[:n]...)
		case mine: // the sender's cancellation never arrives
		default:
			_, _ = server.Write(buffer[:n])
			if !p.stalled && bytes.Contains(buffer[:n], []byte("INSERT INTO flow.records ")) {
				p.stalled, mine, p.server = true, true, server
			}
		}
		p.mu.Unlock()
		if err != nil {
			if !mine {
				server.Close()
			}
			return
		}
	}
}

func (p *line) land() {
	p.mu.Lock()
	defer p.mu.Unlock()
	expect.Not(p.t, len(p.held) == 0, "nothing was held back")
	_, _ = p.server.Write(p.held)
}

// hooked are tables with a hook before each insert, by its number.
type hooked struct {
	*warehouse.DB
	mu     sync.Mutex
	n      int
	before func(n int)
}

func (h *hooked) Insert(ctx context.Context, b record.Block) error {
	h.mu.Lock()
	h.n++
	n := h.n
	h.mu.Unlock()
	h.before(n)
	return h.DB.Insert(ctx, b)
}

// TestALateInsertCountsOnce: the insert of a whole piece arrives from a stalled connection or a
// frozen owner, during or after a cut for a rejected row. By then nothing is rejected.
func TestALateInsertCountsOnce(t *testing.T) {
	for name, frozen := range map[string]bool{"a stalled connection": false, "a frozen owner": true} {
		for when, at := range map[string]int{"before the first part": 3, "after the first part": 4} {
			t.Run(name+", "+when, func(t *testing.T) {
				s := &site{t: t, nats: natstest.Start(t), engine: clickhousetest.Start(t)}
				fatal.If(t, s.warehouse().Migrate(t.Context()))
				const rows = 20
				var body strings.Builder
				for r := range rows {
					fmt.Fprintf(&body, `,{"id":"1-%d","key":%d,"valueType":"JOB","timestamp":%d}`, r, r, time.Now().UnixMilli())
				}
				opened := s.open("test")
				if _, err := stream.NewPublisher(opened).Publish(t.Context(), &flow.Submission{ID: "id", Hash: "hash", Source: "a", Received: time.Now(),
					Records: flow.Chunks{{Body: []byte("[" + body.String()[1:] + "]"), Records: rows}}}); err != nil {
					t.Fatal(err)
				}

				// The first owner begins the insert of all rows.
				address, err := url.Parse(s.engine.URL("flow"))
				fatal.If(t, err)
				link, wake, asleep := newLine(t, address.Host), make(chan struct{}), make(chan struct{})
				if !frozen {
					address.Host = link.l.Addr().String()
				}
				first := &hooked{DB: s.warehouseAt(address.String()), before: func(int) {}}
				land, inserts := link.land, 1
				if frozen {
					inserts = 0
					first.before = func(n int) {
						if n == 1 {
							close(asleep)
							<-wake
						}
					}
					land = func() { close(wake) }
				}
				run := func(owner string, tables *hooked) (stop func() error) {
					i := ingest.New(ingest.Config{Owner: owner, InsertTime: 3 * time.Second, HaltProbe: 200 * time.Millisecond},
						ingest.Deps{Leases: onlyLane{}, Lanes: lanes{opened}, States: stream.NewLaneStates(opened), Tables: tables, Index: tables, DeadLetters: stream.NewDeadLetters(opened), Forgets: opened},
						slog.New(slog.NewTextHandler(t.Output(), nil)), prometheus.NewRegistry())
					ctx, cancel := context.WithCancel(context.Background())
					ended := make(chan error, 1)
					go func() { ended <- i.Run(ctx) }()
					return func() error { cancel(); return <-ended }
				}
				count := func() string {
					return clickhousetest.Exec(t, s.engine, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records")
				}
				all := fmt.Sprintf("%d\t%d\t%d\n", rows, rows, rows)
				before := func(n int) {
					switch n + 1 - inserts {
					case 2: // all rows again: one is rejected, and the piece is cut
						clickhousetest.Exec(t, s.engine, "ALTER TABLE flow.records ADD CONSTRAINT no_poison CHECK key != 15")
					case at:
						clickhousetest.Exec(t, s.engine, "ALTER TABLE flow.records DROP CONSTRAINT no_poison")
						land()
						patience := 20 * time.Second // of a busy machine
						if at == 4 {
							patience = time.Second // it does not arrive
						}
						for deadline := time.Now().Add(patience); count() != all && time.Now().Before(deadline); {
							time.Sleep(20 * time.Millisecond)
						}
						if got := count(); (got == all) != (at == 3) {
							t.Errorf("when it has arrived, rows, ids, counted: %s", got)
						}
					}
				}
				if !frozen {
					first.before = before
				}
				stops := []func() error{run("first", first)}
				if frozen {
					<-asleep
					stops = append(stops, run("second", &hooked{DB: s.warehouse(), before: before}))
				}
				for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
					state, err := stream.NewLaneStates(opened).Read(t.Context(), 0)
					if err == nil && state.Done == 1 {
						expect.Not(t, state.Totals.Stored != rows || at == 3 && len(state.Recount) == 0, "the lane state is %+v", state)
						break
					} else if time.Now().After(deadline) {
						t.Fatalf("the lane state is %+v, %v", state, err)
					}
				}
				for _, stop := range stops {
					if err := stop(); err != nil && !errors.Is(err, flow.ErrNotOwner) {
						t.Error(err)
					}
				}
				expect.Equal(t, "rows, ids, counted", all, count())
			})
		}
	}
}
