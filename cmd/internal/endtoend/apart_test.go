package endtoend

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/programtest"
)

// apart starts the four processes of a deployment, each on its own.
func (s *stack) apart() (natsServer, engine, api, ingester *process) {
	s.t.Helper()
	s.ingesterOps = programtest.Address()
	natsServer = s.startNATS()
	engine = s.startEngine()
	api = start(s.t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--tokens", s.tokenFile(),
		"--fingerprint-key", filepath.Join(s.t.TempDir(), "key"))
	ingester = s.startIngester()
	s.waitReady(api, s.ops)
	s.waitReady(ingester, s.ingesterOps)
	return natsServer, engine, api, ingester
}

func (s *stack) startNATS() *process {
	return start(s.t, "sluice", "nats", "--data", filepath.Join(s.data, "nats"), "--listen", s.nats)
}

func (s *stack) startEngine() *process {
	s.t.Helper()
	s.tables()
	return start(s.t, "sluice", "clickhouse", "--data", filepath.Join(s.data, "clickhouse"), "--listen", s.clickhouse, "--http", s.chHTTP)
}

func (s *stack) startIngester() *process {
	return start(s.t, "ingester", "--ops", s.ingesterOps, "--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
}

// tokenFile makes a token as an operator would, and keeps it for post.
func (s *stack) tokenFile() string {
	s.t.Helper()
	file, tokens := s.tokensOf("engine-a")
	s.token = tokens[0]
	return file
}

// tokensOf makes a token for each of some sources, and the file of them.
func (s *stack) tokensOf(sources ...string) (file string, tokens []string) {
	s.t.Helper()
	var text string
	for _, source := range sources {
		code, out := run(s.t, "sluice", "token", "new", "--subject", source, "--scope", "records:write,user:write,fields:write,read")
		lines := strings.Split(out, "\n")
		if code != 0 || len(lines) < 5 {
			s.t.Fatalf("sluice token new: exit %d\n%s", code, out)
		}
		tokens = append(tokens, lines[1])
		text += lines[4] + "\n"
	}
	file = filepath.Join(s.t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file, tokens
}

func TestFourProcesses(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.empty = true
	natsServer, engine, api, ingester := s.apart()
	s.load("--records", "10000", "--seed", "1")
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "10000\t10000")

	t.Run("ClickHouse goes away and comes back", func(t *testing.T) {
		engine.kill()
		s.load("--records", "5000", "--seed", "2")
		engine = s.startEngine()
		s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "15000\t15000")
	})
	t.Run("the ingester dies and is replaced", func(t *testing.T) {
		s.load("--records", "5000", "--seed", "3")
		ingester.kill()
		ingester = s.startIngester()
		s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "20000\t20000")
	})
	t.Run("NATS goes away and comes back", func(t *testing.T) {
		natsServer.kill()
		began := time.Now()
		res, body := s.post([]byte(`{"id":"9-9","valueType":"JOB","value":{}}`))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("answered after %v, want within 2s", took)
		}
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("answered %s %s, want 503", res.Status, body)
		}
		if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || seconds < 1 {
			t.Errorf("Retry-After is %q, want whole seconds", res.Header.Get("Retry-After"))
		}
		natsServer = s.startNATS()
		eventually(t, 20*time.Second, func() error {
			res, body := s.post([]byte(`{"id":"9-9","valueType":"JOB","value":{}}`))
			return wantOK(res, body)
		})
		s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "20001\t20001")
	})
	s.eventuallyQuery(5*time.Second, "SELECT sum(records) FROM flow.counts_1m", "20001")
	for _, p := range []*process{api, ingester, natsServer, engine} {
		if code := p.stop(); code != 0 {
			t.Errorf("%s stopped with exit %d, want 0", p.name, code)
		}
	}
}

// TestAPIStartsWithoutNATS: clients of an api that comes up first are told to
// try again, and it takes their records once NATS is there.
func TestAPIStartsWithoutNATS(t *testing.T) {
	s := newStack(t)
	start(t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--tokens", s.tokenFile(),
		"--fingerprint-key", filepath.Join(t.TempDir(), "key"))
	eventually(t, 10*time.Second, func() error { _, err := s.client.Get("http://" + s.ops + "/healthz"); return err })
	res, body := s.post([]byte(`{"id":"1-1","valueType":"JOB","value":{}}`))
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("answered %s %s, want 503 with Retry-After", res.Status, body)
	}
	s.startNATS()
	eventually(t, 20*time.Second, func() error {
		res, body := s.post([]byte(`{"id":"1-1","valueType":"JOB","value":{}}`))
		return wantOK(res, body)
	})
}

// TestUsersChangeWithoutClickHouse: what is accepted of users can be read at once,
// though ClickHouse has never been there, and over a restart of the ingester.
func TestUsersChangeWithoutClickHouse(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.ingesterOps = programtest.Address()
	s.startNATS()
	api := start(t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--tokens", s.tokenFile(),
		"--fingerprint-key", filepath.Join(t.TempDir(), "key"))
	ingester := s.startIngester()
	s.waitReady(api, s.ops)
	changed := func(name string) {
		t.Helper()
		if err := wantOK(s.send(http.MethodPatch, "/spm/login/current/user", `{"name":"`+name+`"}`)); err != nil {
			t.Error(err)
		}
		eventually(t, 20*time.Second, func() error {
			_, body := s.send(http.MethodGet, "/spm/login/current/user", "")
			return wantText(body, `"name":"`+name+`"`)
		})
	}
	changed("Ann")
	if status, page := s.page(s.ingesterOps, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(page, "ClickHouse") {
		t.Errorf("/readyz of the ingester answers %d %s, want that it waits for ClickHouse", status, page)
	}
	if code := ingester.stop(); code != 0 {
		t.Errorf("the ingester stopped with exit %d, want 0", code)
	}
	ingester = s.startIngester()
	changed("Bob")
	s.startEngine()
	s.waitReady(ingester, s.ingesterOps)
	s.eventuallyQuery(20*time.Second, "SELECT count() FROM flow.changes", "2")
}

// TestTwoApisKnowAKey: it was used at one, and is known at the other.
func TestTwoApisKnowAKey(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	tokens, key := s.tokenFile(), filepath.Join(t.TempDir(), "key")
	run := func() *stack {
		one := *s
		one.http, one.ops = programtest.Address(), programtest.Address()
		p := start(t, "api", "--http", one.http, "--ops", one.ops, "--nats", "nats://"+s.nats, "--tokens", tokens, "--fingerprint-key", key)
		one.waitReady(p, one.ops)
		return &one
	}
	a, b := run(), run()
	post := func(s *stack, body string) (*http.Response, string) {
		t.Helper()
		return s.sendWith(http.Header{"Idempotency-Key": {"key-1"}}, http.MethodPost, "/flow/flowRecord/batch", []byte(body))
	}
	if res, body := post(a, `{"valueType":"JOB"}`); wantOK(res, body) != nil || res.Header.Get("Idempotent-Replayed") != "" {
		t.Fatalf("answered %s %s %v", res.Status, body, res.Header)
	}
	eventually(t, 20*time.Second, func() error {
		if b.metric(b.ops, "sluice_stream_followed_entries_total") < 1 {
			return errors.New("the other api has not heard of it")
		}
		return nil
	})
	if res, body := post(b, `{"valueType":"INCIDENT"}`); res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(body, "idempotency_key_reused") {
		t.Errorf("another body is answered %s %s, want 422 idempotency_key_reused", res.Status, body)
	}
	if res, body := post(b, `{"valueType":"JOB"}`); wantOK(res, body) != nil || res.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same again is answered %s %s %v, want OK and that it is replayed", res.Status, body, res.Header)
	}
}
