//go:build !linux

package library

import (
	"context"
	"log/slog"
)

// Confine would confine this process to the engine's data folder; only Linux has
// what it takes.
func Confine(_ context.Context, _, _ string, _ any, log *slog.Logger) error {
	log.Warn("clickhouse: this system cannot confine the process to its data folder (Landlock, Linux 5.19)")
	return nil
}

// Inherit would read what was kept for a confined process.
func Inherit(any) (confined bool, err error) { return false, nil }

// Confined tells whether this process was started again under Landlock.
func Confined() bool { return false }
