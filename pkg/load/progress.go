package load

import (
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// bar shows on a terminal how far a run is; on anything else it shows nothing.
type bar struct {
	shown *progressbar.ProgressBar // nil when nothing is shown
	cfg   Config
}

func newBar(cfg Config) *bar {
	if !isTerminal(cfg.Progress) {
		return &bar{}
	}
	return &bar{cfg: cfg, shown: drawnBar(cfg)}
}

// drawnBar counts records, or tenths of a second when there is no last record.
func drawnBar(cfg Config) *progressbar.ProgressBar {
	most := cfg.Records
	if most == math.MaxInt64 {
		most = int64(cfg.Duration / (100 * time.Millisecond))
	}
	return progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(cfg.Progress),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(),
	)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}

// run draws until done is closed, then clears the line.
func (b *bar) run(done <-chan struct{}, t *tally) {
	if b.shown == nil {
		return
	}
	began := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			b.shown.Finish() // a terminal that is gone is no reason to fail
			return
		case <-tick.C:
			b.draw(t, time.Since(began))
		}
	}
}

func (b *bar) draw(t *tally, elapsed time.Duration) {
	records, bytes := t.progress()
	seconds := elapsed.Seconds()
	b.shown.Describe(fmt.Sprintf("%.0f rec/s, %.1f MB/s", float64(records)/seconds, float64(bytes)/seconds/1e6))
	if b.cfg.Records == math.MaxInt64 {
		records = int64(elapsed / (100 * time.Millisecond))
	}
	b.shown.Set64(min(records, b.shown.GetMax64())) // as above
}
