package library

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
)

// Base are the settings every engine connection starts with: what a server has
// by default where the library differs from one.
var Base = map[string]string{
	"async_insert":    "0", // the library has no queue for them; from 26.2 on it is the default
	"implicit_select": "0", // `1 + 1` is a syntax error in a server
}

// Marker is the setting by whose value the statements of a connection are found
// in system.processes, since the library gives query ids of its own. It means
// something only where there are clusters; log_comment is left to people.
const Marker = "cluster_for_parallel_replicas"

// Engine is the one engine of this process.
type Engine struct {
	Version  string          // of ClickHouse, as version() says
	Timezone string          // of the engine
	Settings map[string]bool // the names of all settings, aliases included

	lib  *functions
	args []string
	ids  atomic.Uint64

	control   *Conn // runs KILL QUERY for the others
	controlMu sync.Mutex
}

// Open loads the library and opens the data folder, with the configuration in a
// file. A process can do so once: the library does not start a second time.
func Open(library, data, config string) (*Engine, error) {
	lib, err := load(library)
	if err != nil {
		return nil, err
	}
	e := &Engine{lib: lib, args: []string{"--path=" + data, "--config-file=" + config}}
	for name, value := range Base {
		e.args = append(e.args, "--"+name+"="+value)
	}
	if e.control, err = e.Connect(); err != nil {
		return nil, fmt.Errorf("open the data folder %s: %w", data, err)
	}
	if err := e.learn(); err != nil {
		e.control.Disconnect()
		return nil, err
	}
	return e, nil
}

// learn asks the engine for what a server tells its clients.
func (e *Engine) learn() error {
	var out []byte
	collect := func(chunk []byte) error { out = append(out, chunk...); return nil }
	const about = `SELECT version(), timezone(), (SELECT groupArray(name) FROM system.settings)`
	if _, err := e.control.Run(context.Background(), about, "JSONCompactEachRow", collect); err != nil {
		return fmt.Errorf("ask the engine for its version: %w", err)
	}
	var names []string
	if err := json.Unmarshal(out, &[]any{&e.Version, &e.Timezone, &names}); err != nil {
		return fmt.Errorf("read the engine's version: %w", err)
	}
	e.Settings = make(map[string]bool, len(names))
	for _, name := range names {
		e.Settings[name] = true
	}
	return nil
}

// Connect opens an engine connection, which costs about 0.4 ms and 250 KiB. It
// may do whatever any role may, until a session takes one on. None is kept for
// another client: a session never sees what another one left behind.
func (e *Engine) Connect() (*Conn, error) {
	id := "connection-" + strconv.FormatUint(e.ids.Add(1), 10)
	argv, keep := cStrings(append([]string{"clickhouse", "--" + Marker + "=" + id}, e.args...))
	handle := e.lib.connect(int32(len(keep)), argv)
	runtime.KeepAlive(keep)
	if handle == nil {
		return nil, errors.New("the engine refused a connection; is the folder writable and in no other use?")
	}
	return &Conn{engine: e, handle: handle, ID: id}, nil
}

// Kill ends the statement that runs on the connection with this id, if one does.
// Only ids of Connect are passed, which need no quoting.
func (e *Engine) Kill(id string) error {
	e.controlMu.Lock()
	defer e.controlMu.Unlock()
	_, err := e.control.Run(context.Background(), "KILL QUERY WHERE Settings['"+Marker+"'] = '"+id+"' ASYNC", "Null", nil)
	return err
}

// Progress is what a statement has read so far.
type Progress struct{ Rows, Bytes, Total uint64 }

// Progress asks for what runs on the connection with this id. ok is false when
// nothing does. It is not to be cancelled: what cancels is the same connection.
func (e *Engine) Progress(id string) (p Progress, ok bool) {
	e.controlMu.Lock()
	defer e.controlMu.Unlock()
	var out []byte
	_, err := e.control.Run(context.Background(), "SELECT read_rows, read_bytes, total_rows_approx FROM system.processes WHERE Settings['"+Marker+"'] = '"+id+"'",
		"TabSeparated", func(chunk []byte) error { out = append(out, chunk...); return nil })
	if err == nil {
		_, err = fmt.Sscan(string(out), &p.Rows, &p.Bytes, &p.Total)
	}
	return p, err == nil
}

// Close closes the engine. Nothing may run on it any more.
func (e *Engine) Close() {
	e.control.Disconnect()
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
