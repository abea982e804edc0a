package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"

	"sluice/cmd/internal/run"
)

// moment is a time on the command line: 2026-01-31T12:00:00Z, or how long ago
// it was, such as 90m. The zero value is none.
type moment struct {
	at  time.Time
	ago time.Duration // instead of at
}

func (m *moment) UnmarshalText(text []byte) error {
	if ago, err := time.ParseDuration(string(text)); err == nil && ago >= 0 {
		m.ago = max(ago, 1)
		return nil
	}
	at, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return fmt.Errorf("%q is no time: say 90m for as long ago, or 2026-01-31T12:00:00Z", text)
	}
	m.at = at
	return nil
}

// by is the moment by the clock that what it is compared with was stamped by,
// which may not be that of this machine.
func (m moment) by(ctx context.Context, now func(context.Context) (time.Time, error)) (time.Time, error) {
	if m.ago == 0 {
		return m.at, nil
	}
	t, err := now(ctx)
	return t.Add(-m.ago), err
}

// newBar shows on a terminal how far a command is, and nothing elsewhere.
func newBar(most int64, doing string) *progressbar.ProgressBar {
	return progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(run.IsTerminal(os.Stderr)),
		progressbar.OptionSetDescription(doing),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}
