//go:build unix

package nats

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock keeps a second server off the folder: two would destroy the store, and the server
// does not check. The kernel releases it when the process ends.
func lock(folder string) (*os.File, error) {
	name := filepath.Join(folder, "sluice.lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("NATS data folder is not writable: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("NATS data folder %s is in use by another process", folder)
	} else if err != nil {
		err = fmt.Errorf("lock %s: %w", name, err)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
