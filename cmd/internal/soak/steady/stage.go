package steady

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sluice/pkg/auth"
	engine "sluice/pkg/embedded/clickhouse"
	"sluice/pkg/record"
)

// stage is the four processes of a deployment.
type stage struct {
	dir     string
	token   string
	url     string // of the api
	queries string // address of the engine's HTTP
	parts   []*part
}

// part is one of the processes.
type part struct {
	name string
	ops  string // address of its ops port, empty when it has none
	cmd  *exec.Cmd
	log  *os.File
}

// newStage builds the programs and starts them in dir.
func newStage(ctx context.Context, dir string) (*stage, error) {
	library, err := engine.Locate("")
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "bin") + "/"
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "sluice/cmd/api", "sluice/cmd/ingester", "sluice/cmd/sluice")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	s := &stage{dir: dir, token: auth.NewToken(), queries: address()}
	tokens := filepath.Join(dir, "tokens.yaml")
	entry := auth.Entry{Subject: "soak", SHA256: auth.Digest(s.token), Scopes: []record.Scope{record.ScopeRecordsWrite}}
	if err := os.WriteFile(tokens, []byte(entry.Line()+"\n"), 0o600); err != nil {
		return nil, err
	}
	nats, native, http, apiOps, ingesterOps := address(), address(), address(), address(), address()
	s.url = "http://" + http
	for _, p := range []struct {
		name, ops string
		args      []string
	}{
		{"nats", "", []string{"sluice", "nats", "--data", filepath.Join(dir, "nats"), "--listen", nats}},
		{"engine", "", []string{"sluice", "clickhouse", "--data", filepath.Join(dir, "clickhouse"), "--listen", native, "--http", s.queries, "--clickhouse-library", library}},
		{"api", apiOps, []string{"api", "--http", http, "--ops", apiOps, "--nats", "nats://" + nats, "--tokens", tokens, "--fingerprint-key", filepath.Join(dir, "key")}},
		{"ingester", ingesterOps, []string{"ingester", "--ops", ingesterOps, "--nats", "nats://" + nats, "--clickhouse", "clickhouse://default@" + native + "/flow"}},
	} {
		if err := s.start(p.name, p.ops, bin+p.args[0], p.args[1:]...); err != nil {
			return s, err
		}
	}
	return s, s.ready(ctx)
}

func (s *stage) start(name, ops, program string, args ...string) error {
	log, err := os.Create(filepath.Join(s.dir, name+".log"))
	if err != nil {
		return err
	}
	p := &part{name: name, ops: ops, log: log, cmd: exec.Command(program, args...)}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "SLUICE_") {
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	if err := p.cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	s.parts = append(s.parts, p)
	return nil
}

// ready waits until every part that says so can work.
func (s *stage) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, p := range s.parts {
		for p.ops != "" {
			res, err := http.Get("http://" + p.ops + "/readyz")
			if err == nil {
				res.Body.Close()
				if res.StatusCode == http.StatusOK {
					break
				}
				err = errors.New(res.Status)
			}
			if !sleep(ctx, 100*time.Millisecond) {
				return fmt.Errorf("%s is not ready: %w", p.name, err)
			}
		}
	}
	return nil
}

// stop ends the parts, the last one first. The error says which did not end by
// themselves.
func (s *stage) stop() (all error) {
	for i := len(s.parts) - 1; i >= 0; i-- {
		p := s.parts[i]
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		late := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
		if err := p.cmd.Wait(); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", p.name, err))
		}
		late.Stop()
		all = errors.Join(all, p.log.Close())
	}
	s.parts = nil
	return all
}

// address is a loopback address nobody listens on.
func address() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0" // whoever listens there says what is wrong
	}
	defer l.Close()
	return l.Addr().String()
}

// sleep tells whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
