package warehouse_test

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/pkg/fatal"

	gocmp "github.com/google/go-cmp/cmp"
)

// TestASampleOfARealEngine stores what a broker of Camunda 8.6.0 with two partitions
// exported, shuffled and a third of it twice, and compares every row of the views with
// what the records say by themselves, read here without ClickHouse.
func TestASampleOfARealEngine(t *testing.T) {
	t.Parallel()
	engine, all := readSample(t)
	db := open(t)
	store(t, db, 1, shuffled(again(all)), 5_000)
	for _, v := range []struct {
		view, columns string
		rows          []string
	}{
		{"v_process_instances", "process_instance_key, tenant_id, bpmn_process_id, version, process_definition_key, first_bpmn_process_id, first_version, parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state, incidents, open_incidents, job_failures", engine.instances()},
		{"v_element_instances", "process_instance_key, key, bpmn_process_id, version, element_id, bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state, duration_ms", engine.elements()},
		{"v_jobs", "process_instance_key, key, bpmn_process_id, version, element_id, element_instance_key, job_type, state, worker, retries, created_at, activated_at, completed_at, canceled_at, ended_at, open, failures, timeouts, errors_thrown", engine.jobs()},
		{"v_incidents", "process_instance_key, key, bpmn_process_id, element_id, element_instance_key, job_key, error_type, error_message, created_at, resolved_at, open", engine.incidents()},
		{"v_user_tasks", "process_instance_key, key, bpmn_process_id, version, element_id, assignee, state, created_at, assigned_at, completed_at, canceled_at, waiting_ms", engine.userTasks()},
		{"v_escalations", "process_instance_key, key, escalation_code, throw_element_id, catch_element_id, caught, thrown_at", engine.escalations()},
		{"v_migrations", "process_instance_key, target_process_definition_key, migrated_at", engine.migrations()},
		{"v_decisions", "key, decision_id, state, output", engine.decisions()},
		{"v_messages", "key, message_name, correlation_key, state, published_at, expires_at, expired_at", engine.messages()},
		{"v_message_waits", "process_instance_key, key, bpmn_process_id, element_id, message_name, correlation_key, state, interrupting, correlations, created_at, first_correlated_at, correlated_at, deleted_at", engine.messageWaits()},
		{"v_timers", "process_instance_key, key, process_definition_key, element_id, started_process_instance_key, state, due_at, created_at, triggered_at, canceled_at", engine.timers()},
		{"v_process_definitions", "process_definition_key, bpmn_process_id, version, resource_name, xml, deployed_at, deleted_at", engine.definitions()},
		{"v_variables", "process_instance_key, key, bpmn_process_id, scope_key, name, first_value, value, created_at, updated_at, changes", engine.variables()},
	} {
		got := strings.Split(query(t, db, "SELECT "+v.columns+" FROM {db}."+v.view), "\n")
		if got[0] == "" {
			got = nil
		}
		slices.Sort(got)
		slices.Sort(v.rows)
		if len(got) != len(v.rows) {
			t.Errorf("%s: %d rows, the records say %d", v.view, len(got), len(v.rows))
		}
		missing, surplus := without(v.rows, got), without(got, v.rows)
		for i := range min(3, len(missing), len(surplus)) {
			names := strings.Split(v.columns, ", ")
			t.Errorf("%s (-records +view):\n%s", v.view, gocmp.Diff(named(names, missing[i]), named(names, surplus[i])))
		}
		if len(missing)+len(surplus) > 0 && (len(missing) == 0 || len(surplus) == 0) {
			t.Errorf("%s: missing %v, surplus %v", v.view, missing, surplus)
		}
	}
}

// exported is a record as the broker's exporter wrote it.
type exported struct {
	Partition  int64  `json:"partitionId"`
	Position   int64  `json:"position"`
	Key        int64  `json:"key"`
	At         int64  `json:"timestamp"`
	RecordType string `json:"recordType"`
	ValueType  string `json:"valueType"`
	Intent     string `json:"intent"`
	Value      members
}

// members are those of the value. Numbers are texts.
type members map[string]any

func (m members) text(name string) string {
	switch v := m[name].(type) {
	case json.Number:
		return v.String()
	case string:
		return escaped(v)
	}
	return ""
}

func (m members) number(name string) int64 {
	n, _ := strconv.ParseInt(m.text(name), 10, 64)
	return n
}

// key is NULL where the engine writes -1.
func (m members) key(name string) string { return key(m.number(name)) }

// exportedEvents are the events of a broker, in the order of its log: of each partition.
type exportedEvents []exported

func readSample(t *testing.T) (exportedEvents, []sent) {
	t.Helper()
	f, err := os.Open("testdata/camunda-8.6.0.ndjson.gz")
	fatal.If(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	fatal.If(t, err)
	var events exportedEvents
	var all []sent
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r exported
		d := json.NewDecoder(strings.NewReader(lines.Text()))
		d.UseNumber()
		fatal.If(t, d.Decode(&r))
		all = append(all, sent{"camunda", r.Position, r.At, lines.Text()})
		if r.RecordType == "EVENT" {
			events = append(events, r)
		}
	}
	if err := lines.Err(); err != nil || len(all) < 10_000 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	slices.SortFunc(events, func(a, b exported) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Position, b.Position))
	})
	return events, all
}

// history is what happened to one thing, in order.
type history []exported

// histories are those of the value types, by what of tells of each record.
func (all exportedEvents) histories(of func(exported) int64, valueTypes ...string) map[int64]history {
	found := map[int64]history{}
	for _, r := range all {
		if slices.Contains(valueTypes, r.ValueType) && of(r) > 0 {
			found[of(r)] = append(found[of(r)], r)
		}
	}
	return found
}

func ownKey(r exported) int64 { return r.Key }

func (h history) of(intents ...string) history {
	var some history
	for _, r := range h {
		if slices.Contains(intents, r.Intent) {
			some = append(some, r)
		}
	}
	return some
}

// first and last are when, in ms; 0 of none.
func (h history) first() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].At
}

func (h history) last() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].At
}

// now is what the last record says.
func (h history) now() members { return h[len(h)-1].Value }

// state is the last name whose intent has happened.
func (h history) state(otherwise string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if len(h.of(pairs[i])) > 0 {
			otherwise = pairs[i+1]
		}
	}
	return otherwise
}

func rowsOf[T any](all map[int64]T, row func(int64, T) string) []string {
	var rows []string
	for k, it := range all {
		if text := row(k, it); text != "" {
			rows = append(rows, text)
		}
	}
	return rows
}

func (all exportedEvents) instances() []string {
	of := func(r exported) int64 { return r.Value.number("processInstanceKey") }
	return rowsOf(all.histories(of, "PROCESS_INSTANCE", "JOB", "INCIDENT"), func(k int64, h history) string {
		var own, incidents, failures history
		for _, r := range h {
			switch {
			case r.ValueType == "PROCESS_INSTANCE" && r.Key == k:
				own = append(own, r)
			case r.ValueType == "INCIDENT":
				incidents = append(incidents, r)
			case r.ValueType == "JOB" && r.Intent == "FAILED":
				failures = append(failures, r)
			}
		}
		now, first := own.now(), own[0].Value
		open := len(incidents.of("CREATED")) - len(incidents.of("RESOLVED"))
		state := own.state("ACTIVE", "ELEMENT_COMPLETED", "COMPLETED", "ELEMENT_TERMINATED", "CANCELED")
		return line(k, now.text("tenantId"), now.text("bpmnProcessId"), now.text("version"), now.text("processDefinitionKey"), first.text("bpmnProcessId"), first.text("version"),
			strings.TrimPrefix(now.key("parentProcessInstanceKey"), null), now.key("parentElementInstanceKey"),
			moment(own.of("ELEMENT_ACTIVATED").first()), moment(own.of("ELEMENT_COMPLETED").last()), moment(own.of("ELEMENT_TERMINATED").last()), moment(h.first()), moment(h.last()),
			state, len(incidents.of("CREATED")), open, len(failures))
	})
}

func (all exportedEvents) elements() []string {
	return rowsOf(all.histories(ownKey, "PROCESS_INSTANCE"), func(k int64, h history) string {
		now := h.now()
		if now.text("bpmnElementType") == "SEQUENCE_FLOW" {
			return ""
		}
		entered, activated := h.of("ELEMENT_ACTIVATING").first(), h.of("ELEMENT_ACTIVATED").first()
		completed, terminated := h.of("ELEMENT_COMPLETED").last(), h.of("ELEMENT_TERMINATED").last()
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("version"), now.text("elementId"), now.text("bpmnElementType"), now.key("flowScopeKey"),
			moment(entered), moment(activated), moment(completed), moment(terminated),
			h.state("", "ELEMENT_ACTIVATING", "ACTIVATING", "ELEMENT_ACTIVATED", "ACTIVE", "ELEMENT_COMPLETED", "COMPLETED", "ELEMENT_TERMINATED", "TERMINATED"),
			between(cmp.Or(activated, entered), max(completed, terminated)))
	})
}

func (all exportedEvents) jobs() []string {
	type batch struct {
		at      int64
		retries string
		worker  string
		last    exported
	}
	activated := map[int64]batch{}
	for _, r := range all {
		if r.ValueType != "JOB_BATCH" || r.Intent != "ACTIVATED" {
			continue
		}
		jobs := r.Value["jobs"].([]any)
		for i, k := range r.Value["jobKeys"].([]any) {
			n, _ := k.(json.Number).Int64()
			activated[n] = batch{r.At, members(jobs[i].(map[string]any)).text("retries"), r.Value.text("worker"), r}
		}
	}
	return rowsOf(all.histories(ownKey, "JOB"), func(k int64, h history) string {
		now, b := h.now(), activated[k]
		thrown := h.of("ERROR_THROWN")
		caught := slices.DeleteFunc(slices.Clone(thrown), func(r exported) bool { return r.Value.text("elementId") == "NO_CATCH_EVENT_FOUND" })
		state, worker, retries := "CREATED", "", now.text("retries")
		for _, r := range h {
			if r.Intent != "RETRIES_UPDATED" && r.Intent != "MIGRATED" {
				state, worker = r.Intent, r.Value.text("worker")
			}
		}
		if state == "CREATED" || b.at > 0 && b.last.Position > h[len(h)-1].Position {
			worker = ""
			if b.at > 0 {
				state, worker = "ACTIVATED", b.worker
			}
		}
		ended := max(h.of("COMPLETED", "CANCELED").last(), caught.last())
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("processDefinitionVersion"), now.text("elementId"), now.key("elementInstanceKey"), now.text("type"),
			state, worker, retries, moment(h.of("CREATED").first()), moment(b.at), moment(h.of("COMPLETED").last()), moment(h.of("CANCELED").last()),
			moment(ended), yes(ended == 0), len(h.of("FAILED")), len(h.of("TIMED_OUT")), len(thrown))
	})
}

func (all exportedEvents) incidents() []string {
	return rowsOf(all.histories(ownKey, "INCIDENT"), func(k int64, h history) string {
		now := h.now()
		resolved := h.of("RESOLVED").last()
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("elementId"), now.key("elementInstanceKey"), now.key("jobKey"),
			now.text("errorType"), now.text("errorMessage"), moment(h.of("CREATED").first()), moment(resolved), yes(resolved == 0))
	})
}

func (all exportedEvents) userTasks() []string {
	return rowsOf(all.histories(ownKey, "USER_TASK"), func(k int64, h history) string {
		now := h.now()
		if moved := h.of("MIGRATED"); len(moved) > 0 {
			now = moved.now() // CANCELING and CANCELED of a migrated task name what it was before
		}
		assignee, assigned := "", history{}
		for _, r := range h.of("CREATED", "ASSIGNED", "UPDATED") {
			assignee = r.Value.text("assignee")
			if assignee != "" && r.Intent != "UPDATED" {
				assigned = append(assigned, r)
			}
		}
		created := h.of("CREATED").first()
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("processDefinitionVersion"), now.text("elementId"), assignee,
			h.state("CREATED", "CANCELED", "CANCELED", "COMPLETED", "COMPLETED"), moment(created), moment(assigned.last()), moment(h.of("COMPLETED").last()), moment(h.of("CANCELED").last()),
			between(created, assigned.last()))
	})
}

func (all exportedEvents) decisions() []string {
	return rowsOf(all.histories(ownKey, "DECISION_EVALUATION"), func(k int64, h history) string {
		return line(k, h.now().text("decisionId"), h[0].Intent, h.now().text("decisionOutput"))
	})
}

func (all exportedEvents) escalations() []string {
	return rowsOf(all.histories(ownKey, "ESCALATION"), func(k int64, h history) string {
		now := h.now()
		return line(now.text("processInstanceKey"), k, now.text("escalationCode"), now.text("throwElementId"), now.text("catchElementId"), yes(h[0].Intent == "ESCALATED"), moment(h[0].At))
	})
}

func (all exportedEvents) migrations() []string {
	return rowsOf(all.histories(ownKey, "PROCESS_INSTANCE_MIGRATION"), func(_ int64, h history) string {
		return line(h.now().text("processInstanceKey"), h.now().text("targetProcessDefinitionKey"), moment(h[0].At))
	})
}

func (all exportedEvents) messages() []string {
	return rowsOf(all.histories(ownKey, "MESSAGE"), func(k int64, h history) string {
		now := h[0].Value // EXPIRED names the key alone
		return line(k, now.text("name"), now.text("correlationKey"), h.state("PUBLISHED", "EXPIRED", "EXPIRED"),
			moment(h.of("PUBLISHED").first()), moment(now.number("deadline")), moment(h.of("EXPIRED").last()))
	})
}

func (all exportedEvents) messageWaits() []string {
	return rowsOf(all.histories(ownKey, "PROCESS_MESSAGE_SUBSCRIPTION"), func(k int64, h history) string {
		now, correlated, deleted := h.now(), h.of("CORRELATED"), h.of("DELETED").last()
		interrupting := now["interrupting"].(bool)
		state := "WAITING"
		switch {
		case len(correlated) > 0 && (interrupting || deleted > 0):
			state = "CORRELATED"
		case deleted > 0:
			state = "DELETED"
		}
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("elementId"), now.text("messageName"), now.text("correlationKey"),
			state, yes(interrupting), len(correlated), moment(h.of("CREATING").first()), moment(correlated.first()), moment(correlated.last()), moment(deleted))
	})
}

func (all exportedEvents) timers() []string {
	return rowsOf(all.histories(ownKey, "TIMER"), func(k int64, h history) string {
		now, triggered := h.now(), h.of("TRIGGERED")
		instance, started := now.text("processInstanceKey"), ""
		if now.number("elementInstanceKey") == -1 {
			if len(triggered) > 0 {
				started = triggered.now().text("processInstanceKey")
			}
			instance = ""
		}
		return line(instance, k, now.text("processDefinitionKey"), now.text("targetElementId"), started, h.state("WAITING", "TRIGGERED", "TRIGGERED", "CANCELED", "CANCELED"),
			moment(now.number("dueDate")), moment(h.of("CREATED").first()), moment(triggered.last()), moment(h.of("CANCELED").last()))
	})
}

func (all exportedEvents) definitions() []string {
	of := func(r exported) int64 { return r.Value.number("processDefinitionKey") }
	return rowsOf(all.histories(of, "PROCESS"), func(k int64, h history) string {
		xml, err := base64.StdEncoding.DecodeString(h.of("CREATED")[0].Value.text("resource"))
		if err != nil {
			return fmt.Sprint(err)
		}
		at := func(h history) (all []int64) { // of several partitions
			for _, r := range h {
				all = append(all, r.At)
			}
			return slices.Sorted(slices.Values(append(all, slices.Repeat([]int64{0}, 1-min(1, len(h)))...)))
		}
		created, deleted := at(h.of("CREATED")), at(h.of("DELETED"))
		return line(k, h.now().text("bpmnProcessId"), h.now().text("version"), h.now().text("resourceName"), escaped(string(xml)), moment(created[0]), moment(deleted[len(deleted)-1]))
	})
}

func (all exportedEvents) variables() []string {
	return rowsOf(all.histories(ownKey, "VARIABLE"), func(k int64, h history) string {
		values := h.of("CREATED", "UPDATED")
		now := h.now()
		return line(now.text("processInstanceKey"), k, now.text("bpmnProcessId"), now.text("scopeKey"), now.text("name"), values[0].Value.text("value"), values.now().text("value"),
			moment(h.of("CREATED").first()), moment(values.last()), len(h.of("UPDATED")))
	})
}
