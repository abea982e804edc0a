package oracle

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
)

// instance is a process instance: v_process_instances.
type instance struct {
	tenant, process     string
	version, definition number
	processes           map[string]bool
	began               []string // 2 for ELEMENT_ACTIVATING, 1 for ELEMENT_ACTIVATED; then process, version and definition
	migrated            last
	parent, caller      number
	business            string // businessId
	businessVariable    last
	ofElements          bool // has records other than of jobs and incidents
	completed, ended    bool // ended: terminated

	startedAt, completedAt, terminatedAt, firstSeen, lastSeen number

	incidents, resolved map[int64]bool
	jobFailures         int64
}

func (i *instance) take(r *record) {
	v := &r.Value
	if i.processes == nil {
		i.processes, i.incidents, i.resolved = map[string]bool{}, map[int64]bool{}, map[int64]bool{}
	}
	greatest(&i.tenant, v.TenantID)
	greatest(&i.process, v.BpmnProcessID)
	greatest(&i.business, v.BusinessID)
	i.version.setMax(r.version)
	i.definition.setMax(v.ProcessDefinitionKey)
	i.parent.setMax(v.ParentProcessInstanceKey)
	i.caller.setMax(v.ParentElementInstanceKey)
	if r.is("PROCESS_INSTANCE_CREATION") { // it adds only the business key
		return
	}
	i.processes[string(v.BpmnProcessID)] = true
	i.firstSeen.setMin(r.at())
	i.lastSeen.setMax(r.at())
	switch r.ValueType {
	case "PROCESS_INSTANCE":
		i.ofElements = true
		if v.BpmnElementType == "PROCESS" {
			i.takeProcess(r)
		}
	case "INCIDENT":
		switch r.Intent {
		case "CREATED":
			i.incidents[r.Key.n] = true
		case "RESOLVED":
			i.resolved[r.Key.n] = true
		}
	case "JOB":
		if r.Intent == "FAILED" {
			i.jobFailures++
		}
	}
}

// takeBusinessKey adds a value of the business key's variable.
func (i *instance) takeBusinessKey(r *record) {
	greatest(&i.tenant, r.Value.TenantID)
	greatest(&i.process, r.Value.BpmnProcessID)
	i.version.setMax(r.version)
	i.definition.setMax(r.Value.ProcessDefinitionKey)
	value := string(r.Value.Value)
	var text string
	switch err := json.Unmarshal([]byte(value), &text); {
	case value == "null":
		value = ""
	case err == nil:
		value = text
	}
	i.businessVariable.take(r, value)
}

// takeProcess adds an event of the process element.
func (i *instance) takeProcess(r *record) {
	definition := []string{string(r.Value.BpmnProcessID), whole(r.version.n), whole(r.Value.ProcessDefinitionKey.n)}
	begins := func(rank string) {
		if began := slices.Concat([]string{rank}, definition); slices.Compare(i.began, began) < 0 {
			i.began = began
		}
	}
	switch r.Intent {
	case "ELEMENT_ACTIVATING":
		begins("2")
	case "ELEMENT_ACTIVATED":
		begins("1")
		i.startedAt.setMin(r.at())
	case "ELEMENT_MIGRATED":
		i.migrated.take(r, definition...)
	case "ELEMENT_COMPLETED":
		i.completed = true
		i.completedAt.setMax(r.at())
	case "ELEMENT_TERMINATED":
		i.ended = true
		i.terminatedAt.setMax(r.at())
	}
}

func (i *instance) open() (n int) {
	for key := range i.incidents {
		if !i.resolved[key] {
			n++
		}
	}
	return n
}

func (i *instance) state() string {
	switch {
	case i.ended:
		return "CANCELED"
	case i.completed:
		return "COMPLETED"
	}
	return "ACTIVE"
}

// first returns the process, version and definition with which the instance began.
func (i *instance) first() []string {
	switch {
	case i.began != nil:
		return i.began[1:]
	case i.migrated.known:
		return []string{"", null, null}
	}
	return []string{i.process, i.version.cell(), i.definition.cell()}
}

// callerKey returns the key of the calling instance, or "".
func (i *instance) callerKey() string {
	if i.parent.n <= 0 {
		return ""
	}
	return whole(i.parent.n)
}

// callers returns the calling instances, the nearest first.
func (f *aggregates) callers(key string) (all []string) {
	for i := f.instances[key]; i != nil && i.callerKey() != ""; i = f.instances[key] {
		key = i.callerKey()
		all = append(all, key)
	}
	return all
}

// openIncidents counts open incidents by instance: its own, and those of called instances.
func (f *aggregates) openIncidents() map[string]*[2]int64 {
	open := map[string]*[2]int64{}
	for of, incident := range f.incidents {
		if incident.resolved {
			continue
		}
		at(open, of.instance)[0]++
		for _, caller := range f.callers(of.instance) {
			at(open, caller)[1]++
		}
	}
	return open
}

// callTables returns v_incidents_below and v_called_instances.
func (f *aggregates) callTables() (below, called *Table) {
	below = newTable("v_incidents_below", 1, "process_instance_key", "own", "below")
	for key, n := range f.openIncidents() {
		below.put(key, whole(n[0]), whole(n[1]))
	}
	called = newTable("v_called_instances", 1, "process_instance_key", "root_process_instance_key", "parent_process_instance_key", "depth")
	for key := range f.instances {
		if callers := f.callers(key); len(callers) > 0 {
			called.put(key, callers[len(callers)-1], callers[0], whole(int64(len(callers))))
		}
	}
	return below, called
}

func (f *aggregates) instanceTable() *Table {
	t := newTable("v_process_instances", 1, "process_instance_key", "tenant_id", "bpmn_process_id", "version", "process_definition_key",
		"first_bpmn_process_id", "first_version", "first_process_definition_key", "parent_process_instance_key", "parent_element_instance_key",
		"root_process_instance_key", "business_key", "processes", "started_at", "completed_at", "terminated_at", "first_seen", "last_seen", "state", "duration_ms",
		"incident_keys", "resolved_incident_keys", "incidents", "open_incidents", "incidents_below", "has_incident", "job_failures")
	open := f.openIncidents()
	for key, i := range f.instances {
		if !i.ofElements {
			continue
		}
		first, callers, below := i.first(), append([]string{key}, f.callers(key)...), open[key]
		if below == nil {
			below = new([2]int64)
		}
		t.put(key, i.tenant, i.migrated.or(0, i.process), i.migrated.or(1, i.version.cell()), i.migrated.or(2, i.definition.cell()),
			first[0], first[1], first[2], i.callerKey(), i.caller.but(-1), callers[len(callers)-1],
			cmp.Or(i.business, i.businessVariable.or(0, "")), texts(slices.Sorted(maps.Keys(i.processes))), i.startedAt.time(), i.completedAt.time(), i.terminatedAt.time(),
			i.firstSeen.time(), i.lastSeen.time(), i.state(), between(i.startedAt, i.completedAt.or(i.terminatedAt)),
			keys(i.incidents), keys(i.resolved), whole(int64(len(i.incidents))), whole(int64(i.open())), whole(below[1]), flag(open[key] != nil), whole(i.jobFailures))
	}
	return t
}

// element is an element instance: v_element_instances, v_active_elements.
type element struct {
	tenant, process, id, kind string
	version, scope            number
	migrated                  last
	stage                     int // 0 migrated only, 1 entered, 2 activated, 3 completed, 4 terminated

	enteredAt, activatedAt, completedAt, terminatedAt number
}

func (e *element) take(r *record) {
	v := &r.Value
	greatest(&e.tenant, v.TenantID)
	greatest(&e.process, v.BpmnProcessID)
	greatest(&e.id, text(r.element))
	greatest(&e.kind, v.BpmnElementType)
	e.version.setMax(r.version)
	e.scope.setMax(v.FlowScopeKey)
	switch r.Intent {
	case "ELEMENT_ACTIVATING":
		e.stage = max(e.stage, 1)
		e.enteredAt.setMin(r.at())
	case "ELEMENT_ACTIVATED":
		e.stage = max(e.stage, 2)
		e.enteredAt.setMin(r.at())
		e.activatedAt.setMin(r.at())
	case "ELEMENT_COMPLETED":
		e.stage = max(e.stage, 3)
		e.completedAt.setMax(r.at())
	case "ELEMENT_TERMINATED":
		e.stage = 4
		e.terminatedAt.setMax(r.at())
	case "ELEMENT_MIGRATED":
		e.migrated.take(r, string(v.BpmnProcessID), whole(r.version.n), r.element)
	}
}

func (f *aggregates) elementTables() (all, active *Table) {
	columns := []string{"process_instance_key", "key", "tenant_id", "bpmn_process_id", "version", "element_id", "bpmn_element_type", "flow_scope_key",
		"entered_at", "activated_at", "state"}
	all = newTable("v_element_instances", 2, append(columns[:len(columns):len(columns)], "completed_at", "terminated_at", "duration_ms")...)
	active = newTable("v_active_elements", 2, columns...)
	for of, e := range f.elements {
		state := [...]string{"ACTIVE", "ACTIVATING", "ACTIVE", "COMPLETED", "TERMINATED"}[e.stage]
		cells := []string{of.instance, whole(of.key), e.tenant, e.migrated.or(0, e.process), e.migrated.or(1, e.version.cell()), e.migrated.or(2, e.id),
			e.kind, e.scope.but(-1), e.enteredAt.time(), e.activatedAt.time(), state}
		if e.stage < 3 {
			active.put(cells...)
		}
		all.put(append(cells[:len(cells):len(cells)], e.completedAt.time(), e.terminatedAt.time(), between(e.activatedAt.or(e.enteredAt), e.completedAt.or(e.terminatedAt)))...)
	}
	return all, active
}
