package oracle

import "encoding/json"

// incident is an incident: v_incidents.
type incident struct {
	tenant, process, elementID, kind, message string
	elementInstance, job                      number
	migrated                                  last
	createdAt, resolvedAt                     number
	resolved                                  bool
}

func (i *incident) take(r *record) {
	v := &r.Value
	greatest(&i.tenant, v.TenantID)
	greatest(&i.process, v.BpmnProcessID)
	greatest(&i.elementID, text(r.element))
	greatest(&i.kind, v.ErrorType)
	greatest(&i.message, v.ErrorMessage)
	i.elementInstance.setMax(v.ElementInstanceKey)
	i.job.setMax(v.JobKey)
	switch r.Intent {
	case "CREATED":
		i.createdAt.setMin(r.at())
	case "RESOLVED":
		i.resolved = true
		i.resolvedAt.setMax(r.at())
	case "MIGRATED":
		i.migrated.take(r, string(v.BpmnProcessID), r.element)
	}
}

func (f *aggregates) incidentTable() *Table {
	t := newTable("v_incidents", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "element_id", "element_instance_key", "job_key",
		"error_type", "error_message", "created_at", "resolved_at", "open", "resolution_ms")
	for of, i := range f.incidents {
		t.put(of.instance, whole(of.key), i.tenant, i.migrated.or(0, i.process), i.migrated.or(1, i.elementID), i.elementInstance.cell(), i.job.but(-1),
			i.kind, i.message, i.createdAt.time(), i.resolvedAt.time(), flag(!i.resolved), between(i.createdAt, i.resolvedAt))
	}
	return t
}

// variable is a variable: v_variables.
type variable struct {
	tenant, process, name, first string
	scope                        number
	createdAt                    number
	updated, migrated            last
	changes                      int64
}

func (x *variable) take(r *record) {
	v := &r.Value
	greatest(&x.tenant, v.TenantID)
	greatest(&x.process, v.BpmnProcessID)
	greatest(&x.name, v.Name)
	x.scope.setMin(v.ScopeKey)
	switch r.Intent {
	case "CREATED":
		greatest(&x.first, v.Value)
		x.createdAt.setMin(r.at())
	case "UPDATED":
		x.updated.take(r, string(v.Value))
		x.changes++
	case "MIGRATED":
		x.migrated.take(r, string(v.BpmnProcessID))
	}
}

func (f *aggregates) variableTable() *Table {
	t := newTable("v_variables", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "scope_key", "name", "first_value", "value",
		"created_at", "updated_at", "changes")
	for of, x := range f.variables {
		updated := x.createdAt
		if x.updated.known {
			updated = x.updated.at()
		}
		t.put(of.instance, whole(of.key), x.tenant, x.migrated.or(0, x.process), x.scope.cell(), x.name, x.first, x.updated.or(0, x.first),
			x.createdAt.time(), updated.time(), whole(x.changes))
	}
	return t
}

// userTask is a user task of the engine: v_user_tasks.
type userTask struct {
	tenant, process, elementID     string
	version, elementInstance       number
	assigned, offered, migrated    last // assignee; due date and groups; process, version and element
	completed, canceled            bool
	createdAt, assignedAt, endedAt number
}

func (u *userTask) take(r *record) {
	v := &r.Value
	greatest(&u.tenant, v.TenantID)
	greatest(&u.process, v.BpmnProcessID)
	greatest(&u.elementID, text(r.element))
	u.version.setMax(r.version)
	u.elementInstance.setMin(v.ElementInstanceKey)
	if r.is("USER_TASK", "CREATED", "ASSIGNED", "UPDATED") {
		u.assigned.take(r, string(v.Assignee))
	}
	if r.is("USER_TASK", "CREATED", "ASSIGNED") && v.Assignee != "" {
		u.assignedAt.setMax(r.at())
	}
	if r.is("USER_TASK", "CREATED", "UPDATED") {
		u.offered.take(r, string(v.DueDate), string(v.CandidateGroupsList))
	}
	switch r.Intent {
	case "CREATED":
		u.createdAt.setMin(r.at())
	case "COMPLETED":
		u.completed = true
		u.endedAt.setMax(r.at())
	case "CANCELED":
		u.canceled = true
		u.endedAt.setMax(r.at())
	case "MIGRATED":
		u.migrated.take(r, string(v.BpmnProcessID), whole(r.version.n), r.element)
	}
}

func (f *aggregates) taskTable() *Table {
	t := newTable("v_user_tasks", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "version", "element_id", "element_instance_key",
		"assignee", "candidate_groups", "due_at", "state", "created_at", "assigned_at", "completed_at", "canceled_at", "waiting_ms", "handling_ms", "duration_ms")
	for of, u := range f.tasks {
		state, completed, canceled := "CREATED", number{}, number{}
		switch {
		case u.completed:
			state, completed = "COMPLETED", u.endedAt
		case u.canceled:
			state, canceled = "CANCELED", u.endedAt
		}
		var groups []string
		if json.Unmarshal([]byte(u.offered.or(1, "")), &groups) != nil {
			groups = nil // not a list
		}
		var due string
		if json.Unmarshal([]byte(u.offered.or(0, "")), &due) != nil {
			due = "" // not a text
		}
		t.put(of.instance, whole(of.key), u.tenant, u.migrated.or(0, u.process), u.migrated.or(1, u.version.cell()), u.migrated.or(2, u.elementID),
			u.elementInstance.cell(), u.assigned.or(0, ""), texts(groups), date(due).time(), state,
			u.createdAt.time(), u.assignedAt.time(), completed.time(), canceled.time(),
			between(u.createdAt, u.assignedAt), between(u.assignedAt, completed), between(u.createdAt, completed))
	}
	return t
}
