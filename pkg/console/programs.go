package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Program is an api or an ingester, or both in one, as its ops port shows it.
type Program struct {
	Address string // of its ops port, such as 127.0.0.1:8081
	client  *http.Client
}

// NewProgram names the ops port of a program: host:port or a URL.
func NewProgram(address string) Program {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return Program{Address: strings.TrimSuffix(address, "/"), client: &http.Client{Timeout: programTime}}
}

// report is what a program says of itself.
type report struct {
	Address string
	Err     error     // it does not answer
	Missing []finding // what keeps it from its work, in its own words
	metrics map[string]*dto.MetricFamily
}

type finding struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// readyFor is how long a program may take to say what it lacks: one whose
// ClickHouse hangs takes longer, and the rest is not to wait for that.
const readyFor = 700 * time.Millisecond

// readyMetric is 1 of a program that can do its work.
const readyMetric = "sluice_ready"

// watched are the metrics that a look needs, every second: a program writes, and
// the console reads, no others.
var watched = []string{
	readyMetric, acceptedMetric, freshMetric, ackMetric, laneStateMetric, laneAgeMetric,
	"sluice_ingest_table_missing_messages", "sluice_ingest_changes_state", "sluice_auth_stale",
}

// ask asks a program for metrics of these names, or all of them without any, and
// what it lacks when it says that it cannot do its work.
func (p Program) ask(ctx context.Context, names ...string) report {
	r := report{Address: p.Address}
	if r.metrics, r.Err = p.metrics(ctx, names); r.Err != nil {
		return r // that it does not answer says enough
	}
	if ready, known := (reports{r}).sum(readyMetric, nil); !known || ready == 0 {
		r.Missing = p.missing(ctx)
	}
	return r
}

func (p Program) metrics(ctx context.Context, names []string) (map[string]*dto.MetricFamily, error) {
	path := "/metrics"
	if len(names) > 0 {
		path += "?" + url.Values{"name[]": names}.Encode()
	}
	body, err := p.get(ctx, path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(io.LimitReader(body, 8<<20))
}

func (p Program) missing(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, readyFor)
	defer cancel()
	body, err := p.get(ctx, "/readyz")
	if err != nil {
		return []finding{{"readyz", "it does not say in time whether it can do its work"}}
	}
	defer body.Close()
	var answer struct {
		Missing []finding `json:"missing"`
	}
	if err := json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&answer); err != nil {
		return []finding{{"readyz", err.Error()}}
	}
	return answer.Missing
}

func (p Program) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "identity") // packing costs more than it spares
	res, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusServiceUnavailable {
		res.Body.Close()
		return nil, fmt.Errorf("%s%s: %s", p.Address, path, res.Status)
	}
	return res.Body, nil
}

// reports are what all programs say.
type reports []report

// sum adds a metric up over all programs and all its series that pick takes;
// known is false when no program has it.
func (all reports) sum(name string, pick func(labels map[string]string) bool) (total float64, known bool) {
	for _, r := range all {
		for _, m := range r.metrics[name].GetMetric() {
			if pick != nil && !pick(labelsOf(m)) {
				continue
			}
			known = true
			total += valueOf(m)
		}
	}
	return total, known
}

// highest is the greatest value by a label, such as each lane's state.
func (all reports) highest(name, label string) map[string]float64 {
	found := map[string]float64{}
	for _, r := range all {
		for _, m := range r.metrics[name].GetMetric() {
			key := labelsOf(m)[label]
			if before, ok := found[key]; !ok || valueOf(m) > before {
				found[key] = valueOf(m)
			}
		}
	}
	return found
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return 0
}

// buckets is a histogram summed over programs and series: how many were at most
// so long, by upper bound.
type buckets map[float64]float64

func (all reports) histogram(name string, pick func(labels map[string]string) bool) buckets {
	sum := buckets{}
	for _, r := range all {
		for _, m := range r.metrics[name].GetMetric() {
			if pick != nil && !pick(labelsOf(m)) {
				continue
			}
			for _, b := range m.GetHistogram().GetBucket() {
				if !math.IsInf(b.GetUpperBound(), 1) { // the count of all says the same
					sum[b.GetUpperBound()] += float64(b.GetCumulativeCount())
				}
			}
			sum[math.Inf(1)] += float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// since are the values that came after an earlier look. A program that started
// anew meanwhile counts from nothing.
func (b buckets) since(before buckets) buckets {
	if b[math.Inf(1)] < before[math.Inf(1)] {
		return b
	}
	diff := buckets{}
	for bound, n := range b {
		diff[bound] = max(0, n-before[bound])
	}
	return diff
}

// quantile estimates a quantile in seconds as Prometheus does; ok is false when
// nothing was measured.
func (b buckets) quantile(q float64) (seconds float64, ok bool) {
	total := b[math.Inf(1)]
	if total == 0 {
		return 0, false
	}
	bounds := make([]float64, 0, len(b))
	for bound := range b {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	want, low, below := q*total, 0.0, 0.0
	for _, bound := range bounds {
		if b[bound] >= want {
			if math.IsInf(bound, 1) {
				return low, true
			}
			if in := b[bound] - below; in > 0 {
				return low + (bound-low)*(want-below)/in, true
			}
			return bound, true
		}
		low, below = bound, b[bound]
	}
	return low, true
}
