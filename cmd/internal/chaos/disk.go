package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// disk is a file system in memory whose size can be taken away.
type disk struct{ path string }

// roomy is the size of a disk that is not full; only what is written takes
// memory.
const roomy = "6g"

// mount gives the first NATS server and the engine disks of their own.
func (s *stage) mount() error {
	for _, name := range []string{serviceNATS + "-1", serviceEngine} {
		d := &disk{path: s.data(name)}
		if err := os.MkdirAll(d.path, 0o700); err != nil {
			return err
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+roomy, "sluice-chaos", d.path).CombinedOutput(); err != nil {
			return fmt.Errorf("mount a small disk, which only root can: %w: %s", err, out)
		}
		s.disks[name] = d
	}
	return nil
}

// fill leaves no room beyond what is used already.
func (d *disk) fill() error {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(d.path, &stat); err != nil {
		return err
	}
	used := (stat.Blocks - stat.Bfree) * uint64(stat.Bsize)
	return d.resize(fmt.Sprint(used + 256<<10)) // what is written meanwhile must not make it fail
}

func (d *disk) empty() error { return d.resize(roomy) }

func (d *disk) resize(size string) error {
	if out, err := exec.Command("mount", "-o", "remount,size="+size, d.path).CombinedOutput(); err != nil {
		return fmt.Errorf("resize the disk %s: %w: %s", d.path, err, out)
	}
	return nil
}

func (d *disk) unmount() {
	if out, err := exec.Command("umount", d.path).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "unmount %s: %v: %s", d.path, err, out)
	}
}
