//go:build unix

package library_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/fatal"
)

// TestTheFolderIsTakenWhenTheEngineBeforeHasLetGoOfIt: a killed engine has released our lock, and
// not yet its own.
func TestTheFolderIsTakenWhenTheEngineBeforeHasLetGoOfIt(t *testing.T) {
	folder := t.TempDir()
	status, err := os.Create(filepath.Join(folder, "status"))
	fatal.If(t, err)
	fatal.If(t, syscall.Flock(int(status.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := library.LockFolder(ctx, folder); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the engine holds its own lock: %v, want that it is waited for", err)
	}
	status.Close()
	unlock, err := library.LockFolder(t.Context(), folder)
	fatal.If(t, err)
	unlock()
}
