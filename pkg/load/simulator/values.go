package simulator

import (
	"encoding/base64"
	"strconv"
)

// of writes the members that identify the process of an object. Most types of records have its version in another member, or
// not at all.
func (o object) of(p Process) object {
	return o.text("bpmnProcessId", p.BpmnProcessID).number("processDefinitionKey", p.DefinitionKey)
}

type elementValue element

func (el *elementValue) appendTo(dst []byte) []byte {
	in := el.in
	return begin(dst).of(in.Process).number("version", in.Process.Version).number("processInstanceKey", in.Key).
		text("elementId", el.ID).number("flowScopeKey", el.FlowScope).text("bpmnElementType", el.Type).text("bpmnEventType", el.event).
		number("parentProcessInstanceKey", in.ParentInstance).number("parentElementInstanceKey", in.ParentElement).
		text("tenantId", in.Tenant).end()
}

type creationValue instance

func (in *creationValue) appendTo(dst []byte) []byte {
	return begin(dst).of(in.First).number("version", in.First.Version).number("processInstanceKey", in.Key).
		raw("variables", "{}").raw("fetchVariables", "[]").raw("startInstructions", "[]").text("tenantId", in.Tenant).end()
}

type instanceBatchValue element

func (el *instanceBatchValue) appendTo(dst []byte) []byte {
	return begin(dst).number("processInstanceKey", el.in.Key).number("batchElementInstanceKey", el.Key).
		number("index", int64(len(el.active))).text("tenantId", el.in.Tenant).end()
}

type variableValue variable

func (v *variableValue) appendTo(dst []byte) []byte {
	return begin(dst).quoted("name", v.Name).quoted("value", v.Value).number("scopeKey", v.Scope).
		number("processInstanceKey", v.in.Key).of(v.Process).text("tenantId", v.in.Tenant).end()
}

type migratedVariableValue variable

func (v *migratedVariableValue) appendTo(dst []byte) []byte {
	return begin(dst).quoted("name", v.Name).text("value", "null").number("scopeKey", v.Scope).
		number("processInstanceKey", v.in.Key).of(v.Process).text("tenantId", v.in.Tenant).end()
}

type documentValue element

func (el *documentValue) appendTo(dst []byte) []byte {
	return begin(dst).number("scopeKey", el.in.Key).text("updateSemantics", "PROPAGATE").
		raw("variables", `{"address":"Elbchaussee 1"}`).text("tenantId", el.in.Tenant).end()
}

type jobValue job

func (j *jobValue) appendTo(dst []byte) []byte {
	id, variables := j.ElementID, j.variables
	if j.marker {
		id = noCatchEvent
	}
	if variables == "" {
		variables = "{}"
	}
	return begin(dst).of(j.Process).number("processDefinitionVersion", j.Process.Version).number("processInstanceKey", j.in.Key).
		text("elementId", id).number("elementInstanceKey", j.el.Key).text("type", j.Type).text("worker", j.Worker).
		number("retries", j.Retries).number("deadline", j.Deadline).number("timeout", -1).number("retryBackoff", 0).number("recurringTime", -1).
		quoted("errorCode", j.ErrorCode).quoted("errorMessage", j.ErrorMessage).
		raw("customHeaders", `{"node":"`+j.el.node.id+`"}`).raw("variables", variables).
		text("jobKind", "BPMN_ELEMENT").text("jobListenerEventType", "UNSPECIFIED").text("tenantId", j.in.Tenant).end()
}

// jobBatchValue is a worker's request and its jobs.
type jobBatchValue struct {
	jobType, worker string
	jobs            []*job
	activated       bool
}

func (v *jobBatchValue) appendTo(dst []byte) []byte {
	o := begin(dst).text("type", v.jobType).text("worker", v.worker).number("timeout", jobTimeout.Milliseconds()).
		number("maxJobsToActivate", 32).raw("truncated", "false").raw("tenantIds", `["<default>"]`)
	o = append(o.name("jobKeys"), '[')
	for i, j := range v.jobs {
		if !v.activated {
			break
		}
		if i > 0 {
			o = append(o, ',')
		}
		o = strconv.AppendInt(o, j.Key, 10)
	}
	o = append(append(o, `],`...), `"jobs":[`...)
	for i, j := range v.jobs {
		if !v.activated {
			break
		}
		if i > 0 {
			o = append(o, ',')
		}
		o = (*jobValue)(j).appendTo(o)
	}
	return append(o, ']', '}')
}

type incidentValue incident

func (i *incidentValue) appendTo(dst []byte) []byte {
	return begin(dst).text("errorType", i.ErrorType).quoted("errorMessage", i.ErrorMessage).of(i.Process).
		number("processInstanceKey", i.in.Key).text("elementId", i.ElementID).number("elementInstanceKey", i.el.Key).
		number("jobKey", i.Job).number("variableScopeKey", i.el.Key).text("tenantId", i.in.Tenant).end()
}

func (ev *processEvent) appendTo(dst []byte) []byte {
	variables := "{}"
	if ev.variables != "" {
		variables = `{"result_` + ev.el.node.id + `":` + ev.variables + `}`
	}
	return begin(dst).number("scopeKey", ev.el.Key).number("processDefinitionKey", ev.el.Process.DefinitionKey).
		text("targetElementId", ev.target).number("processInstanceKey", ev.el.in.Key).raw("variables", variables).
		text("tenantId", ev.el.in.Tenant).end()
}

type userTaskValue userTask

func (t *userTaskValue) appendTo(dst []byte) []byte {
	return begin(dst).number("userTaskKey", t.Key).of(t.Process).number("processDefinitionVersion", t.Process.Version).
		number("processInstanceKey", t.in.Key).text("elementId", t.ElementID).number("elementInstanceKey", t.el.Key).
		quoted("assignee", t.Assignee).raw("candidateGroupsList", t.Groups).raw("candidateUsersList", "[]").
		text("dueDate", t.DueDate).text("followUpDate", "").text("externalFormReference", t.el.node.does).number("formKey", -1).
		number("priority", 50).text("action", t.action).raw("changedAttributes", "[]").raw("variables", "{}").raw("customHeaders", "{}").
		number("creationTimestamp", t.CreatedAt).text("tenantId", t.in.Tenant).end()
}

type timerValue waitingTimer

func (t *timerValue) appendTo(dst []byte) []byte {
	return begin(dst).number("elementInstanceKey", t.el.Key).number("processInstanceKey", t.el.in.Key).number("dueDate", t.DueAt).
		text("targetElementId", t.el.ID).number("repetitions", 1).number("processDefinitionKey", t.el.Process.DefinitionKey).
		text("tenantId", t.el.in.Tenant).end()
}

type instanceSubscriptionValue subscription

func (s *instanceSubscriptionValue) appendTo(dst []byte) []byte {
	return begin(dst).number("processInstanceKey", s.el.in.Key).number("elementInstanceKey", s.el.Key).
		text("bpmnProcessId", s.el.Process.BpmnProcessID).number("messageKey", s.message).text("messageName", s.el.node.does).
		raw("variables", "{}").raw("interrupting", "true").text("elementId", s.el.ID).text("correlationKey", s.Correlation).
		text("tenantId", s.el.in.Tenant).end()
}

type subscriptionValue subscription

func (s *subscriptionValue) appendTo(dst []byte) []byte {
	return begin(dst).number("processInstanceKey", s.el.in.Key).number("elementInstanceKey", s.el.Key).
		number("messageKey", s.message).text("messageName", s.el.node.does).text("correlationKey", s.Correlation).
		raw("interrupting", "true").raw("variables", "{}").text("tenantId", s.el.in.Tenant).end()
}

type messageValue struct {
	s        *subscription
	deadline int64 // epoch ms
}

func (m *messageValue) appendTo(dst []byte) []byte {
	return begin(dst).text("name", m.s.el.node.does).text("correlationKey", m.s.Correlation).text("messageId", "").
		number("timeToLive", 3_600_000).number("deadline", m.deadline).raw("variables", `{"paid":true}`).text("tenantId", m.s.el.in.Tenant).end()
}

type migrationValue struct {
	in     *instance
	target int64
}

func (m *migrationValue) appendTo(dst []byte) []byte {
	return begin(dst).number("processInstanceKey", m.in.Key).number("targetProcessDefinitionKey", m.target).
		raw("mappingInstructions", "[]").text("tenantId", m.in.Tenant).end()
}

// deploy deploys the processes. Partition 1 assigns the keys; all others write the same processes with them.
func (e *Engine) deploy() {
	e.processes = catalog()
	first := e.partitions[0]
	for _, pr := range e.processes {
		for v := int64(1); v <= versions; v++ {
			pr.versions = append(pr.versions, &definition{Process{e.cfg.Prefix + pr.id, v, first.nextKey()}, pr})
		}
	}
	tables := decisionTables()
	e.decisions = map[string]*decision{}
	for _, d := range tables {
		d.requirementsKey, d.key, d.needsKey = first.nextKey(), first.nextKey(), first.nextKey()
		e.decisions[d.id] = d
	}
	if truth := e.cfg.Truth; truth != nil {
		for _, pr := range e.processes {
			for _, d := range pr.versions {
				truth.Definitions = append(truth.Definitions, &Definition{Process: d.Process, Name: d.title(), XML: d.xml(), DeployedAt: e.ms()})
			}
		}
	}
	for _, p := range e.partitions {
		b := p.batch("DEPLOYMENT", "CREATE", -1, deploymentValue{})
		for _, pr := range e.processes {
			for _, d := range pr.versions {
				b.event("PROCESS", "CREATED", d.DefinitionKey, (*processValue)(d))
			}
		}
		b.deployDecisions(tables)
		b.event("DEPLOYMENT", "CREATED", p.nextKey(), deploymentValue{})
	}
	e.at(int64(e.cfg.Every), e.beginNext)
}

func (d *definition) title() string { return "The " + d.BpmnProcessID + " process" }

type processValue definition

func (d *processValue) appendTo(dst []byte) []byte {
	return begin(dst).text("bpmnProcessId", d.BpmnProcessID).number("version", d.Version).number("processDefinitionKey", d.DefinitionKey).
		text("resourceName", d.BpmnProcessID+".bpmn").text("checksum", "").text("resource", base64.StdEncoding.EncodeToString([]byte((*definition)(d).xml()))).
		raw("duplicate", "false").text("tenantId", "<default>").text("versionTag", "").end()
}

type deploymentValue struct{}

func (deploymentValue) appendTo(dst []byte) []byte {
	return begin(dst).raw("resources", "[]").raw("processesMetadata", "[]").text("tenantId", "<default>").end()
}
