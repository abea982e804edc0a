package library_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
)

func TestLocate(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "libchdb.so")
	fatal.If(t, os.WriteFile(file, nil, 0o600))
	if got, err := library.Locate(file); err != nil || got != file {
		t.Errorf("given: %q, %v", got, err)
	}
	t.Setenv(library.EnvLibrary, file)
	if got, err := library.Locate(""); err != nil || got != file {
		t.Errorf("by environment: %q, %v", got, err)
	}
	if _, err := library.Locate(folder); err == nil {
		t.Error("a folder is accepted as the library")
	}
	t.Setenv(library.EnvLibrary, "")
	if got, err := library.Fetched(); err != nil || !strings.Contains(got, "@chdb") {
		t.Errorf("of this checkout: %q, %v", got, err)
	}
	t.Chdir(folder)
	if _, err := library.Fetched(); err == nil || !strings.Contains(err.Error(), "checkout") {
		t.Errorf("in no checkout: %v", err)
	}
}

// TestLocateTrustsNoFolderAbove: a user with write access to a parent folder, such as /tmp, must
// not get code into the program.
func TestLocateTrustsNoFolderAbove(t *testing.T) {
	t.Setenv(library.EnvLibrary, "")
	fetched, err := library.Fetched()
	fatal.If(t, err)
	_, below, _ := strings.Cut(fetched, string(filepath.Separator)+".cache")
	above := t.TempDir()
	planted := filepath.Join(above, ".cache", below)
	fatal.If(t, os.MkdirAll(filepath.Dir(planted), 0o755))
	fatal.If(t, os.WriteFile(planted, nil, 0o600))
	here := filepath.Join(above, "project", "folder")
	fatal.If(t, os.MkdirAll(here, 0o755))
	t.Chdir(here)
	if got, err := library.Locate(""); err == nil || !strings.Contains(err.Error(), "--clickhouse-library") {
		t.Errorf("found %q, %v; want nothing, and the remedy", got, err)
	}
}

func TestNotALibrary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libchdb.so")
	fatal.If(t, os.WriteFile(file, []byte("text"), 0o600))
	executable, env := clickhousetest.Command(t, server.Config{Library: file, Data: t.TempDir(), Listen: "127.0.0.1:0"})
	child := exec.Command(executable)
	child.Env = env
	if out, err := child.CombinedOutput(); err == nil || !strings.Contains(string(out), file) {
		t.Errorf("ended with %v:\n%s", err, out)
	}
}

// TestCodesAreThoseOfTheEngine queries the engine for the codes of the names that the front uses.
func TestCodesAreThoseOfTheEngine(t *testing.T) {
	known := map[string]string{}
	for line := range strings.Lines(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT errorCodeToName(number), number FROM numbers(2000)")) {
		name, code, _ := strings.Cut(strings.TrimSpace(line), "\t")
		known[name] = code
	}
	for name, code := range library.Codes() {
		if known[name] != fmt.Sprint(code) {
			t.Errorf("%s is %d here and %q in the engine", name, code, known[name])
		}
	}
}
