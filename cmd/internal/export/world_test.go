package export_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/export"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// world is a database with the records of two simulated engines, and their events.
type world struct {
	address string // of ClickHouse's HTTP
	truths  map[string]*simulator.Truth
}

var shared struct {
	sync.Mutex
	world *world
}

// simulated loads the world once for all tests: shuffled, and a third of it
// twice. Both engines use the same keys.
func simulated(t *testing.T) *world {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.world != nil {
		return shared.world
	}
	clickhousetest.Exec(t, clickhousetest.Shared(t), "CREATE DATABASE IF NOT EXISTS flow")
	db, err := warehouse.Open(warehouse.Config{URL: clickhousetest.Shared(t).URL("flow")}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	defer db.Close()
	fatal.If(t, db.Migrate(t.Context()))
	w := &world{address: clickhousetest.Shared(t).HTTP() + "/flow", truths: map[string]*simulator.Truth{}}
	type sent struct{ source, json string }
	var all []sent
	for i, source := range []string{"cluster-a", "cluster-b"} {
		start := time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC).AddDate(0, 0, i)
		w.truths[source] = new(simulator.Truth)
		e := simulator.New(simulator.Config{
			Seed: 5 + uint64(i), Start: start, Every: 30 * time.Second, Instances: 150, Tenants: []string{"<default>", "acme"}, Truth: w.truths[source],
		})
		for r, more := e.NextBy(start.Add(80 * time.Minute)); more; r, more = e.NextBy(start.Add(80 * time.Minute)) {
			all = append(all, sent{source, string(r.JSON)})
		}
	}
	all = append(all, all[len(all)/3:2*len(all)/3]...)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	seq := uint64(1)
	for records := range slices.Chunk(all, 20_000) {
		c, first := new(record.Columns), seq
		for _, source := range []string{"cluster-a", "cluster-b"} {
			var bodies []string
			for _, r := range records {
				if r.source == source {
					bodies = append(bodies, r.json)
				}
			}
			m := flow.Message{Seq: seq, Topic: "flow.0.record", Received: time.Now(), Source: source, Body: []byte("[" + strings.Join(bodies, ",") + "]")}
			fatal.If(t, c.Append(&m))
			seq++
		}
		fatal.If(t, db.Insert(t.Context(), record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d-%d:0", first, seq-1), StoredAt: time.Now().UnixMilli()}))
	}
	shared.world = w
	return w
}

// selected reports whether a selection has an instance.
func selected(s export.Selection, source string, i *simulator.Instance) bool {
	return i.StartedAt > 0 && (s.Process == "" || s.Process == i.Process.BpmnProcessID) && (s.Tenant == "" || s.Tenant == i.Tenant) &&
		(s.Source == "" || s.Source == source) && (s.From.IsZero() || i.StartedAt >= s.From.UnixMilli()) && (s.To.IsZero() || i.StartedAt < s.To.UnixMilli())
}

// line is an event as the tests compare it.
func line(instance, activity, transition string, at int64, key, kind, resource string, more ...string) string {
	return fmt.Sprintf("%s %s %s %s %s %s %q %q", instance, activity, transition, time.UnixMilli(at).UTC().Format(time.RFC3339Nano), key, kind, resource, more)
}

// chosen are the variables of the exports; no instance has the last.
var chosen = []string{"amount", "note", "it's `a\\b\""}

// about are the names of an event, the callers of its case, and its chosen variables.
func about(source string, truth *simulator.Truth, e *simulator.Element) []string {
	i := e.Instance
	parent, caller, root := "", "", i
	if i.ParentInstance > 0 {
		parent, caller = fmt.Sprintf("%s/%d", source, i.ParentInstance), strconv.FormatInt(i.ParentElement, 10)
	}
	for root.ParentInstance > 0 {
		root = truth.Instances[slices.IndexFunc(truth.Instances, func(o *simulator.Instance) bool { return o.Key == root.ParentInstance })]
	}
	return append([]string{name(e.ID), "The " + i.Process.BpmnProcessID + " process", parent, caller, fmt.Sprintf("%s/%d", source, root.Key)}, values(truth, i)...)
}

// name is that of an element of simulated processes.
func name(id string) string { return strings.ToUpper(id[:1]) + strings.ReplaceAll(id[1:], "_", " ") }

// values are the chosen variables of an instance: texts unquoted, others as JSON.
func values(truth *simulator.Truth, i *simulator.Instance) []string {
	all := make([]string, len(chosen))
	for _, v := range truth.Variables {
		n := slices.Index(chosen, v.Name)
		if n < 0 || v.Scope != i.Key {
			continue
		}
		all[n] = v.Value
		if v.Value[0] == '"' {
			_ = json.Unmarshal([]byte(v.Value), &all[n]) // the simulator's JSON is valid
		}
	}
	return all
}

// steps are the events of a selection, unordered.
func (w *world) steps(s export.Selection) (all []string) {
	for source, truth := range w.truths {
		did := did(truth)
		for _, e := range truth.Elements {
			if !selected(s, source, e.Instance) || e.Type == "PROCESS" || e.Type == "MULTI_INSTANCE_BODY" {
				continue
			}
			instance, key, about := fmt.Sprintf("%s/%d", source, e.Instance.Key), strconv.FormatInt(e.Key, 10), about(source, truth, e)
			if e.ActivatedAt > 0 {
				all = append(all, line(instance, e.ID, "start", e.ActivatedAt, key, e.Type, "", about...))
			}
			if e.CompletedAt > 0 {
				all = append(all, line(instance, e.ID, "complete", e.CompletedAt, key, e.Type, did[e], about...))
			} else if e.TerminatedAt > 0 {
				all = append(all, line(instance, e.ID, "ate_abort", e.TerminatedAt, key, e.Type, "", about...))
			}
		}
	}
	return all
}

// did are workers and assignees by the element that they completed.
func did(truth *simulator.Truth) map[*simulator.Element]string {
	all := map[*simulator.Element]string{}
	for _, j := range truth.Jobs {
		if j.CompletedAt > 0 {
			all[j.Element] = j.Worker
		}
	}
	for _, u := range truth.UserTasks {
		if u.CompletedAt > 0 {
			all[u.Element] = u.Assignee
		}
	}
	return all
}
