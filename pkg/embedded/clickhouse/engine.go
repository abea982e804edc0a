package clickhouse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// base are the settings every engine connection starts with: what a server has
// by default where the library differs from one.
var base = map[string]string{
	"async_insert":    "0", // the library has no queue for them; from 26.2 on it is the default
	"implicit_select": "0", // `1 + 1` is a syntax error in a server
}

// marker is the setting by whose value the statements of a connection are found
// in system.processes, since the library gives query ids of its own. It means
// something only where there are clusters; log_comment is left to people.
const marker = "cluster_for_parallel_replicas"

// engine is the one engine of this process.
type engine struct {
	lib      *library
	args     []string
	slots    chan struct{} // one token per statement that runs
	kept     chan struct{} // further ones, for the ingester alone
	ids      atomic.Uint64
	running  running
	version  string          // of ClickHouse, as version() says
	timezone string          // of the engine
	settings map[string]bool // the names of all settings, aliases included

	allowFiles bool              // statements may leave the database
	limits     map[string]string // settings of the analyst, which are the most he may have

	control   *conn // runs KILL QUERY for the others
	controlMu sync.Mutex
}

// openEngine loads the library and opens the data folder.
func openEngine(cfg Config) (*engine, error) {
	lib, err := loadLibrary(cfg.Library)
	if err != nil {
		return nil, err
	}
	config, err := writeEngineConfig(cfg)
	if err != nil {
		return nil, err
	}
	e := &engine{
		lib: lib, args: []string{"--path=" + cfg.Data, "--config-file=" + config},
		slots: make(chan struct{}, cfg.Slots-cfg.Kept), kept: make(chan struct{}, cfg.Kept),
		allowFiles: cfg.AllowFiles, limits: cfg.Analyst.settings(),
	}
	for name, value := range base {
		e.args = append(e.args, "--"+name+"="+value)
	}
	if e.control, err = e.connect(); err != nil {
		return nil, fmt.Errorf("open the data folder %s: %w", cfg.Data, err)
	}
	if err := e.learn(); err != nil {
		e.control.disconnect()
		return nil, err
	}
	return e, nil
}

// learn asks the engine for what a server tells its clients.
func (e *engine) learn() error {
	var out []byte
	collect := func(chunk []byte) error { out = append(out, chunk...); return nil }
	const about = `SELECT version(), timezone(), (SELECT groupArray(name) FROM system.settings)`
	if _, err := e.control.run(context.Background(), about, "JSONCompactEachRow", collect); err != nil {
		return fmt.Errorf("ask the engine for its version: %w", err)
	}
	var names []string
	if err := json.Unmarshal(out, &[]any{&e.version, &e.timezone, &names}); err != nil {
		return fmt.Errorf("read the engine's version: %w", err)
	}
	e.settings = make(map[string]bool, len(names))
	for _, name := range names {
		e.settings[name] = true
	}
	return nil
}

// connect opens an engine connection, which costs about 0.4 ms and 250 KiB. It
// may do whatever any role may, until a session takes one on. None is kept for
// another client: a session never sees what another one left behind.
func (e *engine) connect() (*conn, error) {
	id := "connection-" + strconv.FormatUint(e.ids.Add(1), 10)
	argv, keep := cStrings(append([]string{"clickhouse", "--" + marker + "=" + id}, e.args...))
	handle := e.lib.connect(int32(len(keep)), argv)
	runtime.KeepAlive(keep)
	if handle == nil {
		return nil, errors.New("the engine refused a connection; is the folder writable and in no other use?")
	}
	return &conn{engine: e, handle: handle, id: id}, nil
}

// slot waits for a place among the statements that may run at a time, at most
// wait. The place is taken until release.
func (e *engine) slot(ctx context.Context, as role, wait time.Duration) (release func(), err error) {
	kept := e.kept
	if as != roleIngester {
		kept = nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case kept <- struct{}{}:
		return func() { <-kept }, nil
	case e.slots <- struct{}{}:
		return func() { <-e.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-timer.C:
		return nil, exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many simultaneous queries. Maximum: %d", cap(e.slots)+cap(e.kept))
	}
}

// kill ends the statement that runs on the connection with this id, if one does.
// Only ids of connect are passed, which need no quoting.
func (e *engine) kill(id string) error {
	e.controlMu.Lock()
	defer e.controlMu.Unlock()
	_, err := e.control.run(context.Background(), "KILL QUERY WHERE Settings['"+marker+"'] = '"+id+"' ASYNC", "Null", nil)
	return err
}

// idle waits until the last statement has ended. None begins after it.
func (e *engine) idle() {
	for range cap(e.slots) {
		e.slots <- struct{}{}
	}
	for range cap(e.kept) {
		e.kept <- struct{}{}
	}
}

// close closes the engine. Nothing may run on it any more.
func (e *engine) close() {
	e.control.disconnect()
	e.lib.shutdown() // Joins the engine's threads. Its data is on disk either way.
}

// cStrings lays strings out as a C argv. The second result keeps them alive.
func cStrings(values []string) (**byte, []*byte) {
	argv := make([]*byte, 0, len(values)+1)
	for _, value := range values {
		text := append([]byte(strings.ReplaceAll(value, "\x00", "")), 0)
		argv = append(argv, &text[0])
	}
	argv = append(argv, nil)
	return &argv[0], argv[:len(values)]
}
