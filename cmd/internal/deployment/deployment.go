package deployment

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"sluice/pkg/auth"
	"sluice/pkg/flow"
	"sluice/pkg/programtest"
)

// Kinds of processes. Further processes of a kind are named api-2 and so on.
const (
	NATS     = "nats"
	Engine   = "engine"
	API      = "api"
	Ingester = "ingester"
	Console  = "console"
	Up       = "up" // all in one process, `sluice up`
)

// Names of links that clients use. A process's links are its name with ToNATS or ToEngine.
const (
	Clients   = "clients→api"
	Exporters = "exporters→api" // the api's Elasticsearch listener
	ToNATS    = "→nats"
	ToEngine  = "→engine"
)

type Config struct {
	Bin string // folder of the programs, by programtest.Build or BuildWithClocks
	Dir string // for data and logs; created

	Up        bool // one process, `sluice up`, instead of those below
	NATS      int  // servers: 1 (the default), or 3 that form a cluster
	APIs      int  // default 1
	Ingesters int  // default 1
	Console   bool // a console that watches the apis and ingesters
	Exporters bool // the apis also listen for Camunda's exporters, with memory for their bulks
	Links     bool // every connection of clients, apis, and ingesters passes a Link
	Clocks    bool // SetClock steps the clocks; needs programs by BuildWithClocks

	Sources  []string            // one token each; default load, load-2, … load-9
	Subjects map[string]string   // token subjects, by source; default the source
	Options  map[string][]string // further options, by kind or name of a process
}

// Deployment is a set of processes in start order, the links between them, and their
// addresses.
type Deployment struct {
	Config
	Processes []*Process
	Links     map[string]*Link
	Tokens    map[string]string // by source
	Token     string            // of the first source, or of `sluice up`

	URL     string // of the api, for clients
	Elastic string // of the api, for Camunda's exporters
	NATSURL string // direct, like the two below
	Native  string // address of the engine's native protocol
	HTTP    string // address of the engine's HTTP

	mu sync.Mutex
	nc *nats.Conn // owned by mu; made by JetStream
}

// Start starts a deployment and waits until it is ready. After an error no process runs.
func Start(ctx context.Context, cfg Config) (*Deployment, error) {
	d, err := New(cfg)
	if err == nil {
		err = d.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// New creates a deployment and opens its links, without starting a process.
func New(cfg Config) (*Deployment, error) {
	if cfg.Sources == nil {
		cfg.Sources = []string{"load"}
		for i := range 8 {
			cfg.Sources = append(cfg.Sources, fmt.Sprint("load-", i+2))
		}
	}
	d := &Deployment{Config: cfg, Links: map[string]*Link{}, Tokens: map[string]string{}}
	var err, failed error
	d.Bin, err = filepath.Abs(cfg.Bin)
	d.Dir, failed = filepath.Abs(cfg.Dir)
	if err := errors.Join(err, failed); err != nil {
		return d, err
	}
	for _, folder := range []string{d.path("logs"), d.path("data"), d.path("clocks")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return d, err
		}
	}
	if err := d.writeTokens(); err != nil {
		return d, err
	}
	if err := d.addNATS(max(1, cfg.NATS)); err != nil {
		return d, err
	}
	d.Native, d.HTTP = programtest.Address(), programtest.Address()
	engine := Process{Kind: Engine, Address: d.Native, HTTP: d.HTTP, Data: d.path("data/clickhouse")}
	d.add(engine, "sluice", "clickhouse", "--data", engine.Data, "--listen", d.Native, "--http", d.HTTP)
	for range max(1, cfg.APIs) {
		if _, err := d.addAPI(); err != nil {
			return d, err
		}
	}
	for range max(1, cfg.Ingesters) {
		if _, err := d.addIngester(d.Native, "flow"); err != nil {
			return d, err
		}
	}
	if cfg.Console {
		d.addConsole()
	}
	err = d.openDoors()
	if cfg.Up {
		d.Together()
	}
	return d, err
}

// openDoors sets the addresses of clients: a link to all apis, or the first api.
func (d *Deployment) openDoors() (err error) {
	var apis, elastic []string
	for _, p := range d.Of(API) {
		apis, elastic = append(apis, p.HTTP), append(elastic, p.Elastic)
	}
	door, bulks := apis[0], elastic[0]
	if d.Config.Links {
		if door, err = d.link(Clients, apis...); err != nil {
			return err
		}
		if d.Config.Exporters {
			if bulks, err = d.link(Exporters, elastic...); err != nil {
				return err
			}
		}
	}
	d.URL, d.Elastic = "http://"+door, "http://"+bulks
	return nil
}

func (d *Deployment) path(name string) string { return filepath.Join(d.Dir, name) }

func (d *Deployment) writeTokens() error {
	var file strings.Builder
	for _, source := range d.Sources {
		d.Tokens[source] = auth.NewToken()
		entry := auth.Entry{Subject: cmp.Or(d.Subjects[source], source), Source: source, SHA256: auth.Digest(d.Tokens[source]),
			Scopes: []flow.Scope{flow.ScopeRecordsWrite, flow.ScopeFieldsWrite, flow.ScopeUserWrite, flow.ScopeRead}}
		fmt.Fprintln(&file, entry.Line())
	}
	d.Token = d.Tokens[d.Sources[0]]
	return os.WriteFile(d.path("tokens.yaml"), []byte(file.String()), 0o600)
}

// NextSource switches Token to the next source, which gets all lanes that exist at its
// first post.
func (d *Deployment) NextSource() error {
	if len(d.Sources) < 2 {
		return errors.New("every source of Config.Sources is used")
	}
	d.Sources = d.Sources[1:]
	d.Token = d.Tokens[d.Sources[0]]
	return nil
}

// With adds options to arguments. They replace options of the same name, since programs use
// the first one.
func With(args []string, options ...string) []string {
	args = slices.Clone(args)
	for i, option := range options {
		if at := slices.Index(args, option); at >= 0 && at+1 < len(args) && strings.HasPrefix(option, "--") && i+1 < len(options) {
			args = slices.Delete(args, at, at+2)
		}
	}
	return append(args, options...)
}

// next returns the name of another process of a kind.
func (d *Deployment) next(kind string) string {
	if n := len(d.Of(kind)); n > 0 {
		return fmt.Sprint(kind, "-", n+1)
	}
	return kind
}

func (d *Deployment) add(p Process, program string, args ...string) *Process {
	name, ops := d.next(p.Kind), ""
	args = With(args, d.Options[p.Kind]...)
	if name != p.Kind {
		args = With(args, d.Options[name]...)
	}
	if i := slices.Index(args, "--ops"); i >= 0 {
		ops = args[i+1]
	}
	p.Process = programtest.New(d.path("logs"), name, filepath.Join(d.Bin, program), args...)
	p.Ops = ops
	if d.Clocks {
		p.Cmd.Env = d.withClock(name)
	}
	d.Processes = append(d.Processes, &p)
	return &p
}

// link opens another address of a link, to any of the targets.
func (d *Deployment) link(name string, targets ...string) (string, error) {
	if d.Links[name] == nil {
		d.Links[name] = NewLink()
	}
	return d.Links[name].Listen(targets...)
}

// via returns the addresses at which a process reaches servers.
func (d *Deployment) via(name string, servers ...string) ([]string, error) {
	if !d.Config.Links {
		return servers, nil
	}
	for i, server := range servers {
		addr, err := d.link(name, server)
		if err != nil {
			return nil, err
		}
		servers[i] = addr
	}
	return servers, nil
}

func (d *Deployment) natsVia(process string) (string, error) {
	var servers []string
	for _, p := range d.Of(NATS) {
		servers = append(servers, p.Address)
	}
	servers, err := d.via(process+ToNATS, servers...)
	return natsURL(servers), err
}

func natsURL(addrs []string) string { return "nats://" + strings.Join(addrs, ",nats://") }

// addNATS adds servers: one, or a cluster. no_advertise keeps clients from bypassing their
// links.
func (d *Deployment) addNATS(n int) error {
	var clients, routes []string
	for range n {
		clients, routes = append(clients, programtest.Address()), append(routes, programtest.Address())
	}
	d.NATSURL = natsURL(clients)
	for i := range n {
		name := d.next(NATS)
		p := Process{Kind: NATS, Address: clients[i], HTTP: programtest.Address(), Data: d.path("data/" + name)}
		if n == 1 {
			d.add(p, "sluice", "nats", "--data", p.Data, "--listen", p.Address, "--monitor", p.HTTP)
			continue
		}
		conf := fmt.Sprintf(`server_name: %s
listen: %q
http: %q
max_payload: 16MB
max_pending: 256MB
jetstream { store_dir: %q, max_file_store: 20GB, max_memory_store: 256MB, sync_interval: always }
cluster { name: deployment, listen: %q, routes: ["nats://%s"], no_advertise: true }
`, name, p.Address, p.HTTP, p.Data, routes[i], strings.Join(routes, `", "nats://`))
		file := d.path(name + ".conf")
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			return err
		}
		d.add(p, "sluice", "nats", "--config", file)
	}
	return nil
}

func (d *Deployment) addAPI() (*Process, error) {
	nats, err := d.natsVia(d.next(API))
	p := Process{Kind: API, HTTP: programtest.Address()}
	args := []string{"--http", p.HTTP, "--ops", programtest.Address(), "--nats", nats, "--tokens", d.path("tokens.yaml"), "--fingerprint-key", d.path("key")}
	if d.Config.Exporters {
		p.Elastic = programtest.Address()
		args = append(args, "--elasticsearch", p.Elastic)
	}
	return d.add(p, "api", args...), err
}

func (d *Deployment) addIngester(native, database string, options ...string) (*Process, error) {
	nats, err := d.natsVia(d.next(Ingester))
	if err != nil {
		return nil, err
	}
	engine, err := d.via(d.next(Ingester)+ToEngine, native)
	if err != nil {
		return nil, err
	}
	return d.add(Process{Kind: Ingester}, "ingester", append([]string{"--ops", programtest.Address(), "--nats", nats,
		"--clickhouse", "clickhouse://default@" + engine[0] + "/" + database}, options...)...), nil
}

func (d *Deployment) addConsole(options ...string) *Process {
	var watch []string
	for _, other := range slices.Concat(d.Of(API), d.Of(Ingester)) {
		watch = append(watch, other.Ops)
	}
	p := Process{Kind: Console, HTTP: programtest.Address()}
	return d.add(p, "sluice", append([]string{"console", "--listen", p.HTTP, "--ops", programtest.Address(), "--watch", strings.Join(watch, ","),
		"--tokens", d.path("tokens.yaml"), "--nats", d.NATSURL, "--clickhouse", d.ClickHouse()}, options...)...)
}

// Together replaces all processes by one `sluice up` with the same addresses and data. HTTP
// is its console's address.
func (d *Deployment) Together(options ...string) *Process {
	nats, api := d.Process(NATS), d.Process(API)
	d.Processes, d.Up = nil, true
	p := Process{Kind: Up, Address: nats.Address, HTTP: programtest.Address(), Elastic: api.Elastic, Data: d.path("data")}
	return d.add(p, "sluice", append([]string{"up", "--data", p.Data, "--http", api.HTTP, "--ops", api.Ops, "--nats", nats.Address, "--clickhouse", d.Native,
		"--clickhouse-http", d.HTTP, "--console", p.HTTP, "--elasticsearch=" + p.Elastic}, options...)...)
}

// AddAPI starts another api, without a link, and waits until all processes are ready.
func (d *Deployment) AddAPI(ctx context.Context) (*Process, error) {
	p, err := d.addAPI()
	return p, errors.Join(err, d.Start(ctx))
}

func (d *Deployment) AddIngester(ctx context.Context) (*Process, error) {
	return d.AddIngesterTo(ctx, d.Native, "flow")
}

// AddIngesterTo is AddIngester for another engine address and database.
func (d *Deployment) AddIngesterTo(ctx context.Context, native, database string, options ...string) (*Process, error) {
	p, err := d.addIngester(native, database, options...)
	return p, errors.Join(err, d.Start(ctx))
}

// AddConsole starts the console and waits until all processes are ready.
func (d *Deployment) AddConsole(ctx context.Context, options ...string) (*Process, error) {
	return d.addConsole(options...), d.Start(ctx)
}

func (d *Deployment) Remove(p *Process) error {
	d.Processes = slices.DeleteFunc(d.Processes, func(other *Process) bool { return other == p })
	return p.Stop()
}

// Process returns the process with a name; nil when missing.
func (d *Deployment) Process(name string) *Process {
	for _, p := range d.Processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (d *Deployment) Of(kind string) []*Process {
	var all []*Process
	for _, p := range d.Processes {
		if p.Kind == kind {
			all = append(all, p)
		}
	}
	return all
}

func (d *Deployment) ClickHouse() string { return "clickhouse://default@" + d.Native + "/flow" }

// Start starts every stopped process, and waits until all are ready.
func (d *Deployment) Start(ctx context.Context) error {
	for _, p := range d.Processes {
		if err := p.Start(); err != nil {
			return err
		}
	}
	if err := d.WaitReady(ctx); err != nil {
		return err
	}
	if !d.Up {
		return nil
	}
	token, err := os.ReadFile(d.path("data/token"))
	d.Token = strings.TrimSpace(string(token))
	return err
}

// Stop stops every process in reverse order, and closes the links. The error names
// processes that had to be killed.
func (d *Deployment) Stop() (all error) {
	for _, p := range slices.Backward(d.Processes) {
		all = errors.Join(all, p.Stop())
	}
	d.Close()
	return all
}

// Close kills running processes and closes the links. The folder is kept.
func (d *Deployment) Close() {
	for _, p := range slices.Backward(d.Processes) {
		p.Kill()
	}
	for _, l := range d.Links {
		l.Close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nc != nil {
		d.nc.Close()
		d.nc = nil
	}
}

// EndWith closes the deployment at the end of a test. A failed test prints the end of every
// log.
func (d *Deployment) EndWith(t testing.TB) {
	t.Cleanup(func() {
		d.Close()
		for _, p := range d.Processes {
			p.ShowIfFailed(t)
		}
	})
}
