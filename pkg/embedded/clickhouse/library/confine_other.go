//go:build !linux

package library

import (
	"context"
	"log/slog"
)

// Confine does nothing: only Linux has Landlock.
func Confine(_ context.Context, _, _ string, _ any, log *slog.Logger) error {
	log.Warn("clickhouse: this system cannot confine the engine to its data folder: it needs Landlock (Linux 5.19)")
	return nil
}

// Inherit returns false: no process is confined.
func Inherit(any) (confined bool, err error) { return false, nil }

// Confined is false: no process is confined.
func Confined() bool { return false }
