package warehouse_test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// TestAggregatesAreTheTruth compares every row and every column of every fold with
// what really happened in two engines whose keys and positions are equal,
// however their records came.
func TestAggregatesAreTheTruth(t *testing.T) {
	t.Parallel()
	const seed = 11
	for _, c := range []struct {
		name      string
		instances int
		block     int // records, at most
		arrive    func([]sent) []sent
	}{
		{"in order", 120, 20_000, inOrder},
		{"shuffled, and a third of them twice", 120, 8_000, func(all []sent) []sent { return shuffled(again(all)) }},
		{"backwards", 120, 15_000, backwards},
		{"in many small blocks, late and repeated", 15, 300, func(all []sent) []sent { return late(again(all)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := open(t)
			merges(t, db, "STOP") // of these tables alone: others are tested meanwhile
			truths := map[string]*simulator.Truth{}
			var all []sent
			for i, source := range []string{"cluster-a", "cluster-b"} {
				truths[source] = new(simulator.Truth)
				e := simulator.New(simulator.Config{Seed: seed + uint64(i), Instances: c.instances, Commands: true, Tenants: []string{"<default>", "acme"}, Truth: truths[source]})
				for r := range e.All() {
					all = append(all, sent{source, r.Position, r.Timestamp, string(r.JSON)})
				}
			}
			slices.SortStableFunc(all, func(a, b sent) int { return int(a.at - b.at) })
			store(t, db, 1, c.arrive(all), c.block)
			compareAggregates(t, db, truths)

			merges(t, db, "START")
			for _, table := range aggregates(t, db) {
				query(t, db, "OPTIMIZE TABLE {db}."+table+" FINAL")
			}
			compareAggregates(t, db, truths)
		})
	}
}

// merges stops or starts the merges of all tables of a database.
func merges(t *testing.T, db *warehouse.DB, do string) {
	t.Helper()
	for _, table := range strings.Fields(query(t, db, "SELECT name FROM system.tables WHERE database = '{db}' AND engine LIKE '%MergeTree'")) {
		query(t, db, "SYSTEM "+do+" MERGES {db}."+table)
	}
}

// unmerged leaves the parts of records as inserts make them, until the test ends.
func unmerged(t *testing.T, db *warehouse.DB) {
	t.Helper()
	query(t, db, "SYSTEM STOP MERGES {db}.records")
	t.Cleanup(func() { query(t, db, "SYSTEM START MERGES {db}.records") })
}

// sent is a record on its way.
type sent struct {
	source   string
	position int64
	at       int64
	json     string
}

func inOrder(all []sent) []sent { return all }

func backwards(all []sent) []sent {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

func shuffled(all []sent) []sent {
	all = slices.Clone(all)
	r := rand.New(rand.NewPCG(1, 2))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// again sends a third of the records once more.
func again(all []sent) []sent { return append(slices.Clone(all), all[len(all)/3:2*len(all)/3]...) }

// late sends every seventh record at the very end.
func late(all []sent) []sent {
	var first, last []sent
	for i, r := range all {
		if i%7 == 3 {
			last = append(last, r)
		} else {
			first = append(first, r)
		}
	}
	return append(first, last...)
}

// store inserts records in blocks, each with a message of every source, as
// messages from first on. It returns the one that would be next.
func store(t *testing.T, db *warehouse.DB, first uint64, all []sent, block int) uint64 {
	t.Helper()
	for records := range slices.Chunk(all, block) {
		bodies, at := map[string][]string{}, received
		for _, r := range records {
			bodies[r.source] = append(bodies[r.source], r.json)
			if then := time.UnixMilli(r.at); then.Sub(at) > 24*time.Hour {
				at = then // no record comes before it was written
			}
		}
		c, next := new(record.Columns), first
		for _, source := range slices.Sorted(maps.Keys(bodies)) {
			m := flow.Message{Seq: next, Topic: "flow.0.record", Received: at, Source: source, Body: []byte("[" + strings.Join(bodies[source], ",") + "]")}
			fatal.If(t, c.Append(&m))
			next++
		}
		b := record.Block{Columns: c, To: c.Rows(), Token: fmt.Sprintf("FLOW_0@1:%d-%d:0", first, next-1), StoredAt: storedAt}
		fatal.If(t, db.Insert(t.Context(), b))
		first = next
	}
	return first
}

// column is a column of a view: what is queried, and the truth about it as
// ClickHouse prints it.
type column[T any] struct {
	name  string
	truth func(T) string
	sql   string // default the name
}

func compareAggregates(t *testing.T, db *warehouse.DB, truths map[string]*simulator.Truth) {
	t.Helper()
	incidents := map[*simulator.Instance][2][]int64{} // created and resolved
	below := map[*simulator.Instance]int{}
	for _, truth := range truths {
		maps.Copy(below, incidentsBelow(truth))
	}
	for _, truth := range truths {
		for _, i := range truth.Incidents {
			keys := incidents[i.Instance]
			keys[0] = append(keys[0], i.Key)
			if i.ResolvedAt > 0 {
				keys[1] = append(keys[1], i.Key)
			}
			incidents[i.Instance] = keys
		}
	}
	compareView(t, db, "v_process_instances", truths, func(truth *simulator.Truth) []*simulator.Instance { return truth.Instances }, []column[*simulator.Instance]{
		{name: "process_instance_key", truth: func(i *simulator.Instance) string { return number(i.Key) }},
		{name: "tenant_id", truth: func(i *simulator.Instance) string { return i.Tenant }},
		{name: "bpmn_process_id", truth: func(i *simulator.Instance) string { return i.Process.BpmnProcessID }},
		{name: "version", truth: func(i *simulator.Instance) string { return number(i.Process.Version) }},
		{name: "process_definition_key", truth: func(i *simulator.Instance) string { return number(i.Process.DefinitionKey) }},
		{name: "first_bpmn_process_id", truth: func(i *simulator.Instance) string { return i.First.BpmnProcessID }},
		{name: "first_version", truth: func(i *simulator.Instance) string { return number(i.First.Version) }},
		{name: "first_process_definition_key", truth: func(i *simulator.Instance) string { return number(i.First.DefinitionKey) }},
		{name: "parent_process_instance_key", truth: caller},
		{name: "parent_element_instance_key", truth: func(i *simulator.Instance) string { return key(i.ParentElement) }},
		{name: "processes", truth: func(i *simulator.Instance) string {
			if i.First.BpmnProcessID == i.Process.BpmnProcessID {
				return "['" + i.Process.BpmnProcessID + "']"
			}
			return "['" + min(i.First.BpmnProcessID, i.Process.BpmnProcessID) + "','" + max(i.First.BpmnProcessID, i.Process.BpmnProcessID) + "']"
		}},
		{name: "started_at", truth: func(i *simulator.Instance) string { return moment(i.StartedAt) }},
		{name: "completed_at", truth: func(i *simulator.Instance) string { return moment(i.CompletedAt) }},
		{name: "terminated_at", truth: func(i *simulator.Instance) string { return moment(i.TerminatedAt) }},
		{name: "first_seen", truth: func(i *simulator.Instance) string { return moment(i.FirstSeen) }},
		{name: "last_seen", truth: func(i *simulator.Instance) string { return moment(i.LastSeen) }},
		{name: "state", truth: instanceState},
		{name: "duration_ms", truth: func(i *simulator.Instance) string { return between(i.StartedAt, max(i.CompletedAt, i.TerminatedAt)) }},
		{name: "incident_keys", sql: "arraySort(incident_keys)", truth: func(i *simulator.Instance) string { return numbers(incidents[i][0]) }},
		{name: "resolved_incident_keys", sql: "arraySort(resolved_incident_keys)", truth: func(i *simulator.Instance) string { return numbers(incidents[i][1]) }},
		{name: "incidents", truth: func(i *simulator.Instance) string { return strconv.Itoa(i.Incidents) }},
		{name: "open_incidents", truth: func(i *simulator.Instance) string { return strconv.Itoa(i.OpenIncidents) }},
		{name: "has_incident", truth: func(i *simulator.Instance) string { return yes(i.OpenIncidents+below[i] > 0) }},
		{name: "job_failures", truth: func(i *simulator.Instance) string { return strconv.Itoa(i.JobFailures) }},
	})
	compareCalls(t, db, truths)
	compareView(t, db, "v_element_instances", truths, func(truth *simulator.Truth) []*simulator.Element { return truth.Elements }, []column[*simulator.Element]{
		{name: "process_instance_key", truth: func(e *simulator.Element) string { return number(e.Instance.Key) }},
		{name: "key", truth: func(e *simulator.Element) string { return number(e.Key) }},
		{name: "tenant_id", truth: func(e *simulator.Element) string { return e.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(e *simulator.Element) string { return e.Process.BpmnProcessID }},
		{name: "version", truth: func(e *simulator.Element) string { return number(e.Process.Version) }},
		{name: "element_id", truth: func(e *simulator.Element) string { return e.ID }},
		{name: "bpmn_element_type", truth: func(e *simulator.Element) string { return e.Type }},
		{name: "flow_scope_key", truth: func(e *simulator.Element) string { return key(e.FlowScope) }},
		{name: "entered_at", truth: func(e *simulator.Element) string { return moment(e.EnteredAt) }},
		{name: "activated_at", truth: func(e *simulator.Element) string { return moment(e.ActivatedAt) }},
		{name: "completed_at", truth: func(e *simulator.Element) string { return moment(e.CompletedAt) }},
		{name: "terminated_at", truth: func(e *simulator.Element) string { return moment(e.TerminatedAt) }},
		{name: "state", truth: elementState},
		{name: "duration_ms", truth: func(e *simulator.Element) string {
			return between(cmp.Or(e.ActivatedAt, e.EnteredAt), max(e.CompletedAt, e.TerminatedAt))
		}},
	})
	compareView(t, db, "v_jobs", truths, func(truth *simulator.Truth) []*simulator.Job { return truth.Jobs }, []column[*simulator.Job]{
		{name: "process_instance_key", truth: func(j *simulator.Job) string { return number(j.Instance.Key) }},
		{name: "key", truth: func(j *simulator.Job) string { return number(j.Key) }},
		{name: "tenant_id", truth: func(j *simulator.Job) string { return j.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(j *simulator.Job) string { return j.Process.BpmnProcessID }},
		{name: "version", truth: func(j *simulator.Job) string { return number(j.Process.Version) }},
		{name: "element_id", truth: func(j *simulator.Job) string { return j.ElementID }},
		{name: "element_instance_key", truth: func(j *simulator.Job) string { return number(j.Element.Key) }},
		{name: "job_type", truth: func(j *simulator.Job) string { return j.Type }},
		{name: "state", truth: func(j *simulator.Job) string { return j.State }},
		{name: "worker", truth: func(j *simulator.Job) string { return j.Worker }},
		{name: "retries", truth: func(j *simulator.Job) string { return number(j.Retries) }},
		{name: "min_retries", truth: func(j *simulator.Job) string { return number(j.LeastRetries) }},
		{name: "created_at", truth: func(j *simulator.Job) string { return moment(j.CreatedAt) }},
		{name: "activated_at", truth: func(j *simulator.Job) string { return moment(j.ActivatedAt) }},
		{name: "completed_at", truth: func(j *simulator.Job) string { return moment(j.CompletedAt) }},
		{name: "canceled_at", truth: func(j *simulator.Job) string { return moment(j.CanceledAt) }},
		{name: "ended_at", truth: func(j *simulator.Job) string { return moment(j.EndedAt) }},
		{name: "open", truth: func(j *simulator.Job) string { return yes(j.EndedAt == 0) }},
		{name: "last_seen", truth: func(j *simulator.Job) string { return moment(j.LastSeen) }},
		{name: "deadline_at", truth: func(j *simulator.Job) string {
			if j.State != simulator.JobActivated {
				return null
			}
			return moment(j.Deadline)
		}},
		{name: "duration_ms", truth: func(j *simulator.Job) string { return between(j.CreatedAt, j.CompletedAt) }},
		{name: "failures", truth: func(j *simulator.Job) string { return strconv.Itoa(j.Failures) }},
		{name: "timeouts", truth: func(j *simulator.Job) string { return strconv.Itoa(j.TimeOuts) }},
		{name: "errors_thrown", truth: func(j *simulator.Job) string { return strconv.Itoa(j.ErrorsThrown) }},
		{name: "late_ms", truth: func(j *simulator.Job) string { return number(lateness(j)) }},
		{name: "completed_late", truth: func(j *simulator.Job) string { return yes(lateness(j) > 0) }},
	})
	compareView(t, db, "v_incidents", truths, func(truth *simulator.Truth) []*simulator.Incident { return truth.Incidents }, []column[*simulator.Incident]{
		{name: "process_instance_key", truth: func(i *simulator.Incident) string { return number(i.Instance.Key) }},
		{name: "key", truth: func(i *simulator.Incident) string { return number(i.Key) }},
		{name: "tenant_id", truth: func(i *simulator.Incident) string { return i.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(i *simulator.Incident) string { return i.Process.BpmnProcessID }},
		{name: "element_id", truth: func(i *simulator.Incident) string { return i.ElementID }},
		{name: "element_instance_key", truth: func(i *simulator.Incident) string { return number(i.Element.Key) }},
		{name: "job_key", truth: func(i *simulator.Incident) string { return key(i.Job) }},
		{name: "error_type", truth: func(i *simulator.Incident) string { return i.ErrorType }},
		{name: "error_message", truth: func(i *simulator.Incident) string { return escaped(i.ErrorMessage) }},
		{name: "created_at", truth: func(i *simulator.Incident) string { return moment(i.CreatedAt) }},
		{name: "resolved_at", truth: func(i *simulator.Incident) string { return moment(i.ResolvedAt) }},
		{name: "open", truth: func(i *simulator.Incident) string { return yes(i.ResolvedAt == 0) }},
		{name: "resolution_ms", truth: func(i *simulator.Incident) string { return between(i.CreatedAt, i.ResolvedAt) }},
	})
	compareWaits(t, db, truths)
}

// compareCalls compares what instances called, and the open incidents below them.
func compareCalls(t *testing.T, db *warehouse.DB, truths map[string]*simulator.Truth) {
	t.Helper()
	type call struct {
		*simulator.Instance
		root  int64
		depth int
		below int
	}
	calls := func(which func(call) bool) func(*simulator.Truth) []call {
		return func(truth *simulator.Truth) (all []call) {
			below := incidentsBelow(truth)
			for _, i := range truth.Instances {
				c := call{Instance: i, root: i.Key, below: below[i]}
				for _, caller := range above(truth, i) {
					c.root, c.depth = caller.Key, c.depth+1
				}
				if which(c) {
					all = append(all, c)
				}
			}
			return all
		}
	}
	compareView(t, db, "v_called_instances", truths, calls(func(c call) bool { return c.depth > 0 }), []column[call]{
		{name: "process_instance_key", truth: func(c call) string { return number(c.Key) }},
		{name: "root_process_instance_key", truth: func(c call) string { return number(c.root) }},
		{name: "parent_process_instance_key", truth: func(c call) string { return number(c.ParentInstance) }},
		{name: "depth", truth: func(c call) string { return strconv.Itoa(c.depth) }},
	})
	compareView(t, db, "v_incidents_below", truths, calls(func(c call) bool { return c.OpenIncidents+c.below > 0 }), []column[call]{
		{name: "process_instance_key", truth: func(c call) string { return number(c.Key) }},
		{name: "own", truth: func(c call) string { return strconv.Itoa(c.OpenIncidents) }},
		{name: "below", truth: func(c call) string { return strconv.Itoa(c.below) }},
	})
}

// caller is the key of the instance that called one, empty of one that none did.
func caller(i *simulator.Instance) string {
	if i.ParentInstance < 0 {
		return ""
	}
	return number(i.ParentInstance)
}

// compareView compares all rows of a view. Columns of which the truth says nothing have to
// be empty in all of them.
func compareView[T any](t *testing.T, db *warehouse.DB, view string, truths map[string]*simulator.Truth, rows func(*simulator.Truth) []T, columns []column[T]) {
	t.Helper()
	names, selected := []string{"source"}, []string{"source"}
	for _, c := range columns {
		names = append(names, c.name)
		if c.sql == "" {
			c.sql = c.name
		}
		selected = append(selected, c.sql)
	}
	process, element := slices.Index(names, "bpmn_process_id"), slices.Index(names, "element_id")
	for _, name := range strings.Fields(query(t, db, "SELECT name FROM system.columns WHERE database = '{db}' AND table = '"+view+"' ORDER BY position")) {
		if !slices.Contains(names, name) { // the simulated engine sends nothing of it
			names, selected = append(names, name), append(selected, "ifNull(nullIf(toString("+name+"), ''), 'nothing')")
		}
	}
	var want []string
	for source, truth := range truths {
		diagrams := namesIn(t, truth)
		for _, row := range rows(truth) {
			line := []string{source}
			for _, c := range columns {
				line = append(line, c.truth(row))
			}
			for _, name := range names[len(line):] {
				cell := ""
				switch {
				case name == "process_name" && process > 0:
					cell = diagrams[[2]string{line[process], line[process]}]
				case name == "element_name" && element > 0:
					cell = diagrams[[2]string{line[process], line[element]}]
				}
				line = append(line, cmp.Or(cell, "nothing"))
			}
			want = append(want, strings.Join(line, "\t"))
		}
	}
	got := strings.Split(query(t, db, "SELECT "+strings.Join(selected, ", ")+" FROM {db}."+view), "\n")
	slices.Sort(want)
	slices.Sort(got)
	if slices.Equal(want, got) {
		return
	}
	t.Errorf("%s: %d rows, the truth has %d", view, len(got), len(want))
	missing, surplus := without(want, got), without(got, want)
	for i := range min(3, max(len(missing), len(surplus))) {
		var w, g []string
		if i < len(missing) {
			w = named(names, missing[i])
		}
		if i < len(surplus) {
			g = named(names, surplus[i])
		}
		t.Errorf("%s (-truth +got):\n%s", view, gocmp.Diff(w, g))
	}
}

// namesIn are the names in the diagrams of the latest versions, by process and id.
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

func named(names []string, line string) []string {
	values := strings.Split(line, "\t")
	for i := range values {
		values[i] = names[i] + " " + values[i]
	}
	return values
}

// without are the lines of a, which is sorted, that b lacks.
func without(a, b []string) []string {
	var only []string
	for _, line := range a {
		if _, found := slices.BinarySearch(b, line); !found {
			only = append(only, line)
		}
	}
	return only
}

const null = `\N`

func number(n int64) string { return strconv.FormatInt(n, 10) }

func key(n int64) string {
	if n < 0 {
		return null
	}
	return number(n)
}

func numbers(all []int64) string {
	texts := make([]string, len(all))
	for i, n := range slices.Sorted(slices.Values(all)) {
		texts[i] = number(n)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

func moment(ms int64) string {
	if ms == 0 {
		return null
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02 15:04:05.000")
}

func between(from, to int64) string {
	if from == 0 || to == 0 {
		return null
	}
	return number(to - from)
}

func yes(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// escaped is a text as ClickHouse prints it between tabs.
func escaped(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\t", `\t`, `'`, `\'`).Replace(s)
}

func lateness(j *simulator.Job) int64 {
	if j.CompletedAt == 0 || j.Deadline < 0 {
		return 0
	}
	return max(0, j.CompletedAt-j.Deadline)
}
