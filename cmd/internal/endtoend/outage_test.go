package endtoend

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/flow"
)

// headerOfEntry has the table of an entry (docs/format.md).
const headerOfEntry = "Sluice-Entry"

// page is what an ops port shows, and its status.
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

// metric is the value of a metric, by its name with labels, -1 when the page
// does not show it.
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

// loading posts records in the background, as an honest client; the function
// it returns waits until all are acknowledged.
func (s *stack) loading(args ...string) (acknowledged func()) {
	s.t.Helper()
	p := start(s.t, "sluice", append([]string{"load", "--url", "http://" + s.http, "--token", s.token}, args...)...)
	return func() {
		s.t.Helper()
		if code := p.wait(90 * time.Second); code != 0 {
			s.t.Fatalf("not everything was acknowledged: exit %d", code)
		}
	}
}

// stored waits until exactly n records are stored, each once, and counted.
func (s *stack) stored(n int) {
	s.t.Helper()
	s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records",
		fmt.Sprintf("%d\t%d\t%d", n, n, n))
}

// noDeadLetters fails if anything was set aside.
func (s *stack) noDeadLetters() {
	s.t.Helper()
	if letters := s.letters(); len(letters) > 0 {
		s.t.Errorf("an outage has set records aside: %+v", letters)
	}
}

// TestOutagesUnderLoad takes each server away while records are posted.
func TestOutagesUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	natsServer, engine, _, _ := s.apart()

	t.Run("ClickHouse is away", func(t *testing.T) {
		acknowledged := s.loading("--records", "16000", "--rate", "2000", "--batch", "50", "--seed", "1")
		time.Sleep(2 * time.Second)
		engine.kill()
		time.Sleep(4 * time.Second)
		if status, page := s.page(s.ingesterOps, "/readyz"); status == http.StatusOK || !strings.Contains(page, "clickhouse") {
			t.Errorf("/readyz of the ingester answers %d %s, want that ClickHouse is missing", status, page)
		}
		if status, page := s.page(s.ops, "/readyz"); status != http.StatusOK {
			t.Errorf("/readyz of the api answers %d %s: it does not need ClickHouse", status, page)
		}
		acknowledged() // all of it while ClickHouse is away
		engine = s.startEngine()
		s.stored(16000)
		s.noDeadLetters()
		s.waitReady(engine, s.ingesterOps)
	})
	t.Run("NATS is away", func(t *testing.T) {
		acknowledged := s.loading("--records", "16000", "--rate", "2000", "--batch", "50", "--seed", "2")
		time.Sleep(2 * time.Second)
		natsServer.kill()
		for range 3 {
			s.refusesInTime(2*time.Second, 0, func() (*http.Response, string) { return s.post([]byte(`{"id":"9-9","valueType":"JOB","value":{}}`)) })
			time.Sleep(500 * time.Millisecond)
		}
		natsServer = s.startNATS()
		acknowledged()
		s.stored(32000)
		s.noDeadLetters()
		s.waitReady(natsServer, s.ops, s.ingesterOps)
	})
	t.Run("NATS stands still", func(t *testing.T) {
		acknowledged := s.loading("--records", "16000", "--rate", "2000", "--batch", "50", "--seed", "3")
		time.Sleep(2 * time.Second)
		natsServer.signal(syscall.SIGSTOP)
		small, big := []byte(`{"id":"9-9","valueType":"JOB","value":{}}`), hugeBody(7, 1000, 400_000)
		s.refusesInTime(busy, 4*time.Second, func() (*http.Response, string) { return s.post(small) })
		s.refusesInTime(busy, 0, func() (*http.Response, string) { return s.post(big) })
		s.refusesInTime(busy, 0, func() (*http.Response, string) { return s.send(http.MethodPatch, currentUser, `{"name":"Ann"}`) })
		s.refusesInTime(busy, 0, func() (*http.Response, string) { return s.send(http.MethodGet, currentUser, "") })
		if status, page := s.page(s.ops, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(page, "stream") {
			t.Errorf("/readyz of the api answers %d %s, want that NATS is missing", status, page)
		}
		natsServer.signal(syscall.SIGCONT)
		began := time.Now()
		for _, body := range [][]byte{small, big} { // what may have come through is known
			eventually(t, 10*time.Second, func() error { return wantOK(s.post(body)) })
		}
		t.Logf("accepted again %v after NATS went on", time.Since(began))
		acknowledged()
		s.stored(48000 + 1 + bytes.Count(big, []byte(`{"id"`)))
		s.noDeadLetters()
		s.waitReady(natsServer, s.ops, s.ingesterOps)
	})
}

// busy is how long an answer may take on a busy machine that takes 2 s on another.
const busy = 3 * time.Second

// refusesInTime makes requests for a while, one at least, while NATS does not
// answer: each is answered 503 within the limit.
func (s *stack) refusesInTime(limit, lasting time.Duration, request func() (*http.Response, string)) {
	s.t.Helper()
	for first := time.Now(); ; {
		began := time.Now()
		res, body := request()
		took := time.Since(began)
		s.t.Logf("%s %s: %s after %v", res.Request.Method, res.Request.URL.Path, res.Status, took)
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if took > limit || res.StatusCode != http.StatusServiceUnavailable || err != nil || seconds < 1 {
			s.t.Errorf("answered %s (Retry-After %q) after %v, want 503 within %v, and whole seconds: %s", res.Status, res.Header.Get("Retry-After"), took, limit, body)
		}
		if time.Since(first) >= lasting {
			return
		}
	}
}

// TestARestoredBackupOfNATSHalts: the data of NATS goes back to an earlier
// time, and the operator is told instead of new records taking old numbers.
func TestARestoredBackupOfNATSHalts(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	natsServer, _, _, ingester := s.apart()
	data, backup := filepath.Join(s.data, "nats"), filepath.Join(t.TempDir(), "backup")
	s.load("--records", "2000", "--batch", "100", "--seed", "1", "--connections", "1") // a message for each request
	s.stored(2000)
	eventually(t, 10*time.Second, func() error {
		if done := s.metric(s.ingesterOps, `sluice_ingest_checkpoint_sequence{lane="0"}`); done != 20 {
			return fmt.Errorf("messages up to %v are done", done)
		}
		return nil
	})
	stopped := func() {
		t.Helper()
		if code := natsServer.stop(); code != 0 {
			t.Fatalf("NATS stopped with exit %d", code)
		}
	}
	stopped()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	natsServer = s.startNATS()
	eventually(t, 20*time.Second, func() error { return wantOK(s.post([]byte(`{"id":"8-1"}`))) })
	s.load("--records", "3000", "--batch", "100", "--seed", "2", "--connections", "1")
	s.stored(5001)

	stopped()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	natsServer = s.startNATS()
	// As many new messages as were lost, before anything could notice.
	eventually(t, 20*time.Second, func() error { return wantOK(s.post([]byte(`{"id":"8-2"}`))) })
	s.load("--records", "3500", "--batch", "100", "--seed", "3", "--connections", "1")

	s.halted(ingester, "NATS was restored or recreated", "sluice lanes reset")
	if got, err := s.query("SELECT count() FROM flow.records"); err != nil || got != "5001" {
		t.Errorf("%s records (%v), want the 5001 from before: it went on", got, err)
	}
	ingester.kill() // a new one knows as much
	ingester = s.startIngester()
	s.halted(ingester, "NATS was restored or recreated", "sluice lanes reset")

	// What was before is stored: the operator goes on with what is new.
	out := s.sluice(1, "lanes", "reset", "--lane", "0", "--last", "20", "--nats", "nats://"+s.nats)
	if !strings.Contains(out, "checkpoint 20 of") || !strings.Contains(out, "--yes") {
		t.Errorf("printed:\n%s", out)
	}
	s.sluice(0, "lanes", "reset", "--lane", "0", "--last", "20", "--yes", "--nats", "nats://"+s.nats)
	s.stored(8502)
	s.waitReady(ingester, s.ingesterOps)
}

// halted waits until the ingester says everywhere that its lane is halted, and
// why.
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

// TestAFullStreamRefusesAndResumes: ClickHouse is away until the disk budget
// is used up.
func TestAFullStreamRefusesAndResumes(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	small := []string{"--stream-max-bytes", strconv.Itoa(8 * mib), "--duplicate-window", "1s"}
	s.startAPI(small...)
	s.startIngester(small...)
	engine := s.startEngine()
	s.waitReady(engine, s.ops, s.ingesterOps)
	engine.kill()

	accepted := 0
	fill := func() (refused *http.Response) {
		t.Helper()
		for turn := range 1000 {
			body := hugeBody(uint64(accepted), 10_000, 200_000)
			res, answer := s.post(body)
			if res.StatusCode == http.StatusTooManyRequests && strings.Contains(answer, "stream_full") {
				return res
			}
			if err := wantOK(res, answer); err != nil {
				t.Fatalf("post %d: %v", turn, err)
			}
			accepted += bytes.Count(body, []byte(`{"id"`))
		}
		t.Fatal("the stream is never full")
		return nil
	}
	wait := func(res *http.Response) int {
		t.Helper()
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		if err != nil || seconds < 1 || seconds > 60 {
			t.Errorf("Retry-After is %q, want 1 to 60 seconds", res.Header.Get("Retry-After"))
		}
		return seconds
	}
	first := accepted
	unknown := wait(fill())
	first = accepted - first
	holds := func(least, most float64) {
		t.Helper()
		eventually(t, 90*time.Second, func() error {
			if held := s.metric(s.ops, `sluice_stream_lane_bytes{lane="0"}`); held < least || held > most {
				return fmt.Errorf("the lane holds %v bytes", held)
			}
			return nil
		})
	}
	holds(7*mib, 8*mib)
	s.startEngine()
	s.stored(accepted)
	s.noDeadLetters()
	holds(0, 5*mib) // what is stored is purged once its ids need not be known any more
	again := accepted
	known := wait(fill())
	again = accepted - again
	t.Logf("%d records until it was full, Retry-After %d; %d more after it was drained, Retry-After %d", first, unknown, again, known)
	if known >= unknown {
		t.Errorf("Retry-After is %d s once it is known how fast the stream drains, and was %d s before", known, unknown)
	}
	if again < first/3 {
		t.Errorf("room for %d records was made of %d", again, first)
	}
	s.stored(accepted)
	s.noDeadLetters()
}

// TestAnOutageLongerThanTheWindow: ClickHouse is away for longer than a lane
// recognises repeated requests, and what is stored is purged. A request that was
// sent again within the window is stored once all the same, whether its first
// message waits by then, or is stored and all before it is purged, and whichever
// ingester has the lane.
func TestAnOutageLongerThanTheWindow(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	const window = 5 * time.Second
	known := []string{"--repeat-window", window.String(), "--duplicate-window", "1s"}
	s.startAPI(known...)
	ingester := s.startIngester(append(known, "--history", "1s")...)
	engine := s.startEngine()
	s.waitReady(engine, s.ops, s.ingesterOps)

	sent, others := 0, 0
	send := func(body string) {
		t.Helper()
		if err := wantOK(s.post([]byte(body))); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	last := func() *nats.RawStreamMsg {
		t.Helper()
		m, err := s.jetStream().GetLastMsg("FLOW_0", "flow.0.record")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	again := func(m *nats.RawStreamMsg) { // as an api does that knows the lane, and nothing of the first time
		t.Helper()
		table, err := base64.RawStdEncoding.DecodeString(m.Header.Get(headerOfEntry))
		if err != nil {
			t.Fatal(err)
		}
		var first flow.Entry
		if err := first.Parse(table, m.Data); err != nil {
			t.Fatal(err)
		}
		var entry flow.EntryWriter
		for i := range first.Messages {
			entry.Add(&first.Messages[i])
		}
		s.publish(0, string(entry.Body()), nats.Header{headerOfEntry: {entry.Header(last().Sequence, first.Patience)}})
		sent++
	}
	pass := func(d time.Duration) { // of time and of the stream
		t.Helper()
		for began := time.Now(); time.Since(began) < d; time.Sleep(200 * time.Millisecond) {
			others++
			send(fmt.Sprintf(`{"id":"1-%d"}`, others))
		}
	}
	once := func(intent string) {
		t.Helper()
		s.eventuallyQuery(60*time.Second, fmt.Sprintf("SELECT countIf(intent = '%s'), countIf(intent = '') FROM flow.records", intent), fmt.Sprintf("1\t%d", others))
	}

	// repeated sends a request again after something was done, within the window;
	// once more with another when this machine has taken longer.
	repeated := func(intent string, meanwhile func(first *nats.RawStreamMsg, intent string)) string {
		t.Helper()
		for try := range 5 {
			intent := fmt.Sprint(intent, " ", try)
			send(fmt.Sprintf(`{"intent":"%s"}`, intent))
			first := last()
			meanwhile(first, intent)
			again(first)
			took := last().Time.Sub(first.Time)
			if took <= window {
				return intent
			}
			t.Logf("sent again after %v", took)
		}
		t.Fatalf("nothing can be sent again within %v here", window)
		return ""
	}

	engine.kill()
	intent := repeated("first waits", func(*nats.RawStreamMsg, string) { pass(2 * time.Second) })
	pass(window + time.Second)
	s.startEngine()
	once(intent)

	intent = repeated("first is stored", func(first *nats.RawStreamMsg, intent string) {
		once(intent)
		pass(time.Second)
		s.purge(first.Sequence - 1) // all that the purger may take: the window begins behind it
		ingester.kill()
		ingester = s.startIngester(append(known, "--history", "1s")...)
		s.waitReady(ingester, s.ingesterOps)
	})
	pass(time.Second)
	once(intent)
	if r := s.verify(0); r.Total().Repeated+r.Purged().Deduplicated != 2 || r.Total().Accepted+r.Purged().Read != uint64(sent) {
		t.Errorf("%d were sent, the lane holds %+v, purged is %+v; want 2 repeated", sent, r.Total(), r.Purged())
	}
	s.noDeadLetters()
}
