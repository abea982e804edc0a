package main

import (
	"os"

	"github.com/schollz/progressbar/v3"

	"sluice/cmd/internal/run"
)

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
