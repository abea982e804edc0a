package endtoend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// stack is a deployment whose processes a test starts separately, or as `sluice up`.
type stack struct {
	*deployment.Deployment
	t                        *testing.T
	data                     string
	empty                    bool // ClickHouse starts empty; the ingester migrates it
	http, ops, ingesterOps   string
	nats, clickhouse, chHTTP string
	console                  string
	token                    string
	tokens                   []string // of several sources
	flags                    []string // further options of `sluice up`
	client                   *http.Client
}

func newStack(t *testing.T) *stack {
	t.Helper()
	return newStackIn(t, t.TempDir())
}

func newStackIn(t *testing.T, dir string) *stack {
	t.Helper()
	d, err := deployment.New(deployment.Config{Bin: bin, Dir: dir})
	fatal.If(t, err)
	d.EndWith(t)
	api := d.Process(deployment.API)
	return &stack{
		Deployment: d, t: t, data: filepath.Join(dir, "data"),
		http: api.HTTP, ops: api.Ops, ingesterOps: d.Process(deployment.Ingester).Ops,
		nats: d.Process(deployment.NATS).Address, clickhouse: d.Native, chHTTP: d.HTTP,
		client: &http.Client{Timeout: 30 * time.Second},
	}
}

func (s *stack) started(kind string, options ...string) *process {
	s.t.Helper()
	p := s.Process(kind)
	base := p.Cmd.Args
	p.Cmd.Args = deployment.With(base, options...)
	p.Log = filepath.Join(s.t.TempDir(), kind+".log") // of this start alone
	fatal.If(s.t, p.Start())
	p.Cmd.Args = base
	return &process{p.Process, s.t, kind}
}

// migrated is a data folder of ClickHouse with only the schema.
var migrated struct {
	sync.Mutex
	dir  string // chosen by TestMain
	made bool
}

// tables copies the migrated tables, made once for all tests, to an empty ClickHouse. With
// stack.empty the ingester migrates it.
func (s *stack) tables() {
	s.t.Helper()
	data := filepath.Join(s.data, "clickhouse")
	if _, err := os.Stat(data); s.empty || err == nil {
		return
	}
	migrated.Lock()
	defer migrated.Unlock()
	if !migrated.made {
		first := newStackIn(s.t, migrated.dir)
		first.empty = true
		engine := first.startEngine()
		first.eventuallyQuery(time.Minute, "SELECT 1", "1")
		first.sluice(0, "migrate", "--clickhouse", "clickhouse://default@"+first.clickhouse+"/flow")
		if code := engine.stop(); code != 0 {
			s.t.Fatalf("the engine stopped with exit %d", code)
		}
		migrated.made = true
	}
	fatal.If(s.t, os.WriteFile(filepath.Join(s.data, "format"), fmt.Appendln(nil, flow.Format), 0o600))
	fatal.If(s.t, os.CopyFS(data, os.DirFS(filepath.Join(migrated.dir, "data/clickhouse"))))
}

func (s *stack) up() *process {
	s.t.Helper()
	s.tables()
	if s.Process(deployment.Up) == nil {
		s.Together(s.flags...)
		s.console, s.ingesterOps = s.Process(deployment.Up).HTTP, s.ops
	}
	p := s.started(deployment.Up)
	s.waitReady(p, s.ops)
	token, err := os.ReadFile(filepath.Join(s.data, "token"))
	fatal.If(s.t, err)
	s.token = strings.TrimSpace(string(token))
	return p
}

// secret returns a password of `sluice up`, or "" for separate processes, which need none.
func (s *stack) secret(name string) string {
	secret, err := os.ReadFile(filepath.Join(s.data, "secrets", name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(secret))
}

// waitReady waits until the process is ready at all ops addresses.
func (s *stack) waitReady(p *process, ops ...string) {
	s.t.Helper()
	for _, addr := range ops {
		eventually(s.t, 30*time.Second, func() error {
			select {
			case <-p.Exited():
				s.t.Fatalf("%s ended before it was ready", p.name)
			default:
			}
			res, err := s.client.Get("http://" + addr + "/readyz")
			if err != nil {
				return err
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", res.Status, body)
			}
			return nil
		})
	}
}

// post sends a body to the record route and returns the answer.
func (s *stack) post(body []byte) (*http.Response, string) {
	s.t.Helper()
	return s.sendWith(nil, http.MethodPost, "/flow/flowRecord/batch", body)
}

func (s *stack) send(method, path, body string) (*http.Response, string) {
	s.t.Helper()
	return s.sendWith(nil, method, path, []byte(body))
}

func (s *stack) sendWith(header http.Header, method, path string, body []byte) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, "http://"+s.http+path, bytes.NewReader(body))
	fatal.If(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", s.token)
	maps.Copy(req.Header, header)
	res, err := s.client.Do(req)
	fatal.If(s.t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	fatal.If(s.t, err)
	return res, string(answer)
}

// query queries ClickHouse over HTTP, without a password.
func (s *stack) query(sql string) (string, error) {
	res, err := s.client.Get("http://" + s.chHTTP + "/?query=" + url.QueryEscape(sql))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), nil
}

func (s *stack) eventuallyQuery(limit time.Duration, sql, want string) {
	s.t.Helper()
	eventually(s.t, limit, func() error {
		got, err := s.query(sql)
		if err == nil && got != want {
			err = errors.New("got " + got + ", want " + want)
		}
		return err
	})
}

// load posts records with `sluice load` and fails unless all are acknowledged.
func (s *stack) load(args ...string) string {
	s.t.Helper()
	code, out := run(s.t, "sluice", append([]string{"load", "--url", "http://" + s.http, "--token", s.token}, args...)...)
	fatal.When(s.t, code != 0, "sluice load %v: exit %d\n%s", args, code, out)
	return out
}

func wantOK(res *http.Response, body string) error {
	if res.StatusCode != http.StatusOK || body != `{"status":"OK"}` {
		return fmt.Errorf("answered %s %s, want 200 with the status OK alone", res.Status, body)
	}
	return nil
}

func wantText(got, part string) error {
	if !strings.Contains(got, part) {
		return fmt.Errorf("got %q, want %q in it", got, part)
	}
	return nil
}

// jetStream returns a direct connection to the streams.
func (s *stack) jetStream() nats.JetStreamContext {
	s.t.Helper()
	var as []nats.Option
	if password := s.secret("nats-operator"); password != "" {
		as = append(as, nats.UserInfo("operator", password))
	}
	nc, err := nats.Connect("nats://"+s.nats, as...)
	fatal.If(s.t, err)
	s.t.Cleanup(nc.Close)
	js, err := nc.JetStream()
	fatal.If(s.t, err)
	return js
}
