package load

import (
	"io"
	"time"
)

// Quantiles records durations and returns the quantiles at qs.
func Quantiles(durations []time.Duration, qs ...float64) []time.Duration {
	var h histogram
	for _, d := range durations {
		h.record(d)
	}
	var out []time.Duration
	for _, q := range qs {
		out = append(out, h.quantile(q))
	}
	return out
}

func RetryAfter(value string, now time.Time) time.Duration { return retryAfter(value, now) }

// DrawBar draws the progress of a run of most records as on a terminal.
func DrawBar(w io.Writer, total int64, acked Totals, elapsed time.Duration) {
	cfg := Config{Records: total, Progress: w}
	b := &bar{cfg: cfg, shown: drawnBar(cfg)}
	b.draw(&tally{ackedSum: acked}, elapsed)
}

// BlockConfig is the engine whose records a Generator repeats.
var BlockConfig = blockConfig
