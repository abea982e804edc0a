package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/cmd/internal/deployment"
)

// unknown replaces values that the system does not provide.
const unknown = "unknown"

type Machine struct {
	CPU        string
	Cores      int
	Memory     string
	Kernel     string
	FileSystem string // of the data
	Sync       time.Duration
	Load       string // load averages of 1, 5 and 15 minutes, before
}

// Versions are those of the measured programs.
type Versions struct {
	Commit, Go, NATS, Engine string
}

// describeMachine describes the machine, and the file system of dir.
func describeMachine(ctx context.Context, dir string) (Machine, error) {
	m := Machine{
		CPU: after("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: memory(),
		Kernel: runtime.GOOS + " " + content("/proc/sys/kernel/osrelease"), FileSystem: fileSystem(dir), Load: unknown,
	}
	if means := strings.Fields(content("/proc/loadavg")); len(means) > 3 {
		m.Load = strings.Join(means[:3], ", ")
	}
	var err error
	m.Sync, err = syncTime(ctx, dir)
	return m, err
}

// syncTime returns the median time to append 4 KiB to a file and fsync it.
func syncTime(ctx context.Context, dir string) (time.Duration, error) {
	file, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var took []time.Duration
	for range 101 {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		began := time.Now()
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := file.Sync(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// content returns the text of a file of one line.
func content(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(text))
}

// after returns the text after a name and a colon, in the first such line.
func after(file, name string) string {
	for line := range strings.Lines(content(file)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

func memory() string {
	var kib int64
	if _, err := fmt.Sscanf(after("/proc/meminfo", "MemTotal"), "%d kB", &kib); err != nil {
		return unknown
	}
	return fmt.Sprintf("%.1f GiB", float64(kib)/(1<<20))
}

func fileSystem(dir string) string {
	kind, longest := unknown, -1
	for line := range strings.Lines(content("/proc/self/mounts")) {
		fields := strings.Fields(line) // device, mount point, kind, options
		if len(fields) < 4 || len(fields[1]) <= longest {
			continue
		}
		if inside, err := filepath.Rel(fields[1], dir); err == nil && inside != ".." && !strings.HasPrefix(inside, "../") {
			kind, longest = fields[2], len(fields[1])
		}
	}
	return kind
}

func (v *Versions) ask(ctx context.Context, d *deployment.Deployment) error {
	nc, err := nats.Connect(d.NATSURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	v.NATS, v.Go, v.Commit = nc.ConnectedServerVersion(), runtime.Version(), commit(ctx)
	v.Engine, err = d.Query(ctx, "SELECT version()")
	return err
}

// commit returns the commit of the sources, and whether they are modified.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=, with changes that are not committed").Output()
	if err != nil {
		return unknown
	}
	return strings.TrimSpace(string(out))
}
