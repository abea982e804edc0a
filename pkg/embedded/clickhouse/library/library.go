package library

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// Version is the version of the npm packages @chdb/lib-<platform> for this package:
// ClickHouse 26.7 as a shared library.
const Version = "26.7.3-stable.1"

// EnvLibrary is the environment variable with the path of the engine.
const EnvLibrary = "SLUICE_CLICKHOUSE_LIBRARY"

const libraryName = "libchdb.so" // on macOS too

// platforms are the npm names of supported platforms.
var platforms = map[string]string{
	"linux/amd64":  "linux-x64-gnu",
	"linux/arm64":  "linux-arm64-gnu",
	"darwin/amd64": "darwin-x64",
	"darwin/arm64": "darwin-arm64",
}

// Locate finds the engine's library: at the given path, else at $SLUICE_CLICKHOUSE_LIBRARY,
// else next to the program, where `make build` links it. It searches nowhere else: a
// library is code, and a parent of the working folder may belong to another user.
func Locate(explicit string) (string, error) {
	if explicit == "" {
		explicit = os.Getenv(EnvLibrary)
	}
	if explicit != "" {
		if err := isFile(explicit); err != nil {
			return "", fmt.Errorf("the ClickHouse engine is not at %s: %w", explicit, err)
		}
		return filepath.Abs(explicit)
	}
	platform, err := platform()
	if err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return "", fmt.Errorf("find the folder of the program: %w", err)
	}
	library := filepath.Join(filepath.Dir(program), libraryName)
	if err := isFile(library); err != nil {
		return "", fmt.Errorf("the ClickHouse engine (@chdb/lib-%s %s) is not next to the program: run `make build` and use bin/sluice, or set the path of its %s by --clickhouse-library or %s: %w",
			platform, Version, libraryName, EnvLibrary, err)
	}
	return library, nil
}

// Fetched finds the library that `make engine` fetched for the checkout of the working
// folder. It is for tests and tools of that checkout; programs use Locate.
func Fetched() (string, error) {
	if explicit := os.Getenv(EnvLibrary); explicit != "" {
		return Locate(explicit)
	}
	platform, err := platform()
	if err != nil {
		return "", err
	}
	root, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for !isProject(root) {
		if root == filepath.Dir(root) {
			return "", errors.New("the working folder is not in a checkout of the project")
		}
		root = filepath.Dir(root)
	}
	library := filepath.Join(root, ".cache", "clickhouse", "node_modules", "@chdb", "lib-"+platform, libraryName)
	if err := isFile(library); err != nil {
		return "", fmt.Errorf("the ClickHouse engine (@chdb/lib-%s %s) is not installed: run `make engine`: %w", platform, Version, err)
	}
	return library, nil
}

// isProject reports whether the folder has the main module, not a nested one.
func isProject(folder string) bool {
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	return err == nil && bytes.HasPrefix(mod, []byte("module sluice\n"))
}

// platform is the npm name of this program's platform.
func platform() (string, error) {
	name, ok := platforms[runtime.GOOS+"/"+runtime.GOARCH]
	if !ok {
		return "", fmt.Errorf("no embedded ClickHouse engine for %s/%s, only for Linux and macOS on x64 and arm64: "+
			"use a ClickHouse server instead", runtime.GOOS, runtime.GOARCH)
	}
	return name, nil
}

func isFile(path string) error {
	stat, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !stat.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	return nil
}

// functions is the used part of the engine's C API (chdb.h). Texts have explicit lengths,
// destroyResult frees results, and every call except kill blocks its thread until the
// engine is done.
type functions struct {
	setSignalHandlers func(enabled int32)
	connect           func(argc int32, argv **byte) *uintptr
	closeConn         func(conn *uintptr)
	shutdown          func() int32

	query        func(conn uintptr, sql *byte, size uintptr, format *byte, formatSize uintptr) uintptr
	streamQuery  func(conn uintptr, sql *byte, size uintptr, format *byte, formatSize uintptr) uintptr
	streamFetch  func(conn, result uintptr) uintptr
	streamCancel func(conn, result uintptr)

	classify func(conn uintptr, sql *byte, size uintptr, database *byte, databaseSize uintptr, into *Analysis) int32

	insert       func(conn uintptr, sql *byte, size uintptr, format *byte, formatSize uintptr) uintptr
	insertAppend func(stream uintptr, data *byte, size uintptr) int32
	insertDone   func(stream uintptr) uintptr
	insertCancel func(stream uintptr)
	insertError  func(stream uintptr) string
	insertFree   func(stream uintptr)

	resultBuffer  func(result uintptr) *byte
	resultLength  func(result uintptr) uintptr
	resultError   func(result uintptr) string
	rowsRead      func(result uintptr) uint64 // rows of the result
	bytesRead     func(result uintptr) uint64
	storageRows   func(result uintptr) uint64 // rows read from tables
	storageBytes  func(result uintptr) uint64
	rowsWritten   func(result uintptr) uint64
	bytesWritten  func(result uintptr) uint64
	destroyResult func(result uintptr)
}

// load loads the engine into this process. It cannot be unloaded.
func load(path string) (lib *functions, err error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load the ClickHouse engine %s (on Linux it needs glibc): %w", path, err)
	}
	defer func() { // RegisterLibFunc panics on a missing symbol.
		if missing := recover(); missing != nil {
			lib, err = nil, fmt.Errorf("the ClickHouse engine %s is not version %s: %v", path, Version, missing)
		}
	}()
	lib = new(functions)
	for name, function := range map[string]any{
		"chdb_set_signal_handlers_enabled": &lib.setSignalHandlers,
		"chdb_connect":                     &lib.connect,
		"chdb_close_conn":                  &lib.closeConn,
		"chdb_shutdown":                    &lib.shutdown,
		"chdb_query_n":                     &lib.query,
		"chdb_stream_query_n":              &lib.streamQuery,
		"chdb_stream_fetch_result":         &lib.streamFetch,
		"chdb_stream_cancel_query":         &lib.streamCancel,
		"chdb_classify_query_n":            &lib.classify,
		"chdb_stream_insert_n":             &lib.insert,
		"chdb_stream_append":               &lib.insertAppend,
		"chdb_stream_done":                 &lib.insertDone,
		"chdb_stream_cancel_insert":        &lib.insertCancel,
		"chdb_stream_insert_error":         &lib.insertError,
		"chdb_destroy_insert_stream":       &lib.insertFree,
		"chdb_result_buffer":               &lib.resultBuffer,
		"chdb_result_length":               &lib.resultLength,
		"chdb_result_error":                &lib.resultError,
		"chdb_result_rows_read":            &lib.rowsRead,
		"chdb_result_bytes_read":           &lib.bytesRead,
		"chdb_result_storage_rows_read":    &lib.storageRows,
		"chdb_result_storage_bytes_read":   &lib.storageBytes,
		"chdb_result_rows_written":         &lib.rowsWritten,
		"chdb_result_bytes_written":        &lib.bytesWritten,
		"chdb_destroy_query_result":        &lib.destroyResult,
	} {
		purego.RegisterLibFunc(function, handle, name)
	}
	lib.setSignalHandlers(0) // Go handles signals; must precede the first connection
	return lib, nil
}
