package endtoend

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// disk puts a file system of its own under a folder. Its size can be changed
// while it is used.
type disk struct {
	t    *testing.T
	path string
}

func newDisk(t *testing.T, path string) *disk {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("sluice-test", path, "tmpfs", 0, "size=8g"); err != nil {
		t.Fatalf("a full disk is tested on a file system that is mounted for it, which takes root (or: unshare --map-root-user --mount): %v", err)
	}
	d := &disk{t, path}
	t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return d
}

// leave makes the disk so large that so many bytes are free.
func (d *disk) leave(free uint64) {
	d.t.Helper()
	var stat syscall.Statfs_t
	if err := syscall.Statfs(d.path, &stat); err != nil {
		d.t.Fatal(err)
	}
	used := (stat.Blocks - stat.Bfree) * uint64(stat.Bsize)
	if err := syscall.Mount("", d.path, "", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", used+free)); err != nil {
		d.t.Fatal(err)
	}
}

// TestAFullDiskOfNATSRefusesAndResumes: nothing is acknowledged that is not on
// the disk, and everything that was is still there.
func TestAFullDiskOfNATSRefusesAndResumes(t *testing.T) {
	s := newStack(t)
	d := newDisk(t, filepath.Join(s.data, "nats"))
	s.apart()
	s.load("--records", "2000", "--seed", "1")
	s.stored(2000)

	d.leave(1 * mib)
	accepted := 0
	eventually(t, 20*time.Second, func() error {
		body := hugeBody(uint64(1000+accepted), 10_000, 200_000)
		res, answer := s.post(body)
		if res.StatusCode == http.StatusOK {
			accepted += bytes.Count(body, []byte(`{"id"`))
			return fmt.Errorf("%d records are accepted", accepted)
		}
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			t.Fatalf("answered %s %s, want 503 with Retry-After", res.Status, answer)
		}
		return nil
	})
	if status, page := s.page(s.ops, "/readyz"); status == http.StatusOK {
		t.Errorf("/readyz of the api answers %d %s while nothing can be accepted", status, page)
	}
	d.leave(6 << 30)
	eventually(t, 30*time.Second, func() error { return wantOK(s.post([]byte(`{"id":"9-1"}`))) })
	s.load("--records", "2000", "--seed", "2")
	// What was answered 503 may be stored or not, whole or not at all.
	s.eventuallyQuery(60*time.Second, "SELECT uniqExactIf(id, NOT match(id, '^[0-9]{4,}-[0-9]+$')) >= 4001, count() = uniqExact(id), count() - "+
		strconv.Itoa(4001+accepted)+" IN (0, 19) FROM flow.records", "1\t1\t1")
	s.noDeadLetters()
}

// TestAFullDiskOfClickHouseKeepsEverything: records wait in the stream until
// there is room.
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
