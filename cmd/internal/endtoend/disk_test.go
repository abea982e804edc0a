package endtoend

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// disk is a separate file system under a folder. It can be resized while in use.
type disk struct {
	t    *testing.T
	path string
}

func newDisk(t *testing.T, path string) *disk {
	t.Helper()
	fatal.If(t, os.MkdirAll(path, 0o700))
	if err := syscall.Mount("sluice-test", path, "tmpfs", 0, "size=8g"); err != nil {
		t.Fatalf("mount a small file system: %v: run as root, or with unshare --map-root-user --mount", err)
	}
	d := &disk{t, path}
	t.Cleanup(func() {
		expect.NoError(t, syscall.Unmount(path, syscall.MNT_DETACH))
	})
	return d
}

// leave resizes the disk to this number of free bytes.
func (d *disk) leave(free uint64) {
	d.t.Helper()
	var stat syscall.Statfs_t
	fatal.If(d.t, syscall.Statfs(d.path, &stat))
	used := (stat.Blocks - stat.Bfree) * uint64(stat.Bsize)
	fatal.If(d.t, syscall.Mount("", d.path, "", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", used+free)))
}

// TestAFullDiskOfClickHouseKeepsEverything: records wait in the stream until there is
// space.
func TestAFullDiskOfClickHouseKeepsEverything(t *testing.T) {
	s := newStack(t)
	d := newDisk(t, filepath.Join(s.data, "clickhouse"))
	s.apart()
	s.load("--records", "2000", "--seed", "1")
	s.stored(2000)

	d.leave(64 << 10)
	s.load("--records", "20000", "--seed", "2")
	eventually(t, 30*time.Second, func() error {
		if status, page := s.page(s.ingesterOps, "/readyz"); status == http.StatusOK {
			return fmt.Errorf("the ingester is ready: %s", page)
		}
		return nil
	})
	s.noDeadLetters()
	d.leave(1 << 30)
	s.stored(22000)
	s.noDeadLetters()
}
