//go:build unix

package library

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// waitForFolder is how long a new engine waits for a dying predecessor to release the data
// folder.
const waitForFolder = 5 * time.Second

// LockFolder locks the data folder for this process. The kernel releases it when the process
// ends.
func LockFolder(ctx context.Context, folder string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(folder, "engine.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the engine's data folder: %w", err)
	}
	deadline := time.Now().Add(waitForFolder)
	for {
		if err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = engineIsGone(folder)
		}
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("the ClickHouse data folder %s is in use by another process: %w", folder, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// engineIsGone returns EWOULDBLOCK while an engine holds its own lock. The files of a killed
// process are closed one after the other: our lock, taken earlier, before the engine's.
func engineIsGone(folder string) error {
	file, err := os.OpenFile(filepath.Join(folder, "status"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // also unlocks
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
