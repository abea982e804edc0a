package endtoend

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// page returns the status and the body of an ops page.
func (s *stack) page(ops, path string) (int, string) {
	res, err := s.client.Get("http://" + ops + path)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

// metric returns the value of a metric, by its name with labels; -1 when missing.
func (s *stack) metric(ops, name string) float64 {
	_, page := s.page(ops, "/metrics")
	for line := range strings.Lines(page) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				return v
			}
		}
	}
	return -1
}

// loading posts records in the background. The returned function waits until all are
// acknowledged.
func (s *stack) loading(args ...string) (acknowledged func()) {
	s.t.Helper()
	p := start(s.t, "sluice", append([]string{"load", "--url", "http://" + s.http, "--token", s.token}, args...)...)
	return func() {
		s.t.Helper()
		if code := p.wait(90 * time.Second); code != 0 {
			s.t.Fatalf("some requests were not acknowledged: exit %d", code)
		}
	}
}

// stored waits until exactly n records are stored, each once, and counted.
func (s *stack) stored(n int) {
	s.t.Helper()
	s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records",
		fmt.Sprintf("%d\t%d\t%d", n, n, n))
}

// noDeadLetters fails if there are dead letters.
func (s *stack) noDeadLetters() {
	s.t.Helper()
	if letters := s.letters(); len(letters) > 0 {
		s.t.Errorf("an outage has dead-lettered records: %+v", letters)
	}
}

// TestServersThatAreAway: /readyz names the missing server. Without ClickHouse posts are
// accepted; while NATS hangs they get 503 within seconds. Both resume automatically. The
// processes start without data, and exit with 0. Chaos tests cover lost and duplicated
// records.
func TestServersThatAreAway(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.empty = true
	natsServer, engine, api, ingester := s.apart()
	engine.kill()
	s.load("--records", "1000")
	s.notReady(s.ingesterOps, "clickhouse")
	if status, page := s.page(s.ops, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz of the api answers %d %s: it does not need ClickHouse", status, page)
	}
	expect.NoError(t, wantOK(s.send(http.MethodPatch, currentUser, `{"name":"Bob"}`)))
	if _, body := s.send(http.MethodGet, currentUser, ""); wantText(body, `"name":"Bob"`) != nil {
		t.Errorf("a change waits for ClickHouse: %s", body)
	}
	engine = s.startEngine()
	s.waitReady(engine, s.ingesterOps)
	s.stored(1000)

	natsServer.Pause()
	for _, request := range []func() (*http.Response, string){
		func() (*http.Response, string) { return s.post([]byte(`{"id":"9-9","valueType":"JOB"}`)) },
		func() (*http.Response, string) { return s.send(http.MethodPatch, currentUser, `{"name":"Ann"}`) },
		func() (*http.Response, string) { return s.send(http.MethodGet, currentUser, "") },
	} {
		began := time.Now()
		res, body := request()
		took, retry := time.Since(began), res.Header.Get("Retry-After")
		if seconds, err := strconv.Atoi(retry); took > busy || res.StatusCode != http.StatusServiceUnavailable || err != nil || seconds < 1 {
			t.Errorf("%s is answered %s (Retry-After %q) after %v, want 503 within %v, and whole seconds: %s", res.Request.URL, res.Status, retry, took, busy, body)
		}
	}
	s.notReady(s.ops, "stream")
	natsServer.kill()
	natsServer = s.startNATS()
	s.waitReady(natsServer, s.ops, s.ingesterOps)
	s.load("--records", "1000", "--seed", "2")
	s.eventuallyQuery(60*time.Second, "SELECT countIf(id != '9-9'), count() = uniqExact(id) FROM flow.records", "2000\t1")
	s.noDeadLetters()
	for _, p := range []*process{api, ingester, natsServer, engine} {
		if code := p.stop(); code != 0 {
			t.Errorf("%s stopped with exit %d, want 0", p.name, code)
		}
	}
}

// busy is the limit of an answer that takes 2 s on an idle machine.
const busy = 3 * time.Second

// notReady waits until an ops port names the missing server.
func (s *stack) notReady(ops, missing string) {
	s.t.Helper()
	eventually(s.t, 20*time.Second, func() error {
		if status, page := s.page(ops, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(strings.ToLower(page), missing) {
			return fmt.Errorf("/readyz answers %d %s, want that %s is missing", status, page, missing)
		}
		return nil
	})
}

// TestTruncatedSourcesAreRestored follows docs/runbooks/lanes.md: the lane halts, the
// statements fill flow.sources, and resent records are deduplicated.
func TestTruncatedSourcesAreRestored(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	e := &exporter{stack: s, began: time.Now().Add(-time.Hour)}
	fatal.If(t, e.send(1, 1, 300, 50))
	const rows = "SELECT count(), uniqExact(position) FROM flow.records"
	s.eventuallyQuery(20*time.Second, rows, "300\t300")
	if code := ingester.stop(); code != 0 { // an open claim is inserted again
		t.Fatalf("the ingester stopped with exit %d", code)
	}
	s.exec("TRUNCATE TABLE flow.sources")
	ingester = s.startIngester()
	const missing = "flow.sources is missing rows"
	s.halted(ingester, missing)
	for _, statement := range statementsOf(t, missing) {
		s.exec(statement)
	}
	s.waitReady(ingester, s.ingesterOps)
	fatal.If(t, e.send(1, 250, 400, 13))
	s.eventuallyQuery(20*time.Second, rows, "400\t400")
}

// statementsOf returns the SQL statements of a section of docs/runbooks/lanes.md.
func statementsOf(t *testing.T, section string) (all []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/runbooks/lanes.md")
	fatal.If(t, err)
	_, after, found := strings.Cut(string(page), "## "+section)
	_, after, fenced := strings.Cut(after, "```sql\n")
	sql, _, closed := strings.Cut(after, "```")
	fatal.When(t, !found || !fenced || !closed, "docs/runbooks/lanes.md has no statements about %q", section)
	for statement := range strings.SplitSeq(sql, ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			all = append(all, statement)
		}
	}
	return all
}

// halted waits until /readyz and the log of the ingester report the halted lane and the
// reasons.
func (s *stack) halted(p *process, says ...string) {
	s.t.Helper()
	eventually(s.t, 40*time.Second, func() error {
		status, page := s.page(s.ingesterOps, "/readyz")
		state := s.metric(s.ingesterOps, `sluice_ingest_state{lane="0"}`)
		for _, text := range append(says, "halted") {
			if status != http.StatusServiceUnavailable || state != 2 || !strings.Contains(page, text) || !strings.Contains(p.text(), text) {
				return fmt.Errorf("/readyz answers %d %s, the lane's state is %v: want that it is halted, there and in the log: %s", status, page, state, text)
			}
		}
		return nil
	})
}
