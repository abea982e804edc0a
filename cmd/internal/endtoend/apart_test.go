package endtoend

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// apart starts the four processes of a deployment separately.
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

// startAPI starts an api with a new token, without waiting for it.
func (s *stack) startAPI(options ...string) *process {
	return s.startAPIWith(s.tokenFile(), options...)
}

func (s *stack) startAPIWith(tokens string, options ...string) *process {
	s.t.Helper()
	return s.started(deployment.API, append([]string{"--tokens", tokens}, options...)...)
}

// tokenFile makes a token with the command, and keeps it for post.
func (s *stack) tokenFile() string {
	s.t.Helper()
	file, tokens := s.tokensOf("engine-a")
	s.token = tokens[0]
	return file
}

// tokensOf makes a token for each source, and a file of them.
func (s *stack) tokensOf(sources ...string) (file string, tokens []string) {
	s.t.Helper()
	var text string
	for _, source := range sources {
		code, out := run(s.t, "sluice", "token", "new", "--subject", source, "--scope", "records:write,user:write,fields:write,read")
		lines := strings.Split(out, "\n")
		fatal.When(s.t, code != 0 || len(lines) < 5, "sluice token new: exit %d\n%s", code, out)
		tokens = append(tokens, lines[1])
		text += lines[4] + "\n"
	}
	file = filepath.Join(s.t.TempDir(), "tokens.yaml")
	fatal.If(s.t, os.WriteFile(file, []byte(text), 0o600))
	return file, tokens
}

// TestAPIStartsWithoutNATS: an api without NATS serves its version, and answers posts 503
// until NATS is up.
func TestAPIStartsWithoutNATS(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startAPI()
	eventually(t, 10*time.Second, func() error { _, err := s.client.Get("http://" + s.ops + "/healthz"); return err })
	s.saysItsVersion()
	res, body := s.post([]byte(`{"id":"1-1","valueType":"JOB","value":{}}`))
	expect.Not(t, res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "", "answered %s %s, want 503 with Retry-After", res.Status, body)
	s.startNATS()
	eventually(t, 20*time.Second, func() error {
		res, body := s.post([]byte(`{"id":"1-1","valueType":"JOB","value":{}}`))
		return wantOK(res, body)
	})
}
