package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/console"
	"sluice/pkg/flow"
)

func TestNowShowsLanesAndWhatNeedsAttention(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *console.Config, _ *console.Deps) { c.Grafana = "https://grafana.example" })
	s.signIn(reader)
	res, body := s.get("/")
	wants(t, "now", res, body, http.StatusOK,
		"ClickHouse does not answer: connection refused", "ingester-1", "1.0 MiB of 4.0 GiB", `<a class="fig" href="#lanes">11,990</a>`, `<a href="https://grafana.example/d/sluice">Grafana</a>`)
}

// TestProblemsAreNamed: each problem of a lane, dead letters, a source or a program is
// shown with its remedy, urgent ones first.
func TestProblemsAreNamed(t *testing.T) {
	t.Parallel()
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			_, _ = w.Write([]byte(`{"missing":[{"name":"nats","reason":"no server"}]}`))
			return
		case "/rejected":
			_ = json.NewEncoder(w).Encode([]map[string]any{rejected("engine-a", time.Minute), rejected("unknown", 10*time.Minute)})
			return
		}
		_, _ = w.Write([]byte(`sluice_ready 0
sluice_api_records_total{source="a"} 40
sluice_api_records_total{source="b"} 2
sluice_api_records_excluded_total{source="a",rule="{valueType: \"JOB\"}"} 3100
sluice_api_records_excluded_total{source="a",rule="{intent: \"X\"}"} 5
sluice_auth_stale{source="tokens"} 1
sluice_ingest_changes_state 2
sluice_ingest_state{lane="1"} 2
sluice_ingest_state{lane="2"} 1
sluice_ingest_table_missing_messages{lane="2"} 1200
`))
	}))
	t.Cleanup(program.Close)
	standing := console.Standing{
		Lanes: []console.Lane{
			{Number: 0, Backlog: 1, Bytes: 96, MaxBytes: 100},
			{Number: 1, Bytes: 81, MaxBytes: 100, Position: flow.LaneState{Owner: "one"}},
			{Number: 2, MaxBytes: 100, Position: flow.LaneState{Owner: "one"}},
		},
		Dead:    console.DeadRoom{Letters: 1, Bytes: 90, Max: 100},
		Sources: []console.Source{{Name: "cluster-a", Moving: []int{1}}},
	}
	s := newSite(t, func(_ *console.Config, d *console.Deps) {
		d.Stream = still{standing}
		d.Programs = []console.Program{console.NewProgram(program.URL), console.NewProgram("127.0.0.1:1")}
		d.Tokens = func() []console.Token {
			return []console.Token{{Source: "a", Exclude: []flow.Exclusion{{ValueType: "JOB"}, {Variable: "tmp_*"}}}}
		}
	})
	s.signIn(reader)
	res, body := s.get("/")
	wants(t, "now", res, body, http.StatusOK, `href="#servers">42</a> since the api started`, "42 accepted")
	last := -1
	for _, text := range []string{
		"ClickHouse does not answer", "is not ready: nats: no server", "The program at http://127.0.0.1:1 does not answer",
		"Lane 0 is read by no ingester", "Lane 0 uses 96 % of its disk budget: posts are about to be rejected", "Lane 1 is halted", "Lane 2: the table lacks 1,200 messages",
		"Changes of users and dataset fields are not applied", "Dead letters use 90 % of their limit",
		"Lane 1 uses 81 % of its disk budget.", "Lane 2 is retrying", "1 dead letter to replay or drop", "Source &#34;cluster-a&#34; is moving",
		"Client engine-a at 192.0.2.7 is rejected: token_invalid (401), 51 times within 60 s", "The api cannot load the newest tokens",
	} {
		at := strings.Index(body, text)
		if at <= last {
			t.Errorf("%q is at %d, want it after %d in\n%s", text, at, last, body)
		}
		last = max(last, at)
	}
	if strings.Contains(body, "Client unknown") {
		t.Error("a client that is no longer rejected needs attention")
	}
	res, body = s.get("/sources")
	wants(t, "sources", res, body, http.StatusOK, `<th scope="row" class="name">engine-a</th>`, `<th scope="row" class="name">unknown</th>`, "token_invalid (401)",
		"{valueType: &#34;JOB&#34;}</td><td class=\"n id\">3,100<", "{variable: &#34;tmp_*&#34;}</td><td class=\"n id\">0<", "{intent: &#34;X&#34;} (not in the token file)</td><td class=\"n id\">5<")
}

// rejected is a client in the response of an api, last rejected so long ago.
func rejected(subject string, ago time.Duration) map[string]any {
	last := time.Now().Add(-ago)
	return map[string]any{"subject": subject, "address": "192.0.2.7", "code": "token_invalid", "status": 401, "count": 51, "first": last.Add(-time.Minute), "last": last}
}

// TestBrowsersShareOneLook: ten browsers cause the queries of one.
func TestBrowsersShareOneLook(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	s := newSite(t, func(c *console.Config, d *console.Deps) {
		c.Every = 300 * time.Millisecond
		d.Stream = counted{d.Stream, &looks}
	})
	s.signIn(reader)
	began, before := time.Now(), looks.Load()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 20 {
				res, body := s.get("/")
				wants(t, "now", res, body, http.StatusOK, `data-every="300"`)
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	all.Wait()
	limit := int64(time.Since(began)/(300*time.Millisecond)) + 1
	if n := looks.Load() - before; n > limit || n < 2 {
		t.Errorf("ten browsers made %d looks within %s, want 2 to %d", n, time.Since(began), limit)
	}
}

func TestLooksLeaveTimeBetweenThem(t *testing.T) {
	_, err := console.New(console.Config{Every: time.Millisecond}, console.Deps{}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--every") {
		t.Errorf("%v, want a refusal that names --every", err)
	}
}

type counted struct {
	console.Stream
	looks *atomic.Int64
}

func (c counted) Standing(ctx context.Context) (console.Standing, error) {
	c.looks.Add(1)
	return c.Stream.Standing(ctx)
}

// full is a ClickHouse at its limit of concurrent queries.
type full struct{}

func (full) Query(context.Context, string, ...any) (driver.Rows, error) {
	return nil, fmt.Errorf("read: %w", &clickhouse.Exception{Code: 202, Name: "TOO_MANY_SIMULTANEOUS_QUERIES", Message: "Too many simultaneous queries. Maximum: 48"})
}

// TestABusyClickHouseIsNotCalledAway: it answers, so "start it" would be the wrong remedy.
func TestABusyClickHouseIsNotCalledAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *console.Config, d *console.Deps) { d.Warehouse = full{} })
	s.signIn(reader)
	res, body := s.get("/")
	wants(t, "now", res, body, http.StatusOK, "ClickHouse rejects the console&#39;s queries", "KILL QUERY", "<td>rejects the console's queries</td>")
	if strings.Contains(body, "does not answer") {
		t.Errorf("a busy ClickHouse is reported as down:\n%s", body)
	}
}
