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

// Base are the settings of every engine connection: a server's defaults where the library
// differs.
var Base = map[string]string{
	"async_insert":    "0", // the library has no queue for them; default since 26.2
	"implicit_select": "0", // `1 + 1` is a syntax error in a server

	// LLVM took 0.8 s of CPU in the fourth insert after a start and 0.1 to 0.3 s for each new kind
	// of question, and saved up to a tenth of one over a million records, nothing of an insert.
	"compile_expressions": "0", "compile_aggregate_expressions": "0", "compile_sort_description": "0",
}

// Marker is a setting whose value identifies the statements of a connection in
// system.processes, since the library assigns its own query ids. It has an effect only in
// clusters; log_comment is left to users.
const Marker = "cluster_for_parallel_replicas"

// Engine is the engine of this process, one at most.
type Engine struct {
	Version  string          // of ClickHouse: version()
	Timezone string          // of the engine
	Settings map[string]bool // names of all settings and aliases

	lib  *functions
	args []string
	ids  atomic.Uint64

	control   *Conn // runs KILL QUERY
	controlMu sync.Mutex
}

// Open loads the library and opens the data folder with a configuration file. It works once
// per process: the library cannot restart.
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

// learn reads the properties that a server sends to its clients.
func (e *Engine) learn() error {
	var out []byte
	collect := func(chunk []byte) error { out = append(out, chunk...); return nil }
	const about = `SELECT version(), timezone(), (SELECT groupArray(name) FROM system.settings)`
	if _, err := e.control.Run(context.Background(), about, "JSONCompactEachRow", collect); err != nil {
		return fmt.Errorf("query the engine's version: %w", err)
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

// Connect opens an engine connection, in about 0.4 ms and 250 KiB. It has all rights until
// a session sets its user. Connections are not reused, so that no state passes between
// clients.
func (e *Engine) Connect() (*Conn, error) {
	id := "connection-" + strconv.FormatUint(e.ids.Add(1), 10)
	argv, keep := cStrings(append([]string{"clickhouse", "--" + Marker + "=" + id}, e.args...))
	handle := e.lib.connect(int32(len(keep)), argv)
	runtime.KeepAlive(keep)
	if handle == nil {
		return nil, errors.New("the engine refused a connection: check that the folder is writable and not in use")
	}
	return &Conn{engine: e, handle: handle, ID: id}, nil
}

// Kill ends the statement of the connection with this id, if any. Ids of Connect need no
// quoting.
func (e *Engine) Kill(id string) error {
	e.controlMu.Lock()
	defer e.controlMu.Unlock()
	_, err := e.control.Run(context.Background(), "KILL QUERY WHERE Settings['"+Marker+"'] = '"+id+"' ASYNC", "Null", nil)
	return err
}

// Progress is the data read by a statement so far.
type Progress struct{ Rows, Bytes, Total uint64 }

// Progress returns that of the connection with this id; ok is false if no statement runs.
// It cannot be cancelled: KILL QUERY needs the same connection.
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

// Close closes the engine. No statement may run.
func (e *Engine) Close() {
	e.control.Disconnect()
	e.lib.shutdown() // joins the engine's threads; its data is already on disk
}

// cStrings converts strings to a C argv. The second result keeps them alive.
func cStrings(values []string) (**byte, []*byte) {
	argv := make([]*byte, 0, len(values)+1)
	for _, value := range values {
		text := append([]byte(strings.ReplaceAll(value, "\x00", "")), 0)
		argv = append(argv, &text[0])
	}
	argv = append(argv, nil)
	return &argv[0], argv[:len(values)]
}
