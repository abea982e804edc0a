package warehouse_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/load/simulator"
	"sluice/pkg/warehouse"
)

// compareWaits compares variables, user tasks, what elements wait for, decisions
// and definitions.
func compareWaits(t *testing.T, db *warehouse.DB, truths map[string]*simulator.Truth) {
	t.Helper()
	compareView(t, db, "v_variables", truths, func(truth *simulator.Truth) []*simulator.Variable { return truth.Variables }, []column[*simulator.Variable]{
		{name: "process_instance_key", truth: func(v *simulator.Variable) string { return number(v.Instance.Key) }},
		{name: "key", truth: func(v *simulator.Variable) string { return number(v.Key) }},
		{name: "tenant_id", truth: func(v *simulator.Variable) string { return v.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(v *simulator.Variable) string { return v.Process.BpmnProcessID }},
		{name: "scope_key", truth: func(v *simulator.Variable) string { return number(v.Scope) }},
		{name: "name", truth: func(v *simulator.Variable) string { return v.Name }},
		{name: "first_value", truth: func(v *simulator.Variable) string { return escaped(v.First) }},
		{name: "value", truth: func(v *simulator.Variable) string { return escaped(v.Value) }},
		{name: "created_at", truth: func(v *simulator.Variable) string { return moment(v.CreatedAt) }},
		{name: "updated_at", truth: func(v *simulator.Variable) string { return moment(v.UpdatedAt) }},
		{name: "changes", truth: func(v *simulator.Variable) string { return strconv.Itoa(v.Changes) }},
	})
	compareView(t, db, "v_user_tasks", truths, func(truth *simulator.Truth) []*simulator.UserTask { return truth.UserTasks }, []column[*simulator.UserTask]{
		{name: "process_instance_key", truth: func(u *simulator.UserTask) string { return number(u.Instance.Key) }},
		{name: "key", truth: func(u *simulator.UserTask) string { return number(u.Key) }},
		{name: "tenant_id", truth: func(u *simulator.UserTask) string { return u.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(u *simulator.UserTask) string { return u.Process.BpmnProcessID }},
		{name: "version", truth: func(u *simulator.UserTask) string { return number(u.Process.Version) }},
		{name: "element_id", truth: func(u *simulator.UserTask) string { return u.ElementID }},
		{name: "element_instance_key", truth: func(u *simulator.UserTask) string { return number(u.Element.Key) }},
		{name: "assignee", truth: func(u *simulator.UserTask) string { return u.Assignee }},
		{name: "candidate_groups", truth: func(u *simulator.UserTask) string { return strings.ReplaceAll(u.Groups, `"`, "'") }},
		{name: "due_at", truth: func(u *simulator.UserTask) string {
			due, err := time.Parse(time.RFC3339, u.DueDate)
			if err != nil {
				return null
			}
			return moment(due.UnixMilli())
		}},
		{name: "state", truth: func(u *simulator.UserTask) string { return u.State }},
		{name: "created_at", truth: func(u *simulator.UserTask) string { return moment(u.CreatedAt) }},
		{name: "assigned_at", truth: func(u *simulator.UserTask) string { return moment(u.AssignedAt) }},
		{name: "completed_at", truth: func(u *simulator.UserTask) string { return moment(u.CompletedAt) }},
		{name: "canceled_at", truth: func(u *simulator.UserTask) string { return moment(u.CanceledAt) }},
		{name: "waiting_ms", truth: func(u *simulator.UserTask) string { return between(u.CreatedAt, u.AssignedAt) }},
		{name: "handling_ms", truth: func(u *simulator.UserTask) string { return between(u.AssignedAt, u.CompletedAt) }},
		{name: "duration_ms", truth: func(u *simulator.UserTask) string { return between(u.CreatedAt, u.CompletedAt) }},
	})
	compareView(t, db, "v_timers", truths, func(truth *simulator.Truth) []*simulator.Timer { return truth.Timers }, []column[*simulator.Timer]{
		{name: "process_instance_key", truth: func(w *simulator.Timer) string { return number(w.Instance.Key) }},
		{name: "key", truth: func(w *simulator.Timer) string { return number(w.Key) }},
		{name: "tenant_id", truth: func(w *simulator.Timer) string { return w.Instance.Tenant }},
		{name: "process_definition_key", truth: func(w *simulator.Timer) string { return number(w.Element.Process.DefinitionKey) }},
		{name: "bpmn_process_id", truth: func(w *simulator.Timer) string { return w.Element.Process.BpmnProcessID }},
		{name: "element_id", truth: func(w *simulator.Timer) string { return w.Element.ID }},
		{name: "element_instance_key", truth: func(w *simulator.Timer) string { return number(w.Element.Key) }},
		{name: "state", truth: func(w *simulator.Timer) string {
			return waitState(w.TriggeredAt, "TRIGGERED", w.CanceledAt, "CANCELED")
		}},
		{name: "due_at", truth: func(w *simulator.Timer) string { return moment(w.DueAt) }},
		{name: "created_at", truth: func(w *simulator.Timer) string { return moment(w.CreatedAt) }},
		{name: "triggered_at", truth: func(w *simulator.Timer) string { return moment(w.TriggeredAt) }},
		{name: "canceled_at", truth: func(w *simulator.Timer) string { return moment(w.CanceledAt) }},
	})
	compareView(t, db, "v_message_waits", truths, func(truth *simulator.Truth) []*simulator.MessageWait { return truth.Waits }, []column[*simulator.MessageWait]{
		{name: "process_instance_key", truth: func(w *simulator.MessageWait) string { return number(w.Instance.Key) }},
		{name: "key", truth: func(w *simulator.MessageWait) string { return number(w.Key) }},
		{name: "tenant_id", truth: func(w *simulator.MessageWait) string { return w.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(w *simulator.MessageWait) string { return w.Process.BpmnProcessID }},
		{name: "element_id", truth: func(w *simulator.MessageWait) string { return w.Element.ID }},
		{name: "element_instance_key", truth: func(w *simulator.MessageWait) string { return number(w.Element.Key) }},
		{name: "message_name", truth: func(w *simulator.MessageWait) string { return w.Name }},
		{name: "correlation_key", truth: func(w *simulator.MessageWait) string { return w.Correlation }},
		{name: "state", truth: func(w *simulator.MessageWait) string {
			return waitState(w.CorrelatedAt, "CORRELATED", w.DeletedAt, "DELETED")
		}},
		{name: "interrupting", truth: func(*simulator.MessageWait) string { return "1" }},
		{name: "correlations", truth: func(w *simulator.MessageWait) string { return yes(w.CorrelatedAt > 0) }},
		{name: "first_correlated_at", truth: func(w *simulator.MessageWait) string { return moment(w.CorrelatedAt) }},
		{name: "created_at", truth: func(w *simulator.MessageWait) string { return moment(w.CreatedAt) }},
		{name: "correlated_at", truth: func(w *simulator.MessageWait) string { return moment(w.CorrelatedAt) }},
		{name: "deleted_at", truth: func(w *simulator.MessageWait) string { return moment(w.DeletedAt) }},
	})
	compareView(t, db, "v_messages", truths, func(truth *simulator.Truth) []*simulator.Message { return truth.Messages }, []column[*simulator.Message]{
		{name: "key", truth: func(m *simulator.Message) string { return number(m.Key) }},
		{name: "tenant_id", truth: func(m *simulator.Message) string { return m.Tenant }},
		{name: "message_name", truth: func(m *simulator.Message) string { return m.Name }},
		{name: "correlation_key", truth: func(m *simulator.Message) string { return m.Correlation }},
		{name: "state", truth: func(m *simulator.Message) string {
			if m.ExpiredAt > 0 {
				return "EXPIRED"
			}
			return "PUBLISHED"
		}},
		{name: "published_at", truth: func(m *simulator.Message) string { return moment(m.PublishedAt) }},
		{name: "expires_at", truth: func(m *simulator.Message) string { return moment(m.ExpiresAt) }},
		{name: "expired_at", truth: func(m *simulator.Message) string { return moment(m.ExpiredAt) }},
	})
	compareView(t, db, "v_decisions", truths, func(truth *simulator.Truth) []*simulator.Decision { return truth.Decisions }, []column[*simulator.Decision]{
		{name: "process_instance_key", truth: func(d *simulator.Decision) string { return number(d.Instance.Key) }},
		{name: "key", truth: func(d *simulator.Decision) string { return number(d.Key) }},
		{name: "tenant_id", truth: func(d *simulator.Decision) string { return d.Instance.Tenant }},
		{name: "bpmn_process_id", truth: func(d *simulator.Decision) string { return d.Process.BpmnProcessID }},
		{name: "process_definition_key", truth: func(d *simulator.Decision) string { return number(d.Process.DefinitionKey) }},
		{name: "element_id", truth: func(d *simulator.Decision) string { return d.ElementID }},
		{name: "element_instance_key", truth: func(d *simulator.Decision) string { return number(d.Element.Key) }},
		{name: "decision_id", truth: func(d *simulator.Decision) string { return d.ID }},
		{name: "decision_name", truth: func(d *simulator.Decision) string { return d.Name }},
		{name: "decision_version", truth: func(d *simulator.Decision) string { return number(d.Version) }},
		{name: "decision_key", truth: func(d *simulator.Decision) string { return number(d.DecisionKey) }},
		{name: "requirements_id", truth: func(d *simulator.Decision) string { return d.Requirements }},
		{name: "state", truth: decisionState},
		{name: "output", truth: func(d *simulator.Decision) string { return escaped(d.Output) }},
		{name: "failed_decision_id", truth: func(d *simulator.Decision) string { return d.FailedID }},
		{name: "failure", truth: func(d *simulator.Decision) string { return escaped(d.Failure) }},
		{name: "evaluated_at", truth: func(d *simulator.Decision) string { return moment(d.EvaluatedAt) }},
	})
	compareView(t, db, "v_process_definitions", truths, func(truth *simulator.Truth) []*simulator.Definition { return truth.Definitions }, []column[*simulator.Definition]{
		{name: "process_definition_key", truth: func(d *simulator.Definition) string { return number(d.DefinitionKey) }},
		{name: "tenant_id", truth: func(*simulator.Definition) string { return "<default>" }},
		{name: "bpmn_process_id", truth: func(d *simulator.Definition) string { return d.BpmnProcessID }},
		{name: "version", truth: func(d *simulator.Definition) string { return number(d.Version) }},
		{name: "name", truth: func(d *simulator.Definition) string { return d.Name }},
		{name: "resource_name", truth: func(d *simulator.Definition) string { return d.BpmnProcessID + ".bpmn" }},
		{name: "xml", truth: func(d *simulator.Definition) string { return escaped(d.XML) }},
		{name: "deployed_at", truth: func(d *simulator.Definition) string { return moment(d.DeployedAt) }},
		{name: "deleted_at", truth: func(*simulator.Definition) string { return null }},
	})
}

func decisionState(d *simulator.Decision) string {
	if d.Failure != "" {
		return "FAILED"
	}
	return "EVALUATED"
}

func waitState(happened int64, as string, ended int64, or string) string {
	switch {
	case happened > 0:
		return as
	case ended > 0:
		return or
	}
	return "WAITING"
}
