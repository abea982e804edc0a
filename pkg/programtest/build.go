package programtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sluice/pkg/embedded/clickhouse/library"
)

// plain is the build flags of go test, so that tests and the programs they run share every
// package: released ones are compiled three times, twice for their profiles.
var plain = []string{"-pgo=off", "-ldflags=-w -X sluice/cmd/internal/run.version=" + Version + " -X sluice/cmd/internal/run.commit=" + Commit}

// Version and Commit are reported by programs of BuildPlain.
const (
	Version = "v9.9.9"
	Commit  = "c0ffee"
)

var programs = []string{"sluice/cmd/api", "sluice/cmd/ingester", "sluice/cmd/sluice"}

// Build builds the programs and links the engine into the folder bin, like make build: for
// measurements and long trials.
func Build(ctx context.Context, bin string) error {
	return BuildWith(ctx, bin, "released", "-trimpath")
}

// BuildPlain is Build for functional tests, in a fraction of the time.
func BuildPlain(ctx context.Context, bin string) error {
	return BuildWith(ctx, bin, "plain", plain...)
}

// BuildWith is Build with other flags, cached under name.
func BuildWith(ctx context.Context, bin, name string, flags ...string) error {
	file, err := library.Fetched()
	if err != nil {
		return err
	}
	if err := build(ctx, name, flags, bin, programs...); err != nil {
		return err
	}
	return put(file, filepath.Join(bin, filepath.Base(file)), os.Symlink)
}

// BuildNATS builds the official nats-server, of the version in go.mod, into the folder bin.
func BuildNATS(ctx context.Context, bin string) error {
	return build(ctx, "plain", plain, bin, "github.com/nats-io/nats-server/v2")
}

// build compiles programs into a shared folder of the checkout, unless up to date, and links
// them into bin. The first package of tests compiles and links; the others wait for it.
func build(ctx context.Context, name string, flags []string, bin string, packages ...string) error {
	said, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sluice").Output() // also from a nested module
	if err != nil {
		return fmt.Errorf("look for the checkout: %w", err)
	}
	root := strings.TrimSpace(string(said))
	built := filepath.Join(root, ".cache", "programs", name)
	if err := errors.Join(os.MkdirAll(built, 0o755), os.MkdirAll(bin, 0o755)); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(built, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // also unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	compile := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-buildvcs=false", "-o", built + "/"}, flags, packages)...)
	compile.Dir = root
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	for _, program := range packages {
		program = strings.TrimSuffix(program, "/v2")
		program = program[strings.LastIndexByte(program, '/')+1:]
		if err := put(filepath.Join(built, program), filepath.Join(bin, program), os.Link); err != nil {
			return err
		}
	}
	return nil
}

// put replaces a file by a link, or on another disk by a copy.
func put(file, at string, link func(string, string) error) error {
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if link(file, at) == nil {
		return nil
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
