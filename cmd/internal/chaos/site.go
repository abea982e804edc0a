package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/programtest"
)

// site is a deployment under load and faults.
type site struct {
	*deployment.Deployment
	cfg     Config
	journal *journal
	holds   holds
	disks   map[string]*disk   // by process; none without SmallDisk
	ledgers map[string]*ledger // by source
	healed  chan struct{}      // closed after the last fault
}

// crashed restarts a process that exited unexpectedly, as a supervisor does.
func (s *site) crashed(p *programtest.Process, state string) {
	s.journal.count(crash)
	s.journal.note("%s exited unexpectedly: %s", p.Name, state)
	time.Sleep(time.Second)
	s.start(p)
}

// holds are the locks of faults, shared or exclusive, by name.
type holds struct {
	mu    sync.Mutex
	names map[string]*sync.RWMutex
}

func (h *holds) of(name string) *sync.RWMutex {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil {
		h.names = map[string]*sync.RWMutex{}
	}
	if h.names[name] == nil {
		h.names[name] = new(sync.RWMutex)
	}
	return h.names[name]
}

// take returns false if another fault holds one of the shared names exclusively. It waits
// for the names in alone.
func (h *holds) take(share, alone []string) (release func(), ok bool) {
	var undo []func()
	release = func() {
		for _, f := range undo {
			f()
		}
	}
	for _, name := range share {
		if !h.of(name).TryRLock() {
			release()
			return nil, false
		}
		undo = append(undo, h.of(name).RUnlock)
	}
	for _, name := range slices.Sorted(slices.Values(alone)) { // one order for all, so that no two deadlock
		h.of(name).Lock()
		undo = append(undo, h.of(name).Unlock)
	}
	return release, true
}

// journal logs events with their time, and counts them.
type journal struct {
	began time.Time

	mu     sync.Mutex
	out    io.Writer
	counts counts
}

// counts are numbers of faults by kind, and of crashes and unclean stops.
type counts map[string]int

const (
	crash   = "crash"   // a process exited unexpectedly
	unclean = "unclean" // a process was late to stop, or exited with a status other than 0
)

func (c counts) String() string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("%s=%d", kind, c[kind]))
	}
	return strings.Join(all, " ")
}

func newJournal(out io.Writer) *journal {
	return &journal{began: time.Now(), out: out, counts: counts{crash: 0, unclean: 0}}
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	elapsed := time.Since(j.began).Round(time.Millisecond)
	fmt.Fprintf(j.out, "%10v  %s\n", elapsed, fmt.Sprintf(format, args...))
}

func (j *journal) count(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[kind]++
}

// expect adds a kind with 0, so that the report lists kinds that never occur.
func (j *journal) expect(kind string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts[kind] += 0
}

func (j *journal) sum() counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.counts)
}

// disk is a tmpfs that can be shrunk.
type disk struct{ path string }

// roomy is the normal size of a disk; only written data takes memory.
const roomy = "6g"

// mount mounts disks for the first NATS server and the engine.
func (s *site) mount() error {
	for _, name := range []string{deployment.NATS, deployment.Engine} {
		d := &disk{s.Process(name).Data}
		if err := os.MkdirAll(d.path, 0o700); err != nil {
			return err
		}
		if err := run("mount", "-t", "tmpfs", "-o", "size="+roomy, "sluice-chaos", d.path); err != nil {
			return fmt.Errorf("mount a small disk: %w: run as root, or omit --small-disk", err)
		}
		s.disks[name] = d
	}
	return nil
}

// fill shrinks the disk to its used size.
func (d *disk) fill() error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(d.path, &stat); err != nil {
		return err
	}
	used := (stat.Blocks - stat.Bfree) * uint64(stat.Bsize)
	return d.resize(fmt.Sprint(used + 256<<10)) // margin for concurrent writes
}

func (d *disk) empty() error { return d.resize(roomy) }

func (d *disk) resize(size string) error {
	return run("mount", "-o", "remount,size="+size, d.path)
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// close stops all processes and unmounts the disks. The folder is kept.
func (s *site) close() {
	s.Close()
	for _, l := range s.ledgers {
		l.close()
	}
	for _, d := range s.disks {
		if err := run("umount", d.path); err != nil {
			s.journal.note("%v", err)
		}
	}
}
