package oracle

import (
	"maps"
	"slices"
)

// instance is a process instance: v_process_instances.
type instance struct {
	tenant, process     string
	version, definition number
	processes           map[string]bool
	began               []string // process, version and definition of its first event
	migrated            last
	parent, caller      number
	business            string
	ofElements          bool // not of jobs and incidents alone
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
	i.version.most(r.version)
	i.definition.most(v.ProcessDefinitionKey)
	i.parent.most(v.ParentProcessInstanceKey)
	i.caller.most(v.ParentElementInstanceKey)
	if r.is("PROCESS_INSTANCE_CREATION") { // it adds the business key alone
		return
	}
	i.processes[string(v.BpmnProcessID)] = true
	i.firstSeen.least(r.at())
	i.lastSeen.most(r.at())
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

// takeProcess takes an event of the instance as a whole.
func (i *instance) takeProcess(r *record) {
	definition := []string{string(r.Value.BpmnProcessID), whole(r.version.n), whole(r.Value.ProcessDefinitionKey.n)}
	switch r.Intent {
	case "ELEMENT_ACTIVATING":
		if slices.Compare(i.began, definition) < 0 {
			i.began = definition
		}
	case "ELEMENT_ACTIVATED":
		i.startedAt.least(r.at())
	case "ELEMENT_MIGRATED":
		i.migrated.take(r, definition...)
	case "ELEMENT_COMPLETED":
		i.completed = true
		i.completedAt.most(r.at())
	case "ELEMENT_TERMINATED":
		i.ended = true
		i.terminatedAt.most(r.at())
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
		return "TERMINATED"
	case i.completed:
		return "COMPLETED"
	case i.open() > 0:
		return "INCIDENT"
	}
	return "ACTIVE"
}

func (f *folds) instanceTable() *Table {
	t := newTable("v_process_instances", 1, "process_instance_key", "tenant_id", "bpmn_process_id", "version", "process_definition_key",
		"first_bpmn_process_id", "first_version", "first_process_definition_key", "parent_process_instance_key", "parent_element_instance_key",
		"business_key", "processes", "started_at", "completed_at", "terminated_at", "first_seen", "last_seen", "state", "duration_ms",
		"incident_keys", "resolved_incident_keys", "incidents", "open_incidents", "job_failures")
	for key, i := range f.instances {
		if !i.ofElements {
			continue
		}
		first := i.began
		if first == nil {
			first = []string{i.process, i.version.cell(), i.definition.cell()}
		}
		end := i.completedAt
		if !end.known {
			end = i.terminatedAt
		}
		t.put(key, i.tenant, i.migrated.or(0, i.process), i.migrated.or(1, i.version.cell()), i.migrated.or(2, i.definition.cell()),
			first[0], first[1], first[2], i.parent.but(-1), i.caller.but(-1),
			i.business, texts(slices.Sorted(maps.Keys(i.processes))), i.startedAt.time(), i.completedAt.time(), i.terminatedAt.time(),
			i.firstSeen.time(), i.lastSeen.time(), i.state(), between(i.startedAt, end),
			keys(i.incidents), keys(i.resolved), whole(int64(len(i.incidents))), whole(int64(i.open())), whole(i.jobFailures))
	}
	return t
}

// element is an element instance: v_element_instances, v_active_elements.
type element struct {
	tenant, process, id, kind string
	version, scope            number
	migrated                  last
	stage                     int // 0 migrated alone, 1 entered, 2 activated, 3 completed, 4 terminated

	enteredAt, activatedAt, completedAt, terminatedAt number
}

func (e *element) take(r *record) {
	v := &r.Value
	greatest(&e.tenant, v.TenantID)
	greatest(&e.process, v.BpmnProcessID)
	greatest(&e.id, text(r.element))
	greatest(&e.kind, v.BpmnElementType)
	e.version.most(r.version)
	e.scope.most(v.FlowScopeKey)
	switch r.Intent {
	case "ELEMENT_ACTIVATING":
		e.stage = max(e.stage, 1)
		e.enteredAt.least(r.at())
	case "ELEMENT_ACTIVATED":
		e.stage = max(e.stage, 2)
		e.enteredAt.least(r.at())
		e.activatedAt.least(r.at())
	case "ELEMENT_COMPLETED":
		e.stage = max(e.stage, 3)
		e.completedAt.most(r.at())
	case "ELEMENT_TERMINATED":
		e.stage = 4
		e.terminatedAt.most(r.at())
	case "ELEMENT_MIGRATED":
		e.migrated.take(r, string(v.BpmnProcessID), whole(r.version.n), r.element)
	}
}

func (f *folds) elementTables() (all, active *Table) {
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
		all.put(append(cells[:len(cells):len(cells)], e.completedAt.time(), e.terminatedAt.time(), between(e.activatedAt, e.completedAt))...)
	}
	return all, active
}
