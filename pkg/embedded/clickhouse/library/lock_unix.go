//go:build unix

package library

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// waitForFolder is how long a new engine waits for the one before it, which may
// be dying just now, to let go of the data folder.
const waitForFolder = 5 * time.Second

// LockFolder takes the data folder for this process. The system lets go of it
// when the process ends, however it ends.
func LockFolder(ctx context.Context, folder string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(folder, "engine.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the engine's data folder: %w", err)
	}
	deadline := time.Now().Add(waitForFolder)
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("the ClickHouse data folder %s is in use by another engine: %w", folder, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
