package oracle

import (
	"cmp"
	"encoding/base64"
	"html"
	"regexp"
)

// waiting is a timer, an element's message subscription, or a message: v_timers,
// v_message_waits, v_messages.
type waiting struct {
	tenant, process, elementID, name, correlation string
	definition, elementInstance, due              number
	migrated                                      last
	stage                                         int // 1 waiting, 2 triggered, 3 ended
	correlations                                  int64
	stays                                         bool   // non-interrupting: survives a message
	started                                       string // instance that a start event's timer started
	createdAt, firstAt, happenedAt, endedAt       number
}

func (w *waiting) take(r *record) {
	v := &r.Value
	greatest(&w.tenant, v.TenantID)
	greatest(&w.process, v.BpmnProcessID)
	greatest(&w.elementID, text(r.element))
	greatest(&w.name, cmp.Or(v.Name, v.MessageName))
	greatest(&w.correlation, v.CorrelationKey)
	w.definition.setMax(v.ProcessDefinitionKey)
	w.elementInstance.setMax(v.ElementInstanceKey)
	due := v.Deadline.number
	if r.is("TIMER") {
		due = number{}
		if v.DueDate != nil {
			_ = due.UnmarshalJSON(v.DueDate) // never fails
		}
	}
	w.due.setMax(due)
	w.stays = w.stays || string(v.Interrupting) == "false"
	switch r.Intent {
	case "CANCELED", "DELETED", "EXPIRED":
		w.stage = 3
		w.endedAt.setMax(r.at())
		return
	case "TRIGGERED", "CORRELATED":
		w.stage = max(w.stage, 2)
		w.happenedAt.setMax(r.at())
		w.firstAt.setMin(r.at())
		if r.Intent == "CORRELATED" {
			w.correlations++
		}
		if r.ofStart() {
			greatest(&w.started, v.ProcessInstanceKey)
		}
		return
	case "CREATED", "CREATING", "PUBLISHED":
		w.createdAt.setMin(r.at())
	case "MIGRATED":
		w.migrated.take(r, string(v.BpmnProcessID), whole(v.ProcessDefinitionKey.n), r.element)
	}
	w.stage = max(w.stage, 1)
}

func (w *waiting) subscription() string {
	switch {
	case w.stage == 1 || w.stage == 2 && w.stays:
		return "WAITING"
	case w.correlations > 0:
		return "CORRELATED"
	}
	return "DELETED"
}

// dueAt returns the cell of a time; the placeholders 0 and less are null.
func dueAt(n number) string {
	n.known = n.known && n.n > 0
	return n.time()
}

func (f *aggregates) waitTables() (timers, subscriptions, messages *Table) {
	timers = newTable("v_timers", 2, "process_instance_key", "key", "tenant_id", "process_definition_key", "element_id", "element_instance_key", "state",
		"due_at", "created_at", "triggered_at", "canceled_at", "started_process_instance_key")
	subscriptions = newTable("v_message_waits", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "element_id", "element_instance_key",
		"message_name", "correlation_key", "state", "interrupting", "correlations",
		"created_at", "first_correlated_at", "correlated_at", "deleted_at")
	messages = newTable("v_messages", 1, "key", "tenant_id", "message_name", "correlation_key", "state", "published_at", "expires_at", "expired_at")
	for of, w := range f.waits {
		element := w.migrated.or(2, w.elementID)
		switch of.valueType {
		case "TIMER":
			timers.put(of.instance, whole(of.key), w.tenant, w.migrated.or(1, w.definition.cell()), element, w.elementInstance.but(-1),
				[...]string{"", "WAITING", "TRIGGERED", "CANCELED"}[w.stage], dueAt(w.due), w.createdAt.time(), w.happenedAt.time(), w.endedAt.time(), w.started)
		case "MESSAGE":
			messages.put(whole(of.key), w.tenant, w.name, w.correlation, [...]string{"", "PUBLISHED", "PUBLISHED", "EXPIRED"}[w.stage],
				w.createdAt.time(), dueAt(w.due), w.endedAt.time())
		default:
			subscriptions.put(of.instance, whole(of.key), w.tenant, w.migrated.or(0, w.process), element, w.elementInstance.cell(), w.name, w.correlation,
				w.subscription(), flag(!w.stays), whole(w.correlations), w.createdAt.time(), w.firstAt.time(), w.happenedAt.time(), w.endedAt.time())
		}
	}
	return timers, subscriptions, messages
}

// signal is a broadcast or a subscription: v_signals.
type signal struct {
	tenant, name, process, elementID string
	definition, elementInstance      number
	migrated                         last
	deleted                          bool
	createdAt, deletedAt             number
}

func (s *signal) take(r *record) {
	v := &r.Value
	greatest(&s.tenant, v.TenantID)
	greatest(&s.name, v.SignalName)
	greatest(&s.process, v.BpmnProcessID)
	greatest(&s.elementID, v.CatchEventID)
	s.definition.setMax(v.ProcessDefinitionKey)
	s.elementInstance.setMax(v.CatchEventInstanceKey)
	switch r.Intent {
	case "BROADCASTED", "CREATED":
		s.createdAt.setMin(r.at())
	case "DELETED":
		s.deleted = true
		s.deletedAt.setMax(r.at())
	case "MIGRATED":
		s.migrated.take(r, string(v.BpmnProcessID), whole(v.ProcessDefinitionKey.n), string(v.CatchEventID))
	}
}

func (f *aggregates) signalTable() *Table {
	t := newTable("v_signals", 2, "key", "kind", "tenant_id", "signal_name", "bpmn_process_id", "process_definition_key", "element_id",
		"element_instance_key", "state", "broadcast_at", "created_at", "deleted_at")
	for of, s := range f.signals {
		kind, state, broadcast, created := "SUBSCRIPTION", "WAITING", number{}, s.createdAt
		switch {
		case of.valueType == "SIGNAL":
			kind, state, broadcast, created = "BROADCAST", "BROADCASTED", s.createdAt, number{}
		case s.deleted:
			state = "DELETED"
		}
		t.put(whole(of.key), kind, s.tenant, s.name, s.migrated.or(0, s.process), s.migrated.or(1, s.definition.cell()), s.migrated.or(2, s.elementID),
			s.elementInstance.but(-1), state, broadcast.time(), created.time(), s.deletedAt.time())
	}
	return t
}

// decision is the evaluation of a decision: v_decisions.
type decision struct {
	tenant, process, elementID, id, name, requirements, output, failedID, failure string
	definition, elementInstance, version, key                                     number
	failed                                                                        bool
	evaluatedAt                                                                   number
}

func (d *decision) take(r *record) {
	v := &r.Value
	greatest(&d.tenant, v.TenantID)
	greatest(&d.process, v.BpmnProcessID)
	greatest(&d.elementID, text(r.element))
	greatest(&d.id, v.DecisionID)
	greatest(&d.name, v.DecisionName)
	greatest(&d.requirements, v.DecisionRequirementsID)
	greatest(&d.output, v.DecisionOutput)
	greatest(&d.failedID, v.FailedDecisionID)
	greatest(&d.failure, v.EvaluationFailureMessage)
	d.definition.setMax(v.ProcessDefinitionKey)
	d.elementInstance.setMin(v.ElementInstanceKey)
	d.version.setMax(v.DecisionVersion)
	d.key.setMax(v.DecisionKey)
	d.failed = d.failed || r.Intent == "FAILED"
	d.evaluatedAt.setMax(r.at())
}

func (f *aggregates) decisionTable() *Table {
	t := newTable("v_decisions", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "process_definition_key", "element_id", "element_instance_key",
		"decision_id", "decision_name", "decision_version", "decision_key", "requirements_id", "state", "output", "failed_decision_id", "failure", "evaluated_at")
	for of, d := range f.decisions {
		state := "EVALUATED"
		if d.failed {
			state = "FAILED"
		}
		t.put(of.instance, whole(of.key), d.tenant, d.process, d.definition.cell(), d.elementID, d.elementInstance.but(-1),
			d.id, d.name, d.version.cell(), d.key.cell(), d.requirements, state, d.output, d.failedID, d.failure, d.evaluatedAt.time())
	}
	return t
}

// definition is a deployed version of a process: v_process_definitions.
type definition struct {
	tenant, process, resource, xml string
	version, deployedAt, deletedAt number
}

func (d *definition) take(r *record) {
	v := &r.Value
	greatest(&d.tenant, v.TenantID)
	greatest(&d.process, v.BpmnProcessID)
	greatest(&d.resource, v.ResourceName)
	if xml, err := base64.StdEncoding.DecodeString(string(v.Resource)); err == nil {
		greatest(&d.xml, text(xml))
	}
	d.version.setMax(r.version)
	switch r.Intent {
	case "CREATED":
		d.deployedAt.setMin(r.at())
	case "DELETED":
		d.deletedAt.setMax(r.at())
	}
}

// tag matches an element of a diagram that has a name.
var (
	tag      = regexp.MustCompile(`<[\w:]+\s(?:[^>]*\s)?name="([^"]+)"[^>]*>`)
	idOfATag = regexp.MustCompile(`\sid="([^"]*)"`)
)

func (f *aggregates) definitionTable() *Table {
	t := newTable("v_process_definitions", 1, "process_definition_key", "tenant_id", "bpmn_process_id", "version", "name", "resource_name", "xml",
		"deployed_at", "deleted_at")
	for key, d := range f.definitions {
		name := ""
		for _, found := range tag.FindAllStringSubmatch(d.xml, -1) {
			if id := idOfATag.FindStringSubmatch(found[0]); id != nil && id[1] == d.process {
				name = html.UnescapeString(found[1])
			}
		}
		t.put(whole(key), d.tenant, d.process, d.version.cell(), name, d.resource, d.xml, d.deployedAt.time(), d.deletedAt.time())
	}
	return t
}
