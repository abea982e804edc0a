package endtoend

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/programtest"
)

// apart starts the four processes of a deployment, each on its own.
func (s *stack) apart() (natsServer, engine, api, ingester *process) {
	s.t.Helper()
	natsServer, engine, api, ingester = s.startNATS(), s.startEngine(), s.startAPI(), s.startIngester()
	s.waitReady(api, s.ops)
	s.waitReady(ingester, s.ingesterOps)
	return natsServer, engine, api, ingester
}

func (s *stack) startNATS() *process { return s.started(deployment.NATS) }

func (s *stack) startEngine() *process {
	s.t.Helper()
	s.tables()
	return s.started(deployment.Engine)
}

func (s *stack) startIngester(options ...string) *process {
	return s.started(deployment.Ingester, options...)
}

// startAPI starts an api, with a token of its own, and does not wait for it.
func (s *stack) startAPI(options ...string) *process {
	return s.startAPIWith(s.tokenFile(), options...)
}

// startAPIWith is startAPI with the tokens of a file.
func (s *stack) startAPIWith(tokens string, options ...string) *process {
	s.t.Helper()
	return s.started(deployment.API, append([]string{"--tokens", tokens}, options...)...)
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

// TestFourProcesses begins with nothing, and ends every process as it should. Outages of
// servers: TestOutagesUnderLoad.
func TestFourProcesses(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.empty = true
	natsServer, engine, api, ingester := s.apart()
	s.load("--records", "10000", "--seed", "1")
	s.eventuallyQuery(20*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "10000\t10000")

	t.Run("the ingester dies and is replaced", func(t *testing.T) {
		s.load("--records", "5000", "--seed", "3")
		ingester.kill()
		ingester = s.startIngester()
		s.eventuallyQuery(60*time.Second, "SELECT count(), uniqExact(id) FROM flow.records", "15000\t15000")
	})
	s.eventuallyQuery(20*time.Second, "SELECT sum(records) FROM flow.counts_1m", "15000")
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
	s.startAPI()
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
	s.startNATS()
	api := s.startAPI()
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

// TestARepeatAtAnotherApi: an api says that a request is replayed, or that its key
// was used for another body, of what it took itself. At another api a repeat is
// answered OK, and the ingester drops it: nothing is stored twice, records that have
// no identity of their own included.
func TestARepeatAtAnotherApi(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	s.startEngine()
	ingester := s.startIngester()
	tokens, key := s.tokenFile(), filepath.Join(t.TempDir(), "key")
	run := func() *stack {
		one := *s
		one.http, one.ops = programtest.Address(), programtest.Address()
		p := start(t, "api", "--http", one.http, "--ops", one.ops, "--nats", "nats://"+s.nats, "--tokens", tokens, "--fingerprint-key", key)
		one.waitReady(p, one.ops)
		return &one
	}
	a, b := run(), run()
	s.waitReady(ingester, s.ingesterOps)
	post := func(s *stack, body string) (*http.Response, string) {
		t.Helper()
		return s.sendWith(http.Header{"Idempotency-Key": {"key-1"}, "Prefer": {"wait=20"}}, http.MethodPost, "/flow/flowRecord/batch", []byte(body))
	}
	const body = `[{"valueType":"JOB"},{"valueType":"JOB"}]`
	for _, c := range []struct {
		api      *stack
		replayed string
	}{{a, ""}, {a, "true"}, {b, ""}, {b, "true"}, {a, "true"}} {
		res, answer := post(c.api, body)
		if wantOK(res, answer) != nil || res.Header.Get("Idempotent-Replayed") != c.replayed || res.Header.Get("Sluice-Stored") != "true" {
			t.Errorf("answered %s %s %v, want OK, stored, and replayed %q", res.Status, answer, res.Header, c.replayed)
		}
	}
	for _, api := range []*stack{a, b} {
		if res, answer := post(api, `{"valueType":"INCIDENT"}`); res.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(answer, "idempotency_key_reused") {
			t.Errorf("another body is answered %s %s, want 422 idempotency_key_reused", res.Status, answer)
		}
	}
	s.eventuallyQuery(20*time.Second, "SELECT count(), (SELECT sum(records) FROM flow.counts_1m) FROM flow.records", "2\t2")
	s.sluice(0, "verify", "--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://default@"+s.clickhouse+"/flow")
}
