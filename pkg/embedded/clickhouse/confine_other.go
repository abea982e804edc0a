//go:build !linux

package clickhouse

import (
	"context"
	"log/slog"
)

// confine would confine this process to the engine's data folder; only Linux has
// what it takes.
func confine(_ context.Context, cfg Config, _ accounts, log *slog.Logger) error {
	if !cfg.AllowFiles {
		log.Warn("clickhouse: this system cannot confine the process to its data folder (Landlock, Linux 5.19)")
	}
	return nil
}

// inherited are the users that a confined process was handed.
func inherited() (accounts, bool, error) { return nil, false, nil }

// Confined tells whether this process was started again under Landlock.
func Confined() bool { return false }
