package warehouse_test

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/load/simulator"
	"sluice/pkg/warehouse"
)

// world is the subject of all questions: a database, and the true events of the two engines whose
// records it has.
type world struct {
	db     *warehouse.DB
	truths map[string]*simulator.Truth
	names  map[string]map[[2]string]string // of processes and elements in their BPMN, by source, process, and element
	events []event                         // distinct, of both engines, in order of time
	sent   []sent                          // all records, in the order of the engines

	mu      sync.Mutex
	answers map[string]string // results so far: the database no longer changes
}

type event struct {
	Source    string
	Partition int64  `json:"partitionId"`
	Position  int64  `json:"position"`
	Key       int64  `json:"key"`
	At        int64  `json:"timestamp"`
	Type      string `json:"recordType"`
	ValueType string `json:"valueType"`
	Intent    string `json:"intent"`
	Value     struct {
		Process   string `json:"bpmnProcessId"`
		Instance  int64  `json:"processInstanceKey"`
		Element   string `json:"elementId"`
		Target    string `json:"targetElementId"` // of timers and process events, instead of elementId
		Kind      string `json:"bpmnElementType"`
		JobType   string `json:"type"`
		Worker    string `json:"worker"`
		Retries   *int64 `json:"retries"`
		ErrorCode string `json:"errorCode"`
		Error     string `json:"errorMessage"`
		Tenant    string `json:"tenantId"`
	} `json:"value"`
}

var shared struct {
	sync.Mutex
	world *world
}

// simulated loads the world once for all tests of the package: shuffled, late, and a third of it
// twice. The snapshot is of engines at work, one of them at the change of a month.
func simulated(t *testing.T) *world {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.world != nil {
		return shared.world
	}
	engine := clickhousetest.Shared(t)
	clickhousetest.Exec(t, engine, "CREATE DATABASE IF NOT EXISTS flow")
	w := &world{db: openURL(t, engine.URL("flow")), truths: map[string]*simulator.Truth{}, names: map[string]map[[2]string]string{}, answers: map[string]string{}}
	fatal.If(t, w.db.Migrate(t.Context()))
	var all []sent
	for i, source := range []string{"cluster-a", "cluster-b"} {
		start := []time.Time{time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC), time.Date(2025, 10, 31, 23, 0, 0, 0, time.UTC)}[i]
		w.truths[source] = new(simulator.Truth)
		e := simulator.New(simulator.Config{
			Seed: 11 + uint64(i), Start: start, Every: 30 * time.Second, Instances: 240, Commands: true,
			Tenants: []string{"<default>", "acme"}, Truth: w.truths[source],
		})
		for {
			r, more := e.NextBy(start.Add(2 * time.Hour))
			if !more {
				break
			}
			all = append(all, sent{source, r.Position, r.Timestamp, string(r.JSON)})
			if r.RecordType != "EVENT" {
				continue
			}
			v := event{Source: source}
			fatal.If(t, json.Unmarshal(r.JSON, &v))
			v.Value.Element = cmp.Or(v.Value.Element, v.Value.Target)
			w.events = append(w.events, v)
		}
	}
	for source, truth := range w.truths {
		w.names[source] = namesIn(t, truth)
	}
	slices.SortStableFunc(w.events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.At, b.At), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Position, b.Position))
	})
	w.sent = slices.Clone(all)
	store(t, w.db, 1, late(shuffled(again(all))), 20_000)
	shared.world = w
	return w
}

// ask returns a result as TabSeparated lines, the first one the column names. Parameters missing
// from params take the examples.
func (w *world) ask(t *testing.T, q warehouse.Question, params map[string]string, format string) string {
	t.Helper()
	values := url.Values{"default_format": {format}}
	for _, p := range q.Parameters {
		value, given := params[p.Name]
		if !given {
			value = p.Example
		}
		values.Set("param_"+p.Name, strings.ReplaceAll(value, `\`, `\\`))
	}
	asked := values.Encode() + "\n" + q.SQL
	w.mu.Lock()
	before, known := w.answers[asked]
	w.mu.Unlock()
	if known {
		return before
	}
	answer, err := http.Post(clickhousetest.Shared(t).HTTP()+"/?"+values.Encode(), "text/plain", strings.NewReader(q.SQL))
	fatal.If(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", q.Name, answer.StatusCode, err, text)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[asked] = strings.TrimSuffix(string(text), "\n")
	return w.answers[asked]
}

// namesIn are the names of processes and elements in the BPMN of the latest version, by process and element.
func namesIn(t *testing.T, truth *simulator.Truth) map[[2]string]string {
	t.Helper()
	all, versions := map[[2]string]string{}, map[[2]string]int64{}
	for _, d := range truth.Definitions {
		for decoder := xml.NewDecoder(strings.NewReader(d.XML)); ; {
			token, err := decoder.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			var at [2]string
			var name string
			if start, is := token.(xml.StartElement); is {
				for _, a := range start.Attr {
					switch a.Name.Local {
					case "id":
						at = [2]string{d.BpmnProcessID, a.Value}
					case "name":
						name = a.Value
					}
				}
			}
			if name != "" && d.Version >= versions[at] {
				all[at], versions[at] = name, d.Version
			}
		}
	}
	return all
}
