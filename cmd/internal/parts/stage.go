package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/auth"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/flow"
	"sluice/pkg/programtest"
)

// Names of the parts. Further apis and ingesters are called "api 2", "ingester 2"
// and so on.
const (
	NATS     = "nats"
	Engine   = "engine"
	API      = "api"
	Ingester = "ingester"
	Console  = "console"
)

// Stage is a deployment that runs.
type Stage struct {
	Token string // may write records, and dataset fields
	URL   string // of the api
	NATS  string // URL of NATS
	HTTP  string // address of the engine's HTTP
	Parts []*Part

	Native string // address of the engine's native protocol

	spare []string // tokens of sources that have not been seen yet
	bin   string   // folder of the programs
	dir   string
}

// Start starts NATS, the engine, an api and an ingester from the programs in
// bin, and waits until they can work. Data and logs go to dir. When that fails
// nothing is left running.
func Start(ctx context.Context, bin, dir string) (s *Stage, err error) {
	file, err := library.Fetched()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	nats := programtest.Address()
	s = &Stage{
		Token: auth.NewToken(), NATS: "nats://" + nats, HTTP: programtest.Address(),
		bin: bin, dir: dir, Native: programtest.Address(),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.writeTokens(s.tokens()); err != nil {
		return s, err
	}
	for _, p := range []struct {
		name string
		args []string
	}{
		{NATS, []string{"nats", "--data", filepath.Join(dir, "nats"), "--listen", nats}},
		{Engine, []string{"clickhouse", "--data", filepath.Join(dir, "clickhouse"), "--listen", s.Native, "--http", s.HTTP, "--clickhouse-library", file}},
	} {
		if _, err := s.spawn(p.name, "", "sluice", p.args...); err != nil {
			return s, err
		}
	}
	api, err := s.spawnAPI()
	if err != nil {
		return s, err
	}
	s.URL = "http://" + api.HTTP
	return s, s.AddIngester(ctx)
}

func (s *Stage) tokens() string { return filepath.Join(s.dir, "tokens.yaml") }

// writeTokens writes a file with the token, and some of other sources.
func (s *Stage) writeTokens(file string) error {
	const others = 8
	var lines strings.Builder
	for i, token := 0, s.Token; i <= others; i++ {
		source := "load"
		if i > 0 {
			token, source = auth.NewToken(), fmt.Sprintf("load-%d", i)
			s.spare = append(s.spare, token)
		}
		entry := auth.Entry{Subject: "load", Source: source, SHA256: auth.Digest(token), Scopes: []flow.Scope{flow.ScopeRecordsWrite, flow.ScopeFieldsWrite, flow.ScopeRead}}
		fmt.Fprintln(&lines, entry.Line())
	}
	return os.WriteFile(file, []byte(lines.String()), 0o600)
}

// NextSource makes Token one of a source that was not seen yet: it gets all
// lanes there are.
func (s *Stage) NextSource() error {
	if len(s.spare) == 0 {
		return errors.New("there is no token of one more source")
	}
	s.Token, s.spare = s.spare[0], s.spare[1:]
	return nil
}

// AddIngester starts one more ingester and waits until all parts can work.
func (s *Stage) AddIngester(ctx context.Context) error {
	return s.AddIngesterTo(ctx, s.Native, "flow")
}

// AddIngesterTo is AddIngester with another way to the engine, another database, and
// further options.
func (s *Stage) AddIngesterTo(ctx context.Context, native, database string, options ...string) error {
	ops := programtest.Address()
	args := append([]string{"--ops", ops, "--nats", s.NATS, "--clickhouse", "clickhouse://default@" + native + "/" + database}, options...)
	if _, err := s.spawn(numbered(Ingester, s.Ingesters()), ops, "ingester", args...); err != nil {
		return err
	}
	return s.ready(ctx)
}

// AddAPI starts one more api, for the same tokens, and waits until all parts can
// work.
func (s *Stage) AddAPI(ctx context.Context) error {
	if _, err := s.spawnAPI(); err != nil {
		return err
	}
	return s.ready(ctx)
}

func (s *Stage) spawnAPI() (*Part, error) {
	http, ops := programtest.Address(), programtest.Address()
	p, err := s.spawn(numbered(API, s.APIs()), ops, "api", "--http", http, "--ops", ops, "--nats", s.NATS, "--tokens", s.tokens(), "--fingerprint-key", filepath.Join(s.dir, "key"))
	if err == nil {
		p.HTTP = http
	}
	return p, err
}

// AddConsole starts the web page, with further options. It looks at the apis and
// ingesters there are. AddConsole waits until all parts can work.
func (s *Stage) AddConsole(ctx context.Context, options ...string) (*Part, error) {
	http, ops := programtest.Address(), programtest.Address()
	var watch []string
	for _, p := range slices.Concat(s.APIs(), s.Ingesters()) {
		watch = append(watch, p.Ops)
	}
	args := append([]string{"console", "--listen", http, "--ops", ops, "--watch", strings.Join(watch, ","), "--tokens", s.tokens(),
		"--nats", s.NATS, "--clickhouse", "clickhouse://default@" + s.Native + "/flow"}, options...)
	p, err := s.spawn(Console, ops, "sluice", args...)
	if err != nil {
		return nil, err
	}
	p.HTTP = http
	return p, s.ready(ctx)
}

// numbered is the name of the next part of some.
func numbered(name string, there []*Part) string {
	if len(there) == 0 {
		return name
	}
	return fmt.Sprintf("%s %d", name, len(there)+1)
}

// ready waits until all parts can work.
func (s *Stage) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, p := range s.Parts {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) spawn(name, ops, program string, args ...string) (*Part, error) {
	p, err := Spawn(s.dir, name, ops, filepath.Join(s.bin, program), args...)
	if err == nil {
		s.Parts = append(s.Parts, p)
	}
	return p, err
}

// Part is the part of that name; nil when there is none.
func (s *Stage) Part(name string) *Part {
	for _, p := range s.Parts {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Ingesters are the parts that are one.
func (s *Stage) Ingesters() []*Part { return s.named(Ingester) }

// APIs are the parts that are one.
func (s *Stage) APIs() []*Part { return s.named(API) }

func (s *Stage) named(name string) []*Part {
	var all []*Part
	for _, p := range s.Parts {
		if strings.HasPrefix(p.Name, name) {
			all = append(all, p)
		}
	}
	return all
}

// Sluice runs a command of the operator.
func (s *Stage) Sluice(ctx context.Context, args ...string) error {
	return s.sluice(ctx, s.bin, args...)
}

// sluice runs a command in the folder of the stage: in that of who began this, it
// would log in by the secrets of a ./data that is another installation's.
func (s *Stage) sluice(ctx context.Context, bin string, args ...string) error {
	program, err := filepath.Abs(filepath.Join(bin, "sluice"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = s.dir, programtest.Environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("sluice %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Verify proves with the programs in bin that every accepted record is stored once,
// set aside, or waiting.
func (s *Stage) Verify(ctx context.Context, bin string) error {
	return s.sluice(ctx, bin, "verify", "--deep", "--nats", s.NATS, "--clickhouse", "clickhouse://default@"+s.Native+"/flow")
}

// Query asks the engine over HTTP. Rows are lines, columns separated by tabs.
func (s *Stage) Query(ctx context.Context, sql string) (string, error) {
	return s.ask(ctx, http.MethodGet, sql)
}

// Number is what a query answers that asks for one whole number.
func (s *Stage) Number(ctx context.Context, sql string) (int64, error) {
	text, err := s.Query(ctx, sql)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// Stored waits until so many rows can be queried.
func (s *Stage) Stored(ctx context.Context, records int64) error {
	var last int64
	for moved := time.Now(); last < records; time.Sleep(500 * time.Millisecond) {
		now, err := s.Number(ctx, "SELECT count() FROM flow.records")
		if err != nil {
			return err
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > time.Minute {
			return fmt.Errorf("%d of %d records are stored, and no more for a minute", last, records)
		}
	}
	if last > records {
		return fmt.Errorf("%d rows are stored of %d records", last, records)
	}
	return nil
}

// Settle waits until the engine has had nothing to merge for three seconds.
func (s *Stage) Settle(ctx context.Context) error {
	for quiet := 0; quiet < 15; quiet++ {
		merges, err := s.Number(ctx, "SELECT count() FROM system.merges")
		if err != nil {
			return err
		}
		if merges > 0 {
			quiet = -1
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// Exec tells the engine to do something over HTTP.
func (s *Stage) Exec(ctx context.Context, sql string) error {
	_, err := s.ask(ctx, http.MethodPost, sql)
	return err
}

func (s *Stage) ask(ctx context.Context, method, sql string) (string, error) {
	return Ask(ctx, method, "http://"+s.HTTP+"/?query="+url.QueryEscape(sql))
}

// Ask makes a request without a body, and returns what is answered, without the line's end.
func Ask(ctx context.Context, method, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// StopLast ends the part that was started last.
func (s *Stage) StopLast() error {
	last := len(s.Parts) - 1
	p := s.Parts[last]
	s.Parts = s.Parts[:last]
	return p.Stop()
}

// Stop ends the parts, the last one first. The error says which did not end by
// themselves.
func (s *Stage) Stop() (all error) {
	for _, p := range slices.Backward(s.Parts) {
		all = errors.Join(all, p.Stop())
	}
	s.Parts = nil
	return all
}
