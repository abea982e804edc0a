package endtoend

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/programtest"
)

// shares waits until the ingesters hold so many lanes each, in any order, and
// returns how long it took and who holds how many.
func (s *stack) shares(limit time.Duration, want []int, ops ...string) (took time.Duration, held []int) {
	s.t.Helper()
	began := time.Now()
	eventually(s.t, limit, func() error {
		held = nil
		for _, addr := range ops {
			held = append(held, int(s.metric(addr, "sluice_stream_leases_held")))
		}
		if got := slices.Sorted(slices.Values(held)); !slices.Equal(got, want) {
			return fmt.Errorf("the ingesters hold %v lanes, want %v", held, want)
		}
		return nil
	})
	return time.Since(began), held
}

// TestLanesUnderLoad adds a lane while records flow, for a source that begins
// then, and takes its owners away in every way. Every record is stored once.
func TestLanesUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	s.startEngine()
	file, tokens := s.tokensOf("engine-a", "engine-b")
	s.token = tokens[0]
	api := s.startAPIWith(file)
	ops := []string{programtest.Address(), programtest.Address()}
	startIngester := func(ops string) *process {
		return start(t, "ingester", "--ops", ops, "--nats", s.NATSURL, "--clickhouse", s.ClickHouse())
	}
	ingesters := []*process{startIngester(ops[0]), startIngester(ops[1])}
	s.waitReady(api, append([]string{s.ops}, ops...)...)

	s.shares(10*time.Second, []int{0, 1}, ops...)
	const seconds, rate = 38, 200
	early := s.loading("--records", fmt.Sprint(seconds*rate), "--rate", fmt.Sprint(rate), "--batch", "10", "--seed", "1")
	s.eventuallyQuery(20*time.Second, "SELECT count() > 0 FROM flow.records", "1")
	s.sluice(0, "lanes", "add", "--nats", "nats://"+s.nats)
	s.token = tokens[1]
	late := s.loading("--records", fmt.Sprint(seconds*rate), "--rate", fmt.Sprint(rate), "--batch", "10", "--seed", "2")
	took, _ := s.shares(15*time.Second, []int{1, 1}, ops...)
	t.Logf("two lanes are shared %v after one was added", took)

	t.Run("a killed owner is replaced within 15 s", func(t *testing.T) {
		ingesters[0].kill()
		took, _ := s.shares(15*time.Second, []int{2}, ops[1])
		t.Logf("taken over after %v", took)
		ingesters[0] = startIngester(ops[0])
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	t.Run("a stopped owner is replaced at once", func(t *testing.T) {
		began := time.Now()
		if code := ingesters[0].stop(); code != 0 {
			t.Errorf("stopped with exit %d", code)
		}
		stopped := time.Since(began)
		took, _ := s.shares(3*time.Second, []int{2}, ops[1])
		t.Logf("stopped in %v, taken over %v after", stopped, took)
		ingesters[0] = startIngester(ops[0])
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	t.Run("an owner that stood still does no harm", func(t *testing.T) {
		ingesters[0].signal(syscall.SIGSTOP)
		took, _ := s.shares(15*time.Second, []int{2}, ops[1])
		t.Logf("taken over after %v", took)
		time.Sleep(time.Second) // the other one works on the lane
		ingesters[0].signal(syscall.SIGCONT)
		s.shares(15*time.Second, []int{1, 1}, ops...)
	})
	early()
	late()
	s.stored(2 * seconds * rate)
	s.noDeadLetters()
	want := "engine-a\t0\t1\nengine-b\t0\t1\nengine-b\t1\t1"
	if got, err := s.query("SELECT source, lane, count() > 1000 FROM flow.records GROUP BY source, lane ORDER BY source, lane"); err != nil || got != want {
		t.Errorf("lanes of each source, and whether more than a few records are there: got %s (%v), want %s", got, err, want)
	}
}

// TestASourceIsSpreadWhileClickHouseIsAway: another source, of an engine with the
// same keys and positions, goes on; both are stored once.
func TestASourceIsSpreadWhileClickHouseIsAway(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	engine := s.startEngine()
	file, tokens := s.tokensOf("engine-a", "engine-b")
	const window = "--duplicate-window=2s" // a source is moved only once no request can be sent again
	api := s.startAPIWith(file, window)
	ingester := s.startIngester(window)
	s.waitReady(api, s.ops)
	s.waitReady(ingester, s.ingesterOps)

	s.token = tokens[0]
	s.load("--records", "2000", "--seed", "1")
	s.sluice(0, "lanes", "add", "--nats", "nats://"+s.nats, window)
	s.token = tokens[1]
	s.load("--records", "2000", "--seed", "1") // the same keys
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(source, id), uniqExact(id) FROM flow.records", "4000\t4000\t2000")

	engine.kill()
	s.token = tokens[0]
	moved := s.loading("--records", "6000", "--rate", "200", "--batch", "20", "--seed", "2", "--give-up", "90s")
	s.token = tokens[1]
	other := s.loading("--records", "6000", "--rate", "200", "--batch", "20", "--seed", "2", "--give-up", "1s")
	spread := start(t, "sluice", "lanes", "spread", "engine-a", "--nats", "nats://"+s.nats, "--timeout", "2m")
	s.token = tokens[0]
	posted := 0
	eventually(t, 20*time.Second, func() error {
		posted++ // what was accepted once is answered OK again
		res, body := s.post(fmt.Appendf(nil, `[{"id":"9-%d","partitionId":9,"position":%[1]d}]`, posted))
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			return fmt.Errorf("answered %s: %s", res.Status, body)
		}
		return wantText(body, "source_held")
	})
	eventually(t, 40*time.Second, func() error { return wantText(spread.text(), "waiting until lane 0 is stored") })
	backup := append([]string{"backup", "--wait", "1s", "--to", filepath.Join(t.TempDir(), "backup")}, s.servers()...)
	if out := s.sluice(1, backup...); wantText(out, "to other lanes is not finished") != nil {
		t.Errorf("a backup does not wait for the move: %s", out)
	}
	if out := s.sluice(0, "lanes", "--nats", "nats://"+s.nats); wantText(out, "moving to 0,1") != nil {
		t.Errorf("sluice lanes does not show what is going on:\n%s", out)
	}
	if status, page := s.page(s.ops, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz of the api answers %d %s while a source is moved", status, page)
	}
	s.startEngine()
	if code := spread.wait(time.Minute); code != 0 {
		t.Fatalf("sluice lanes spread: exit %d", code)
	}
	other()
	moved()
	s.eventuallyQuery(30*time.Second, "SELECT countIf(source = 'engine-a' AND NOT startsWith(id, '9-')), countIf(source = 'engine-b') FROM flow.records", "8000\t8000")
	s.eventuallyQuery(5*time.Second, "SELECT uniqExact(source, id) = count(), (SELECT sum(records) FROM flow.counts_1m) = count() FROM flow.records", "1\t1")
	s.eventuallyQuery(5*time.Second, "SELECT uniqExact(lane) FROM flow.records WHERE source = 'engine-a' AND NOT startsWith(id, '9-')", "2")
	s.noDeadLetters()
	if out := s.sluice(0, "lanes", "--nats", "nats://"+s.nats); wantText(out, "engine-a  0,1") != nil || wantText(out, "engine-b  0,1") != nil {
		t.Errorf("sluice lanes shows:\n%s", out)
	}
}

// jetStream is the administration of the streams, past Sluice.
func (s *stack) jetStream() nats.JetStreamContext {
	s.t.Helper()
	var as []nats.Option
	if password := s.secret("nats-operator"); password != "" {
		as = append(as, nats.UserInfo("operator", password))
	}
	nc, err := nats.Connect("nats://"+s.nats, as...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := nc.JetStream()
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// TestARecreatedStreamHalts: the stream of a lane is deleted while
// nothing runs, and it is made again.
func TestARecreatedStreamHalts(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, api, ingester := s.apart()
	s.load("--records", "1000", "--batch", "100", "--seed", "1", "--connections", "1")
	if res, body := s.send(http.MethodPatch, "/spm/login/current/user", `{"name":"before"}`); wantOK(res, body) != nil {
		t.Fatal(body)
	}
	s.stored(1000)
	for _, p := range []*process{api, ingester} {
		if code := p.stop(); code != 0 {
			t.Fatalf("%s stopped with exit %d", p.name, code)
		}
	}
	if err := s.jetStream().DeleteStream("FLOW_0"); err != nil {
		t.Fatal(err)
	}
	api = s.startAPI()
	s.waitReady(api, s.ops)
	if res, body := s.send(http.MethodPatch, "/spm/login/current/user", `{"name":"after"}`); wantOK(res, body) != nil { // under a number that the state has passed
		t.Fatal(body)
	}
	s.load("--records", "1000", "--batch", "50", "--seed", "2", "--connections", "1") // durable in the new stream
	ingester = s.startIngester()
	s.halted(ingester, "the stream was recreated", "sluice lanes reset")
	if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != "1000" {
		t.Errorf("%s records (%v), want the 1000 from before: it went on", got, err)
	}
	s.sluice(0, "lanes", "reset", "--lane", "0", "--last", "0", "--yes", "--nats", "nats://"+s.nats)
	s.stored(2000)
	s.waitReady(ingester, s.ingesterOps)
	if res, body := s.send(http.MethodGet, "/spm/login/current/user", ""); res.StatusCode != http.StatusOK || wantText(body, `"name":"after"`) != nil {
		t.Errorf("the user answers %s %s, want the change that was accepted after the stream was made again", res.Status, body)
	}
}

// TestATruncatedTableIsReported: nothing can bring the records back but a
// backup or the stream, and the operator hears of it.
func TestATruncatedTableIsReported(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	s.load("--records", "1000", "--batch", "100", "--seed", "1", "--connections", "1")
	s.stored(1000)
	if code := ingester.stop(); code != 0 {
		t.Fatalf("stopped with exit %d", code)
	}
	s.exec("TRUNCATE TABLE flow.records")
	ingester = s.startIngester()
	eventually(t, 20*time.Second, func() error {
		if missing := s.metric(s.ingesterOps, `sluice_ingest_table_missing_messages{lane="0"}`); missing != 10 {
			return fmt.Errorf("%v messages are missing by the metric, want 10", missing)
		}
		return wantText(ingester.text(), "the table has lost records")
	})
	// What is new goes in: nothing more is lost by that.
	s.load("--records", "500", "--batch", "100", "--seed", "2")
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "500\t500")
	if status, page := s.page(s.ingesterOps, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz answers %d %s", status, page)
	}
}

// TestTablesThatWereSetBackAreRebuilt: the lane halts before anything is stored on top,
// and sluice rebuild brings back what the lane holds. What expired or was deleted before
// does not count as missing.
func TestTablesThatWereSetBackAreRebuilt(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	_, _, _, ingester := s.apart()
	stop := func() {
		if code := ingester.stop(); code != 0 {
			t.Fatalf("stopped with exit %d", code)
		}
	}
	bare := func() {
		if err := wantOK(s.sendWith(http.Header{"Idempotency-Key": {"k"}}, http.MethodPost, "/flow/flowRecord/batch", []byte(`[{"key":1},{"key":2}]`))); err != nil {
			t.Fatal(err)
		}
	}
	s.load("--records", "1000", "--batch", "100", "--seed", "1", "--connections", "1")
	bare()
	s.eventuallyQuery(60*time.Second, "SELECT count() FROM flow.records", "1002")
	stop()
	for _, table := range []string{"records", "sources", "counts_1m"} {
		s.exec("TRUNCATE TABLE flow." + table)
	}
	ingester = s.startIngester()
	s.halted(ingester, "ClickHouse was set back", "1002 of the 1002 rows", "sluice rebuild")
	bare() // the log knows the request
	stop()
	for _, sql := range s.rebuild(1, "flow_back").Swap {
		s.exec(sql)
	}
	ingester = s.startIngester()
	s.waitReady(ingester, s.ingesterOps)
	s.load("--records", "500", "--batch", "100", "--seed", "2")
	s.eventuallyQuery(60*time.Second, "SELECT count(), countIf(key IN (1, 2)), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records", "1502\t2\t1502")
	s.verify(0, "--deep")

	// Rows that are gone, as after a retention, in an installation that is rebuilt.
	stop()
	s.exec("ALTER TABLE flow.records DELETE WHERE key IN (1, 2) SETTINGS mutations_sync = 2")
	r := s.rebuild(1, "flow_again")
	s.eventuallyQuery(time.Second, "SELECT (SELECT sum(rows) FROM flow_again.sources) >= (SELECT sum(rows) FROM flow.sources)", "1")
	if len(r.Differences) != 2 {
		t.Errorf("the rebuild names %+v, want two missing records", r.Differences)
	}
}
