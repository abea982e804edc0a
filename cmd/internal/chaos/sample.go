package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sluice/cmd/internal/deployment"
)

// sample has measured values by column name: rss, files and goroutines of each process,
// parts, lag and fresh.
type sample map[string]float64

// column is a column of the table, which must not grow.
type column struct {
	name  string
	unit  float64 // unit of the table, in units of the sample
	ratio float64 // tolerated relative growth from the middle third of a run to the last
	slack float64 // tolerated growth beyond ratio
}

// NATS and the engine cache more as their data grows, up to their own limits.
var columns = []column{
	{"api rss", mib, 0.10, 48 * mib},
	{"ingester rss", mib, 0.10, 64 * mib},
	{"nats rss", mib, 0.25, 128 * mib},
	{"engine rss", mib, 0.25, 384 * mib},
	{"api goroutines", 1, 0.10, 30},
	{"ingester goroutines", 1, 0.10, 30},
	{"api files", 1, 0.10, 10},
	{"ingester files", 1, 0.10, 10},
	{"nats files", 1, 0.10, 20},
	{"engine files", 1, 0.25, 100},
	{"parts", 1, 0.25, 60},
	{"lag", 1, 0.50, 500},
}

const (
	mib   = 1 << 20
	fresh = "fresh p99" // seconds; NaN when nothing was stored
)

// look takes a sample. before is the freshness histogram of the previous sample; it
// returns the current one.
func look(ctx context.Context, d *deployment.Deployment, before histogram) (sample, histogram, error) {
	seen := sample{}
	var now histogram
	for _, p := range d.Processes {
		rss, files, err := process(p.PID())
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		seen[p.Name+" rss"], seen[p.Name+" files"] = rss, files
		if p.Ops == "" {
			continue
		}
		m, err := p.Metrics(ctx)
		if err != nil {
			return nil, nil, err
		}
		seen[p.Name+" goroutines"] = m["go_goroutines"]
		if p.Name == deployment.Ingester {
			seen["lag"] = m[`sluice_stream_lag_messages{lane="0"}`]
			now = newHistogram(m, "sluice_ingest_freshness_seconds")
		}
	}
	active, err := d.Number(ctx, "SELECT count() FROM system.parts WHERE database = 'flow' AND active")
	if err != nil {
		return nil, nil, err
	}
	seen["parts"] = float64(active)
	seen[fresh] = now.since(before).quantile(0.99)
	return seen, now, nil
}

var vmRSS = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// process reads a process's resident bytes and open files from /proc.
func process(pid int) (rss, files float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	found := vmRSS.FindSubmatch(status)
	if found == nil {
		return 0, 0, fmt.Errorf("process %d has ended", pid)
	}
	kb, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		return 0, 0, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return kb * 1024, float64(len(open)), err
}

// histogram is the cumulative number of observations by upper bound.
type histogram map[float64]float64

func newHistogram(m map[string]float64, name string) histogram {
	h := histogram{}
	for key, v := range m {
		if rest, ok := strings.CutPrefix(key, name+`_bucket{le="`); ok {
			le, err := strconv.ParseFloat(strings.TrimSuffix(rest, `"}`), 64)
			if err == nil {
				h[le] = v
			}
		}
	}
	return h
}

// since returns the difference to an earlier histogram.
func (h histogram) since(before histogram) histogram {
	d := histogram{}
	for le, n := range h {
		d[le] = n - before[le]
	}
	return d
}

// quantile returns the upper bound of the quantile's bucket; NaN without observations.
func (h histogram) quantile(q float64) float64 {
	total := h[math.Inf(1)]
	if total == 0 {
		return math.NaN()
	}
	lowest := math.Inf(1)
	for le, n := range h {
		if n >= q*total {
			lowest = min(lowest, le)
		}
	}
	return lowest
}

// growth describes every column whose last third exceeds its tolerance over the middle
// third. The first third is warm-up.
func growth(samples []sample) (grown []string) {
	third := len(samples) / 3
	for _, c := range columns {
		middle, last := median(samples[third:2*third], c.name), median(samples[2*third:], c.name)
		if limit := middle*(1+c.ratio) + c.slack; last > limit {
			grown = append(grown, fmt.Sprintf("%s grew from %.0f to %.0f, at most %.0f is right", c.name, middle/c.unit, last/c.unit, limit/c.unit))
		}
	}
	return grown
}

func median(samples []sample, name string) float64 {
	var all []float64
	for _, s := range samples {
		all = append(all, s[name])
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func header() string {
	var b strings.Builder
	b.WriteString("   time")
	for _, c := range columns {
		fmt.Fprintf(&b, "  %s", title(c))
	}
	return b.String() + "  " + fresh + "\n"
}

func row(seconds int, s sample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6ds", seconds)
	for _, c := range columns {
		fmt.Fprintf(&b, "  %*.0f", len(title(c)), s[c.name]/c.unit)
	}
	return fmt.Sprintf("%s  %*.3g\n", &b, len(fresh), s[fresh])
}

func title(c column) string {
	if c.unit == mib {
		return c.name + " MiB"
	}
	return c.name
}
