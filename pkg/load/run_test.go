package load_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/programtest"
)

func TestMain(m *testing.M) { programtest.Main(m) }

func TestEveryAcknowledgedRecordIsStoredOnce(t *testing.T) {
	once := func(n int, do func()) bool {
		if n != 2 {
			return false
		}
		do()
		return true
	}
	tests := []struct {
		name    string
		cfg     load.Config
		before  func(int, http.ResponseWriter) bool
		after   func(int, http.ResponseWriter) bool
		retries int64
		failed  string
	}{
		{name: "nothing fails", cfg: load.Config{}},
		{name: "one record per request", cfg: load.Config{Records: 40, Batch: 1}},
		{name: "bodies are compressed", cfg: load.Config{Gzip: true}},
		{name: "records are paced", cfg: load.Config{Rate: 50_000}},
		{name: "no key is sent", cfg: load.Config{NoKey: true}},
		{name: "records of a source", cfg: load.Config{Source: generator()}},
		{
			name:   "unavailable, nothing stored",
			before: func(n int, w http.ResponseWriter) bool { return once(n, func() { refuse(w, 503, "") }) }, retries: 1, failed: "503",
		},
		{
			name:   "too many requests, nothing stored",
			before: func(n int, w http.ResponseWriter) bool { return once(n, func() { refuse(w, 429, "0") }) }, retries: 1, failed: "429",
		},
		{
			name:    "stored, but the answer is lost",
			after:   func(n int, w http.ResponseWriter) bool { return once(n, func() { hangUp(w) }) },
			retries: 1, failed: "connection",
		},
		{
			name:    "stored, but answered as unavailable",
			after:   func(n int, w http.ResponseWriter) bool { return once(n, func() { refuse(w, 503, "") }) },
			retries: 1, failed: "503",
		},
		{
			name:    "stored, but the answer takes too long",
			cfg:     load.Config{Timeout: 3 * time.Second}, // the others are answered by then, on a busy machine too
			after:   func(n int, _ http.ResponseWriter) bool { return once(n, func() { slowly(4 * time.Second) }) },
			retries: 1, failed: "timeout",
		},
		{
			name:  "the connection is closed after every answer",
			after: func(_ int, w http.ResponseWriter) bool { w.Header().Set("Connection", "close"); return false },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := openDoor(t)
			d.before, d.after, d.token = tt.before, tt.after, "secret"
			cfg := tt.cfg
			cfg.URL, cfg.Token, cfg.Seed = d.URL, "secret", 5
			if cfg.Records == 0 {
				cfg.Records, cfg.Batch = 1234, 100
			}
			report, err := load.Run(t.Context(), cfg)
			fatal.If(t, err)
			if report.Acked.Records != cfg.Records || report.Sent.Records != cfg.Records {
				t.Errorf("%d of %d records were acknowledged, want %d", report.Acked.Records, report.Sent.Records, cfg.Records)
			}
			if report.Retries != tt.retries || report.Failed[tt.failed] != tt.retries {
				t.Errorf("%d retries after %v, want %d after %q", report.Retries, report.Failed, tt.retries, tt.failed)
			}
			d.holds(t, report.Acked)
			if cfg.Batch == 1 && d.objects != int(cfg.Records) {
				t.Errorf("%d records were sent as an object, want %d", d.objects, cfg.Records)
			}
		})
	}
}

func TestAnUnacknowledgedRequestIsAnError(t *testing.T) {
	tests := []struct {
		name   string
		answer func(w http.ResponseWriter)
		failed string
	}{
		{"refused for good", func(w http.ResponseWriter) { refuse(w, 422, "") }, "422"},
		{"no right to", func(w http.ResponseWriter) { refuse(w, 403, "") }, "403"},
		{"unavailable for longer than is worth waiting", func(w http.ResponseWriter) { refuse(w, 503, "60") }, "503"},
		{"a page of something else", func(w http.ResponseWriter) { io.WriteString(w, "<html>welcome</html>") }, "200 without OK"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := openDoor(t)
			d.before = func(n int, w http.ResponseWriter) bool {
				if n < 2 {
					return false
				}
				tt.answer(w)
				return true
			}
			began := time.Now()
			report, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 10_000, Batch: 100, Connections: 1, Failures: 3})
			expect.Not(t, !errors.Is(err, load.ErrNotAcknowledged), "error is %v, want ErrNotAcknowledged", err)
			if report.Acked.Records != 200 || report.Sent.Records != 500 || report.Failed[tt.failed] != 3 {
				t.Errorf("%d of %d records were acknowledged after %v, want 200 of 500 after 3× %s", report.Acked.Records, report.Sent.Records, report.Failed, tt.failed)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s to notice", took)
			}
			d.holds(t, report.Acked)
		})
	}
}

func TestRetryHonoursRetryAfter(t *testing.T) {
	d := openDoor(t)
	d.before = func(n int, w http.ResponseWriter) bool {
		if n == 0 {
			refuse(w, 429, "1")
		}
		return n == 0
	}
	report, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 10, Batch: 10, Connections: 1})
	fatal.If(t, err)
	expect.Not(t, report.Latency.Max < 1 || report.Latency.Max > 3, "the record was acknowledged after %.3f s, want a little over 1 s", report.Latency.Max)
}

func TestWaitingForAFreeConnectionCounts(t *testing.T) {
	d := openDoor(t)
	d.before = func(n int, w http.ResponseWriter) bool { return n == 0 && slowly(500*time.Millisecond) }
	// 100 requests, one every 5 ms: the first blocks the only connection.
	report, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 1000, Batch: 10, Connections: 1, Rate: 2000})
	fatal.If(t, err)
	expect.Not(t, report.Latency.P50 < 0.1, "half of the requests waited less than %.3f s, although all of them were due behind one of 0.5 s", report.Latency.P50)
	expect.Not(t, report.ElapsedSeconds < 0.49, "1000 records at 2000 per second took %.3f s", report.ElapsedSeconds)
}

func TestRunEndsWhenItsTimeIsUp(t *testing.T) {
	d := openDoor(t)
	report, err := load.Run(t.Context(), load.Config{URL: d.URL, Duration: 300 * time.Millisecond, Rate: 10_000, Batch: 100})
	fatal.If(t, err)
	if report.Acked.Records+report.MissedRecords != 3000 || report.ElapsedSeconds < 0.25 {
		t.Errorf("%d records were sent and %d missed in %.3f s, want 3000 together in 0.3 s", report.Acked.Records, report.MissedRecords, report.ElapsedSeconds)
	}
	d.holds(t, report.Acked)

	d = openDoor(t)
	d.before = func(int, http.ResponseWriter) bool { return slowly(100 * time.Millisecond) }
	report, err = load.Run(t.Context(), load.Config{URL: d.URL, Duration: 300 * time.Millisecond, Rate: 10_000, Batch: 100, Connections: 1})
	fatal.If(t, err)
	if report.Acked.Records+report.MissedRecords != 3000 || report.MissedRecords < 2000 {
		t.Errorf("%d records were sent and %d missed, want 3000 together and most of them missed", report.Acked.Records, report.MissedRecords)
	}
}

func TestACancelledRunFinishesRequestsInFlight(t *testing.T) {
	d := openDoor(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.before = func(n int, _ http.ResponseWriter) bool {
		if n == 4 {
			cancel()
		}
		return slowly(20 * time.Millisecond)
	}
	report, err := load.Run(ctx, load.Config{URL: d.URL, Records: 1_000_000, Batch: 10, Connections: 2})
	expect.Not(t, !errors.Is(err, context.Canceled) || errors.Is(err, load.ErrNotAcknowledged), "error is %v, want only that it was cancelled", err)
	if report.Acked != report.Sent || report.Acked.Records < 50 || report.Acked.Records > 100 {
		t.Errorf("%d of %d records were acknowledged", report.Acked.Records, report.Sent.Records)
	}
	d.holds(t, report.Acked)
}

// TestPostedReceivesTheResultOfEveryRequest: once, and exactly the requests reported as
// acknowledged are stored.
func TestPostedReceivesTheResultOfEveryRequest(t *testing.T) {
	d := openDoor(t)
	d.before = func(n int, w http.ResponseWriter) bool {
		if n%5 == 3 {
			refuse(w, 422, "")
		}
		return n%5 == 3
	}
	var mu sync.Mutex
	counts := map[bool]int{}
	posted := func(body []byte, acked bool) error {
		var records []struct{ ID string }
		if err := json.Unmarshal(body, &records); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		counts[acked] += len(records)
		for _, r := range records {
			if acked && d.ids[r.ID] != 1 {
				t.Errorf("%s is reported as acknowledged but is stored %d times", r.ID, d.ids[r.ID])
			}
		}
		return nil
	}
	_, err := load.Run(t.Context(), load.Config{URL: d.URL, Records: 2000, Batch: 50, Posted: posted, Failures: 100, Connections: 1})
	if !errors.Is(err, load.ErrNotAcknowledged) {
		t.Fatal(err)
	}
	if counts[true] != len(d.ids) || counts[true] != 1600 || counts[false] != 400 {
		t.Errorf("%d records are acknowledged, %d stored, %d given up, want 1600 and 400", counts[true], len(d.ids), counts[false])
	}
}

func TestRefusalBeforeTheBodyIsReadIsUnderstood(t *testing.T) {
	// A server that answers and closes at once, while the body is in flight.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			time.Sleep(100 * time.Millisecond) // the answer arrives before the reset
			conn.Close()
		}
	}()
	report, err := load.Run(t.Context(), load.Config{URL: "http://" + listener.Addr().String(), Records: 20_000, Batch: 20_000, Connections: 1, Failures: 1})
	if !errors.Is(err, load.ErrNotAcknowledged) || report.Failed["413"] != 1 {
		t.Errorf("error is %v after %v, want one 413", err, report.Failed)
	}
}

func TestRunOverTLS(t *testing.T) {
	d := openDoor(t)
	secure := httptest.NewUnstartedServer(d)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that must fail
	secure.StartTLS()
	defer secure.Close()
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	report, err := load.Run(t.Context(), load.Config{URL: secure.URL, Records: 500, Batch: 100, TLS: &tls.Config{RootCAs: roots}})
	fatal.If(t, err)
	d.holds(t, report.Acked)
	if report, err := load.Run(t.Context(), load.Config{URL: secure.URL, Records: 500, GiveUp: time.Millisecond}); err == nil {
		t.Errorf("a certificate of an unknown CA was trusted: %+v", report)
	}
}

func TestApiThatIsNotThere(t *testing.T) {
	report, err := load.Run(t.Context(), load.Config{URL: "http://127.0.0.1:1", Records: 1000, Batch: 100, GiveUp: 200 * time.Millisecond, Failures: 2, Connections: 2})
	if !errors.Is(err, load.ErrNotAcknowledged) || report.Acked.Records != 0 || report.Failed["connection"] < 2 {
		t.Errorf("error is %v after %v", err, report.Failed)
	}
	expect.Not(t, err != nil && !strings.Contains(err.Error(), "connection refused"), "error %q has no cause", err)
}

func generator() *load.Generator { return load.NewGenerator(load.GeneratorConfig{Seed: 9}) }

func TestUnusableConfigurations(t *testing.T) {
	tests := map[string]load.Config{
		"an address without scheme":        {URL: "127.0.0.1:8080"},
		"another scheme":                   {URL: "nats://127.0.0.1:4222"},
		"a negative number of records":     {Records: -1},
		"a negative rate":                  {Rate: -1},
		"a negative number of connections": {Connections: -1},
		"a source under two tokens":        {Source: generator(), Tokens: []string{"other"}},
	}
	for name, cfg := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := load.Run(t.Context(), cfg); err == nil || errors.Is(err, load.ErrNotAcknowledged) {
				t.Errorf("error is %v, want one about the configuration", err)
			}
		})
	}
}

func TestEveryTokenPostsRecordsOfItsOwn(t *testing.T) {
	d := openDoor(t)
	report, err := load.Run(t.Context(), load.Config{URL: d.URL, Token: "a", Tokens: []string{"b", "c"}, Records: 900, Batch: 100, Seed: 5})
	fatal.If(t, err)
	for _, token := range []string{"a", "b", "c"} {
		if n := d.callers["Bearer "+token]; n != 3 {
			t.Errorf("token %s posted %d of 9 requests, want 3", token, n)
		}
	}
	d.holds(t, report.Acked)
}

func TestRunsWithoutASeedContinueAboveEarlierOnes(t *testing.T) {
	var last int64
	for range 3 {
		report, err := load.Run(t.Context(), load.Config{URL: openDoor(t).URL, Records: 2000})
		fatal.If(t, err)
		expect.Not(t, report.Acked.MinPosition <= last, "a run begins at position %d, one before it went up to %d", report.Acked.MinPosition, last)
		last = report.Acked.MaxPosition
	}
}
