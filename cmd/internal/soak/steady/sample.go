package steady

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// sample is what was seen at one time. Names are those of the table: rss, files
// and goroutines of each part, and parts, lag and fresh.
type sample map[string]float64

// column is one of the table.
type column struct {
	name  string
	unit  float64 // of the table, in that of the sample
	ratio float64 // how much more the last third of a run may have than the middle one
	slack float64 // and beyond that
}

// columns are what must not grow. NATS and the engine keep more as there is
// more to keep, up to bounds of their own; the others keep nothing.
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

// look takes a sample. before is the histogram of freshness at the last one;
// it returns the one of now.
func (s *stage) look(before histogram) (sample, histogram, error) {
	seen := sample{}
	var now histogram
	for _, p := range s.parts {
		rss, files, err := process(p.cmd.Process.Pid)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		seen[p.name+" rss"], seen[p.name+" files"] = rss, files
		if p.ops == "" {
			continue
		}
		m, err := metrics("http://" + p.ops + "/metrics")
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		seen[p.name+" goroutines"] = m["go_goroutines"]
		if p.name == "ingester" {
			seen["lag"] = m[`sluice_stream_lag_messages{lane="0"}`]
			now = newHistogram(m, "sluice_ingest_freshness_seconds")
		}
	}
	parts, err := s.query("SELECT count() FROM system.parts WHERE database = 'flow' AND active")
	if err != nil {
		return nil, nil, err
	}
	if seen["parts"], err = strconv.ParseFloat(parts, 64); err != nil {
		return nil, nil, err
	}
	seen[fresh] = now.since(before).quantile(0.99)
	return seen, now, nil
}

// query asks the engine over HTTP.
func (s *stage) query(sql string) (string, error) {
	res, err := http.Get("http://" + s.queries + "/?query=" + url.QueryEscape(sql))
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

var vmRSS = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// process is the resident bytes and the open files of a process, from Linux's
// /proc.
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

// metrics are the values of an ops port, by name with labels.
func metrics(url string) (map[string]float64, error) {
	client := &http.Client{Timeout: 5 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if i := strings.LastIndexByte(lines.Text(), ' '); i > 0 && lines.Text()[0] != '#' {
			if v, err := strconv.ParseFloat(lines.Text()[i+1:], 64); err == nil {
				all[lines.Text()[:i]] = v
			}
		}
	}
	return all, lines.Err()
}

// histogram is how many observations were at most so large.
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

// since is what came after before.
func (h histogram) since(before histogram) histogram {
	d := histogram{}
	for le, n := range h {
		d[le] = n - before[le]
	}
	return d
}

// quantile is the bound of the bucket the quantile is in; NaN when there is no
// observation.
func (h histogram) quantile(q float64) float64 {
	total := h[math.Inf(1)]
	if total == 0 {
		return math.NaN()
	}
	least := math.Inf(1)
	for le, n := range h {
		if n >= q*total {
			least = min(least, le)
		}
	}
	return least
}
