package warehouse_test

import (
	"slices"
	"strings"
	"time"

	"sluice/pkg/load/simulator"
)

// truthsOfWaits are truths of variables, user tasks, timers, messages, decisions and definitions.
func truthsOfWaits() map[string]func(*world, asking) []string {
	return map[string]func(*world, asking) []string{
		"variable_filter": func(w *world, a asking) []string {
			var out []string
			for _, o := range w.variables(a) {
				v := o.it
				if v.Value == a.value && a.of(v.Process.BpmnProcessID, v.Instance.Tenant) {
					out = append(out, line(o.source, v.Instance.Key, v.Process.BpmnProcessID, v.Name, escaped(v.Value), escaped(v.First), v.Changes, moment(v.UpdatedAt)))
				}
			}
			return out
		},
		"durations_by_variable": func(w *world, a asking) []string {
			values := map[*simulator.Instance]string{}
			for _, o := range w.variables(a) {
				values[o.it.Instance] = o.it.Value
			}
			all := slices.DeleteFunc(w.completed(a), func(o found[*simulator.Instance]) bool { return values[o.it] == "" })
			return lines(all, func(o found[*simulator.Instance]) string { return line(o.source, escaped(values[o.it])) }, func(all []found[*simulator.Instance]) []any {
				ms := collect(all, instanceTook)
				return []any{len(all), quantile(ms, 0.5), quantile(ms, 0.95)}
			})
		},
		"user_tasks":       userTasks,
		"overdue_tasks":    overdueTasks,
		"overdue_timers":   overdueTimers,
		"message_waits":    messageWaits,
		"decision_results": decisionResults,
		"failed_decisions": failedDecisions,
		"definitions":      definitions,
	}
}

// variables are those of the instances' own scope with this name.
func (w *world) variables(a asking) []found[*simulator.Variable] {
	return gather(w, func(t *simulator.Truth) []*simulator.Variable { return t.Variables }, func(v *simulator.Variable) bool {
		return v.Name == a.name && v.Scope == v.Instance.Key
	})
}

func (w *world) tasks(which func(*simulator.UserTask) bool) []found[*simulator.UserTask] {
	return gather(w, func(t *simulator.Truth) []*simulator.UserTask { return t.UserTasks }, which)
}

func groups(u *simulator.UserTask) string { return strings.ReplaceAll(u.Groups, `"`, "'") }

func userTasks(w *world, a asking) []string {
	return lines(w.tasks(func(u *simulator.UserTask) bool {
		return a.when(u.CreatedAt) && a.of(u.Process.BpmnProcessID, u.Instance.Tenant)
	}), func(o found[*simulator.UserTask]) string { return line(o.source, o.it.Assignee, groups(o.it)) }, func(all []found[*simulator.UserTask]) []any {
		in := func(state string) int {
			return count(all, func(o found[*simulator.UserTask]) bool { return o.it.State == state })
		}
		waiting := collect(all, func(o found[*simulator.UserTask]) (int64, bool) { return lasted(o.it.CreatedAt, o.it.AssignedAt) })
		handling := collect(all, func(o found[*simulator.UserTask]) (int64, bool) { return lasted(o.it.AssignedAt, o.it.CompletedAt) })
		return []any{len(all), in("COMPLETED"), in("CREATED"), quantile(waiting, 0.5), quantile(waiting, 0.95), quantile(handling, 0.5), quantile(handling, 0.95)}
	})
}

func overdueTasks(w *world, a asking) []string {
	var out []string
	for _, o := range w.tasks(func(u *simulator.UserTask) bool {
		return u.State == simulator.TaskCreated && a.of(u.Process.BpmnProcessID, u.Instance.Tenant)
	}) {
		u := o.it
		due, err := time.Parse(time.RFC3339, u.DueDate)
		if err == nil && due.UnixMilli() < a.now {
			out = append(out, line(o.source, u.Process.BpmnProcessID, u.Instance.Key, u.ElementID, u.Key, u.Assignee, groups(u), moment(due.UnixMilli()), a.now-due.UnixMilli()))
		}
	}
	return out
}

func overdueTimers(w *world, a asking) []string {
	var out []string
	for _, o := range gather(w, func(t *simulator.Truth) []*simulator.Timer { return t.Timers }, func(x *simulator.Timer) bool {
		return x.TriggeredAt == 0 && x.CanceledAt == 0 && x.DueAt < a.now && a.of(x.Element.Process.BpmnProcessID, x.Instance.Tenant)
	}) {
		x := o.it
		out = append(out, line(o.source, x.Element.Process.BpmnProcessID, x.Instance.Key, x.Element.ID, x.Key, moment(x.DueAt), a.now-x.DueAt))
	}
	return out
}

func messageWaits(w *world, a asking) []string {
	return lines(gather(w, func(t *simulator.Truth) []*simulator.MessageWait { return t.Waits }, func(x *simulator.MessageWait) bool {
		return a.when(x.CreatedAt) && a.of(x.Process.BpmnProcessID, x.Instance.Tenant)
	}), func(o found[*simulator.MessageWait]) string {
		return line(o.source, o.it.Process.BpmnProcessID, o.it.Element.ID, o.it.Name)
	}, func(all []found[*simulator.MessageWait]) []any {
		state := func(x *simulator.MessageWait) string {
			return waitState(x.CorrelatedAt, "CORRELATED", x.DeletedAt, "DELETED")
		}
		in := func(s string) int {
			return count(all, func(o found[*simulator.MessageWait]) bool { return state(o.it) == s })
		}
		took := collect(all, func(o found[*simulator.MessageWait]) (int64, bool) { return lasted(o.it.CreatedAt, o.it.CorrelatedAt) })
		waits := collect(all, func(o found[*simulator.MessageWait]) (int64, bool) {
			return a.now - o.it.CreatedAt, state(o.it) == "WAITING"
		})
		return []any{len(all), in("WAITING"), len(took), len(took), quantile(took, 0.5), quantile(took, 0.95), last(waits)}
	})
}

func (w *world) decisions(a asking) []found[*simulator.Decision] {
	return gather(w, func(t *simulator.Truth) []*simulator.Decision { return t.Decisions }, func(d *simulator.Decision) bool {
		return a.when(d.EvaluatedAt) && a.of(d.Process.BpmnProcessID, d.Instance.Tenant)
	})
}

func decisionResults(w *world, a asking) []string {
	all := w.decisions(a)
	task := func(o found[*simulator.Decision]) string {
		return line(o.source, o.it.ID, o.it.Version, o.it.Process.BpmnProcessID, o.it.ElementID)
	}
	whole := map[string]int{}
	for _, o := range all {
		whole[task(o)]++
	}
	return lines(all, func(o found[*simulator.Decision]) string {
		return line(task(o), decisionState(o.it), escaped(o.it.Output))
	}, func(all []found[*simulator.Decision]) []any {
		return []any{len(all), share(len(all), whole[task(all[0])]), distinct(all, func(o found[*simulator.Decision]) int64 { return o.it.Instance.Key })}
	})
}

func failedDecisions(w *world, a asking) []string {
	open := map[*simulator.Element]bool{}
	for _, o := range w.incidents(func(i *simulator.Incident) bool {
		return i.ErrorType == "DECISION_EVALUATION_ERROR" && i.ResolvedAt == 0
	}) {
		open[o.it.Element] = true
	}
	failed := slices.DeleteFunc(w.decisions(a), func(o found[*simulator.Decision]) bool { return o.it.Failure == "" })
	return lines(failed, func(o found[*simulator.Decision]) string {
		return line(o.source, o.it.ID, o.it.FailedID, escaped(o.it.Failure))
	}, func(all []found[*simulator.Decision]) []any {
		at := collect(all, func(o found[*simulator.Decision]) (int64, bool) { return o.it.EvaluatedAt, true })
		waiting := map[*simulator.Element]bool{}
		for _, o := range all {
			if open[o.it.Element] {
				waiting[o.it.Element] = true
			}
		}
		return []any{len(all), distinct(all, func(o found[*simulator.Decision]) int64 { return o.it.Instance.Key }), len(waiting), moment(last(at).(int64))}
	})
}

func definitions(w *world, _ asking) []string {
	var out []string
	for _, o := range gather(w, func(t *simulator.Truth) []*simulator.Definition { return t.Definitions }, func(*simulator.Definition) bool { return true }) {
		d := o.it
		active, all := 0, 0
		for _, i := range w.truths[o.source].Instances {
			if i.Process == d.Process {
				all++
				if i.CompletedAt == 0 && i.TerminatedAt == 0 {
					active++
				}
			}
		}
		out = append(out, line(o.source, d.BpmnProcessID, d.Version, d.Name, d.DefinitionKey, moment(d.DeployedAt), null, active, all))
	}
	return out
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
