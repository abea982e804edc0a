package library_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// envConfine makes the test binary a process that confines itself to the data folder of its
// Config, and tries to escape.
const envConfine = "CLICKHOUSE_TEST_CONFINE"

// attempts are the actions of a confined process, by name.
func attempts(data, outside, address string) map[string]func() error {
	return map[string]func() error{
		"inside: write":  func() error { return os.WriteFile(filepath.Join(data, "a"), []byte("a"), 0o600) },
		"inside: make":   func() error { return os.Mkdir(filepath.Join(data, "folder"), 0o700) },
		"inside: move":   func() error { return os.Rename(filepath.Join(data, "a"), filepath.Join(data, "folder", "b")) },
		"inside: link":   func() error { return os.Symlink("folder", filepath.Join(data, "link")) },
		"inside: remove": func() error { return os.RemoveAll(filepath.Join(data, "folder")) },
		"outside: read":  func() error { _, err := os.ReadFile(outside); return err },
		"outside: by a link": func() error {
			os.Symlink(outside, filepath.Join(data, "out"))
			_, err := os.ReadFile(filepath.Join(data, "out"))
			return err
		},
		"outside: list":      func() error { _, err := os.ReadDir(filepath.Dir(outside)); return err },
		"outside: write":     func() error { return os.WriteFile(outside+".new", nil, 0o600) },
		"outside: remove":    func() error { return os.Remove(outside) },
		"outside: passwords": func() error { _, err := os.ReadFile("/etc/passwd"); return err },
		"outside: environ":   func() error { _, err := os.ReadFile("/proc/self/environ"); return err },
		"outside: a program": func() error { return exec.Command("/bin/sh", "-c", "exit 0").Run() },
		"outside: an address": func() error {
			c, err := net.Dial("tcp", address)
			if err == nil {
				c.Close()
			}
			return err
		},
		"outside: the parent": func() error { return unix.Kill(os.Getppid(), 0) },
	}
}

func confined(config string) {
	var cfg server.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		panic(err)
	}
	var kept string
	confined, err := library.Inherit(&kept)
	if err == nil && !confined {
		err = library.Confine(context.Background(), cfg.Data, cfg.Library, "kept", slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	if err != nil || kept != "kept" {
		panic(fmt.Sprintf("kept %q: %v", kept, err))
	}
	all := attempts(cfg.Data, cfg.Listen, cfg.HTTP) // in order: later ones depend on earlier ones
	for _, name := range []string{"inside: write", "inside: make", "inside: move", "inside: link", "inside: remove"} {
		fmt.Printf("%s: %v\n", name, all[name]())
		delete(all, name)
	}
	for name, try := range all {
		fmt.Printf("%s: %v\n", name, try())
	}
}

// TestConfinedProcessStaysInItsFolder needs a kernel with Landlock, as on every build machine.
func TestConfinedProcessStaysInItsFolder(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	fatal.If(t, os.WriteFile(outside, []byte("outside"), 0o600))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer listener.Close()
	file, err := library.Fetched()
	fatal.If(t, err)
	config, err := json.Marshal(server.Config{Library: file, Data: t.TempDir(), Listen: outside, HTTP: listener.Addr().String(), User: "default"})
	fatal.If(t, err)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), envConfine+"="+string(config))
	out, err := child.Output()
	fatal.When(t, err != nil, "%v\n%s", err, out)
	tried := 0
	for line := range strings.Lines(string(out)) {
		name, result, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		allowed := strings.HasSuffix(result, "<nil>")
		expect.Not(t, allowed != (name == "inside"), "%s", line)
		tried++
	}
	if want := len(attempts("", "", "")); tried != want {
		t.Errorf("%d attempts were made, want %d:\n%s", tried, want, out)
	}
}

func TestEngineIsConfined(t *testing.T) {
	status := func(pid int) string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		fatal.If(t, err)
		return string(text)
	}
	if got := status(clickhousetest.Shared(t).PID()); !strings.Contains(got, "NoNewPrivs:\t1\n") {
		t.Errorf("the engine's process is not confined:\n%s", got)
	}
	free := clickhousetest.Start(t, func(cfg *server.Config) { cfg.AllowFiles = true })
	if got := status(free.PID()); !strings.Contains(got, "NoNewPrivs:\t0\n") {
		t.Errorf("with AllowFiles the process is confined:\n%s", got)
	}
}
