package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/console"
	"sluice/pkg/flow"
	"sluice/pkg/ops"
)

// events are what a browser is told within a while.
func (s *site) events(t *testing.T, enough func(n int, told string) bool) (all []string) {
	t.Helper()
	return s.follow(t, "/now/events", enough)
}

// follow is events of any page.
func (s *site) follow(t *testing.T, path string, enough func(n int, told string) bool) (all []string) {
	t.Helper()
	res, err := s.client.Get(s.url + path)
	fatal(t, err)
	defer res.Body.Close()
	if kind := res.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s, of type %q", res.Status, kind)
	}
	stop := time.AfterFunc(20*time.Second, func() { res.Body.Close() })
	defer stop.Stop()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		told, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if all = append(all, told); enough(len(all), told) {
			return all
		}
	}
	t.Errorf("it ended after %d messages: %v", len(all), lines.Err())
	return all
}

func TestNowShowsLanesAndWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.signIn(reader)
	res, body := s.get("/")
	wants(t, "now", res, body, http.StatusOK,
		"ClickHouse does not answer: connection refused", "ingester-1", "1.0 MiB of 4.0 GiB", "11,990", "not at this rate", `href="/how#lane-entries"`)
}

// TestBrowsersShareOneLook: ten browsers cost what one does, and are told the
// same small message at the same pace.
func TestBrowsersShareOneLook(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	s := newSite(t, func(c *console.Config, d *console.Deps) {
		c.Every, c.Rest = 300*time.Millisecond, time.Hour
		d.Stream = counted{d.Stream, &looks}
	})
	s.signIn(reader)
	began, before := time.Now(), looks.Load()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for _, told := range s.events(t, func(n int, _ string) bool { return n == 5 }) {
				var message struct {
					Shape string
					V     map[string]string
					P     []float64
				}
				if err := json.Unmarshal([]byte(told), &message); err != nil || message.V["lane.0.waiting"] != "2" || len(message.P) != 4 {
					t.Errorf("told %s (%v)", told, err)
				}
				if len(told) > 4<<10 {
					t.Errorf("a message has %d bytes", len(told))
				}
			}
		})
	}
	all.Wait()
	most := int64(time.Since(began)/(300*time.Millisecond)) + 12 // each browser that comes may wake it once
	if n := looks.Load() - before; n > most {
		t.Errorf("ten browsers made %d looks within %s, want at most %d", n, time.Since(began), most)
	}
}

func TestLooksLeaveTimeBetweenThem(t *testing.T) {
	_, err := console.New(console.Config{Every: time.Millisecond}, console.Deps{}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--every") {
		t.Errorf("%v, want a refusal that names --every", err)
	}
}

// TestEventsEndWithTheSession: an open page is told, and signs in again.
func TestEventsEndWithTheSession(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.signIn(reader)
	s.events(t, func(n int, told string) bool {
		if n == 1 {
			writeTokens(t, s.tokens)
		}
		return told == "{}"
	})
}

// TestEventsFollowTheToken: a token that is cut down to some tenants, while a page
// of all of them is open, is not told any more.
func TestEventsFollowTheToken(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.signIn(reader)
	s.events(t, func(n int, told string) bool {
		if n == 1 {
			entry := auth.Entry{Subject: "ann", SHA256: auth.Digest(reader), Scopes: []flow.Scope{flow.ScopeRead}, Tenants: []string{"a"}}
			fatal(t, os.WriteFile(s.tokens+".new", []byte(entry.Line()+"\n"), 0o600))
			fatal(t, os.Rename(s.tokens+".new", s.tokens))
		}
		return told == "{}"
	})
}

type counted struct {
	console.Stream
	looks *atomic.Int64
}

func (c counted) Standing(ctx context.Context) (console.Standing, error) {
	c.looks.Add(1)
	return c.Stream.Standing(ctx)
}

// TestQuantilesAreThoseOfPrometheus: of values that were observed by two
// programs.
func TestQuantilesAreThoseOfPrometheus(t *testing.T) {
	t.Parallel()
	var programs []console.Program
	for _, values := range [][]float64{{.5, 1.5, 1.5}, {3, 3, 3, 3, 100}} {
		operators := ops.New(ops.Config{}, slog.New(slog.DiscardHandler))
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Buckets: []float64{1, 2, 4}})
		operators.Registry().MustRegister(h)
		for _, v := range values {
			h.Observe(v)
		}
		served := httptest.NewServer(operators.Handler())
		t.Cleanup(served.Close)
		programs = append(programs, console.NewProgram(served.URL))
	}
	for q, want := range map[float64]float64{.125: 1, .25: 1.5, .5: 2.5, .875: 4, .99: 4} {
		if got, ok := console.Histogram(programs, "h", q); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v (%t), want %v", q, got, ok, want)
		}
	}
	if _, ok := console.Histogram(programs, "none", .5); ok {
		t.Error("nothing was measured, and it has a quantile")
	}
}
