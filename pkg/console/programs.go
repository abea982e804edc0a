package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Program is a client of the ops port of an api, an ingester, or both in one process.
type Program struct {
	Address string // URL of the ops port, such as http://127.0.0.1:8081
	client  *http.Client
}

// NewProgram takes the ops port as host:port or URL.
func NewProgram(address string) Program {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	return Program{Address: strings.TrimSuffix(address, "/"), client: &http.Client{Timeout: programTime}}
}

// report is the state of a program.
type report struct {
	Address string
	Err     error     // why it does not answer
	Missing []finding // failed readiness checks
	Rejects []rejectedClient
	metrics map[string][]series
}

// series is one series of a counter or gauge.
type series struct {
	labels map[string]string
	value  float64
}

// Accepted is the number of records accepted since the program started; empty for an
// ingester.
func (r report) Accepted() string {
	if n, known := (reports{r}).sum(acceptedMetric); known {
		return number(n)
	}
	return ""
}

// rejectedClient is a client that an api has rejected recently.
type rejectedClient struct {
	Subject, Address, Code string
	Status, Count          int
	First, Last            time.Time
}

// rejects reads the clients that an api has rejected within the last hour.
func (p Program) rejects(ctx context.Context) (all []rejectedClient) {
	body, err := p.get(ctx, "/rejected")
	if err != nil {
		return nil // report.Err has the reason
	}
	defer body.Close()
	if json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&all) != nil {
		return nil
	}
	return all
}

// rejects are the rejected clients of all programs, latest first.
func (all reports) rejects() (clients []rejectedClient) {
	for _, r := range all {
		clients = append(clients, r.Rejects...)
	}
	slices.SortStableFunc(clients, func(a, b rejectedClient) int { return b.Last.Compare(a.Last) })
	return clients
}

type finding struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// readyFor is the timeout of /readyz. A program whose ClickHouse hangs takes longer; the
// look does not wait for it.
const readyFor = 700 * time.Millisecond

const (
	readyMetric     = "sluice_ready" // 1: ready
	acceptedMetric  = "sluice_api_records_total"
	excludedMetric  = "sluice_api_records_excluded_total"
	laneStateMetric = "sluice_ingest_state"
	laneAgeMetric   = "sluice_ingest_lag_seconds"
	missingMetric   = "sluice_ingest_table_missing_messages"
	changesMetric   = "sluice_ingest_changes_state"
	staleMetric     = "sluice_auth_stale"
)

// watched restricts the scrape to the metrics that a look needs.
var watched = "/metrics?" + url.Values{"name[]": {
	readyMetric, acceptedMetric, excludedMetric, laneStateMetric, laneAgeMetric, missingMetric, changesMetric, staleMetric,
}}.Encode()

// ask reads the metrics of a program, and its failed readiness checks.
func (p Program) ask(ctx context.Context) report {
	r := report{Address: p.Address}
	if r.metrics, r.Err = p.metrics(ctx); r.Err != nil {
		return r
	}
	if _, accepts := r.metrics[acceptedMetric]; accepts {
		r.Rejects = p.rejects(ctx)
	}
	if ready, known := (reports{r}).sum(readyMetric); !known || ready == 0 {
		r.Missing = p.missing(ctx)
	}
	return r
}

func (p Program) metrics(ctx context.Context) (map[string][]series, error) {
	body, err := p.get(ctx, watched)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(body, 8<<20))
	if err != nil {
		return nil, err
	}
	all := map[string][]series{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			one := series{map[string]string{}, m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()}
			for _, l := range m.GetLabel() {
				one.labels[l.GetName()] = l.GetValue()
			}
			all[name] = append(all[name], one)
		}
	}
	return all, nil
}

func (p Program) missing(ctx context.Context) []finding {
	ctx, cancel := context.WithTimeout(ctx, readyFor)
	defer cancel()
	body, err := p.get(ctx, "/readyz")
	if err != nil {
		return []finding{{"readyz", "no answer in time"}}
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
	req.Header.Set("Accept-Encoding", "identity") // compression costs more than it saves
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

type reports []report

// sum adds up a metric over all programs and series; known is false when no program has it.
func (all reports) sum(name string) (total float64, known bool) {
	for _, r := range all {
		for _, m := range r.metrics[name] {
			total, known = total+m.value, true
		}
	}
	return total, known
}

// highest is the maximum of a metric by a label, such as each lane's state.
func (all reports) highest(name, label string) map[string]float64 {
	found := map[string]float64{}
	for _, r := range all {
		for _, m := range r.metrics[name] {
			key := m.labels[label]
			if before, ok := found[key]; !ok || m.value > before {
				found[key] = m.value
			}
		}
	}
	return found
}
