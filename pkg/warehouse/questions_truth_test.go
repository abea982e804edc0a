package warehouse_test

import (
	"cmp"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/load/simulator"
)

// truths compute the questions' results from the simulation's events, in any order.
func truths() map[string]func(*world, asking) []string {
	return map[string]func(*world, asking) []string{
		"durations": func(w *world, a asking) []string {
			return lines(w.completed(a), func(o found[*simulator.Instance]) string {
				return line(o.source, o.it.Process.BpmnProcessID, o.it.Process.Version, o.it.Tenant)
			}, func(all []found[*simulator.Instance]) []any {
				ms := collect(all, w.ownTime(a.tree))
				return []any{len(all), math.RoundToEven(float64(sum(ms)) / float64(len(ms))), quantile(ms, 0.5), quantile(ms, 0.9), quantile(ms, 0.95), quantile(ms, 0.99), last(ms)}
			})
		},
		"heatmap":           heatmap,
		"incident_rate":     incidentRate,
		"incidents_by_type": incidentsByType,
		"automation_rate": func(w *world, a asking) []string {
			people := map[*simulator.Instance]bool{}
			for _, o := range w.elements(func(e *simulator.Element) bool { return e.Type == "USER_TASK" }) {
				people[o.it.Instance] = true
				for _, caller := range above(w.truths[o.source], o.it.Instance) {
					people[caller] = people[caller] || a.tree == "1"
				}
			}
			return w.completedShare(a, func(i *simulator.Instance) bool { return !people[i] })
		},
		"incident_free_rate": func(w *world, a asking) []string {
			return w.completedShare(a, func(i *simulator.Instance) bool { return i.Incidents == 0 })
		},
		"bottlenecks":      bottlenecks,
		"outliers":         outliers,
		"funnel":           funnel,
		"variants":         variants,
		"directly_follows": directlyFollows,
		"job_latency": func(w *world, a asking) []string {
			return lines(w.jobs(func(j *simulator.Job) bool {
				return j.State == simulator.JobCompleted && a.when(j.CreatedAt) && a.of(j.Process.BpmnProcessID, j.Instance.Tenant)
			}), func(o found[*simulator.Job]) string { return line(o.source, o.it.Type) }, func(all []found[*simulator.Job]) []any {
				queue := collect(all, func(o found[*simulator.Job]) (int64, bool) { return lasted(o.it.CreatedAt, o.it.ActivatedAt) })
				work := collect(all, func(o found[*simulator.Job]) (int64, bool) { return lasted(o.it.ActivatedAt, o.it.CompletedAt) })
				total := collect(all, jobTook)
				return []any{len(all), quantile(queue, 0.5), quantile(queue, 0.95), quantile(work, 0.5), quantile(work, 0.95), quantile(total, 0.5), quantile(total, 0.95)}
			})
		},
		"workers": func(w *world, a asking) []string {
			return lines(w.happened(func(v event) bool {
				return v.ValueType == "JOB" && v.Value.Worker != "" && slices.Contains([]string{"COMPLETED", "FAILED", "TIMED_OUT", "ERROR_THROWN"}, v.Intent) &&
					a.when(v.At) && a.of(v.Value.Process, v.Value.Tenant)
			}), func(v event) string { return line(v.Source, v.Value.Worker, v.Value.JobType) }, func(all []event) []any {
				of := func(intent string) int { return count(all, func(v event) bool { return v.Intent == intent }) }
				return []any{of("COMPLETED"), of("FAILED"), of("TIMED_OUT"), of("ERROR_THROWN"), share(of("FAILED"), len(all))}
			})
		},
		"retries_exhausted": func(w *world, a asking) []string {
			all := lines(w.jobs(func(j *simulator.Job) bool {
				return a.when(j.CreatedAt) && a.of(j.Process.BpmnProcessID, j.Instance.Tenant)
			}),
				func(o found[*simulator.Job]) string { return line(o.source, o.it.Process.BpmnProcessID, o.it.Type) },
				func(all []found[*simulator.Job]) []any {
					return []any{len(all), count(all, func(o found[*simulator.Job]) bool { return o.it.MinRetries == 0 }), count(all, func(o found[*simulator.Job]) bool {
						return o.it.Retries == 0 && o.it.State != simulator.JobCompleted && o.it.State != simulator.JobCanceled
					})}
				})
			return slices.DeleteFunc(all, func(s string) bool { return strings.Split(s, "\t")[4] == "0" })
		},
		"deadline_breaches": func(w *world, a asking) []string {
			return lines(w.jobs(func(j *simulator.Job) bool {
				return a.when(j.CreatedAt) && a.of(j.Process.BpmnProcessID, j.Instance.Tenant)
			}),
				func(o found[*simulator.Job]) string { return line(o.source, o.it.Type) },
				func(all []found[*simulator.Job]) []any {
					timedOut := func(o found[*simulator.Job]) bool { return o.it.TimeOuts > 0 }
					late := func(o found[*simulator.Job]) bool { return lateness(o.it) > 0 }
					timeouts := collect(all, func(o found[*simulator.Job]) (int64, bool) { return int64(o.it.TimeOuts), true })
					behind := collect(all, func(o found[*simulator.Job]) (int64, bool) { return lateness(o.it), true })
					return []any{len(all), count(all, timedOut), sum(timeouts), count(all, late), last(behind),
						share(count(all, func(o found[*simulator.Job]) bool { return timedOut(o) || late(o) }), len(all))}
				})
		},
		"error_patterns": func(w *world, a asking) []string {
			digits := regexp.MustCompile(`[0-9]+`)
			return lines(w.happened(func(v event) bool {
				return v.ValueType == "JOB" && v.Intent == "FAILED" && a.when(v.At) && a.of(v.Value.Process, v.Value.Tenant)
			}), func(v event) string {
				return line(v.Source, v.Value.JobType, v.Value.ErrorCode, escaped(digits.ReplaceAllString(v.Value.Error, "#")))
			}, func(all []event) []any {
				at := collect(all, func(v event) (int64, bool) { return v.At, true })
				return []any{len(all), distinct(all, func(v event) int64 { return v.Value.Instance }), moment(at[len(at)-1])}
			})
		},
		"error_text":       errorText,
		"throughput":       throughput,
		"work_in_progress": workInProgress,
		"targets":          targets,
		"rework":           rework,
		"handover":         handover,
		"period_comparison": func(w *world, a asking) []string {
			before := a
			before.from = cmp.Or(a.against, 2*a.from-a.to)
			before.to = before.from + a.to - a.from
			return lines(w.instances(func(i *simulator.Instance) bool { return a.began(i) || before.began(i) }), func(o found[*simulator.Instance]) string {
				return line(o.source, o.it.Process.BpmnProcessID)
			}, func(all []found[*simulator.Instance]) []any {
				n, b := a.period(all), before.period(all)
				change := any(null)
				if p50, known := b[3].(float64); known && n[3] != null {
					change = rounded(n[3].(float64)/p50 - 1)
				}
				return []any{n[0], b[0], n[1], b[1], n[2], b[2], n[3], b[3], n[4], b[4], change, n[5], b[5]}
			})
		},
		"stuck": stuck,
		"version_comparison": func(w *world, a asking) []string {
			return w.compared(a, func(i *simulator.Instance) string { return line(i.Process.BpmnProcessID, i.Process.Version) })
		},
		"tenant_comparison": func(w *world, a asking) []string {
			a.tenant = ""
			return w.compared(a, func(i *simulator.Instance) string { return i.Tenant })
		},
		"timeline":      timeline,
		"instance_tree": instanceTree,
		"usage":         usage,
	}
}

func (w *world) started(a asking) []found[*simulator.Instance] {
	return w.instances(a.began)
}

func (w *world) completed(a asking) []found[*simulator.Instance] {
	return slices.DeleteFunc(w.started(a), func(o found[*simulator.Instance]) bool { return o.it.CompletedAt == 0 })
}

func (w *world) happened(which func(event) bool) []event {
	var all []event
	for _, v := range w.events {
		if which(v) {
			all = append(all, v)
		}
	}
	return all
}

func (w *world) completedShare(a asking, which func(*simulator.Instance) bool) []string {
	return lines(w.completed(a), func(o found[*simulator.Instance]) string {
		return line(o.source, o.it.Process.BpmnProcessID, o.it.Process.Version)
	}, func(all []found[*simulator.Instance]) []any {
		n := count(all, func(o found[*simulator.Instance]) bool { return which(o.it) })
		return []any{len(all), n, share(n, len(all))}
	})
}

func (w *world) compared(a asking, by func(*simulator.Instance) string) []string {
	return lines(w.started(a), func(o found[*simulator.Instance]) string { return line(o.source, by(o.it)) }, func(all []found[*simulator.Instance]) []any {
		in := func(state string) int {
			return count(all, func(o found[*simulator.Instance]) bool { return instanceState(o.it) == state })
		}
		ms := collect(all, instanceTook)
		failures := collect(all, func(o found[*simulator.Instance]) (int64, bool) { return int64(o.it.JobFailures), true })
		return []any{len(all), in("COMPLETED"), in("CANCELED"), quantile(ms, 0.5), quantile(ms, 0.95),
			share(count(all, func(o found[*simulator.Instance]) bool { return o.it.Incidents > 0 }), len(all)), share(int(sum(failures)), len(all))}
	})
}

func heatmap(w *world, a asking) []string {
	failed := map[*simulator.Element]bool{}
	for _, o := range w.incidents(func(*simulator.Incident) bool { return true }) {
		failed[o.it.Element] = true
	}
	return lines(w.elements(func(e *simulator.Element) bool {
		return a.when(e.EnteredAt) && a.of(e.Process.BpmnProcessID, e.Instance.Tenant)
	}),
		func(o found[*simulator.Element]) string {
			return line(o.source, o.it.Process.BpmnProcessID, o.it.ID, o.it.Type)
		},
		func(all []found[*simulator.Element]) []any {
			in := func(states ...string) int {
				return count(all, func(o found[*simulator.Element]) bool { return slices.Contains(states, elementState(o.it)) })
			}
			ms := collect(all, func(o found[*simulator.Element]) (int64, bool) { return elementTook(o.it, a.now) })
			var total any = null
			if len(ms) > 0 {
				total = sum(ms)
			}
			return []any{len(all), in("ACTIVATING", "ACTIVE"), in("TERMINATED"), count(all, func(o found[*simulator.Element]) bool { return failed[o.it] }),
				quantile(ms, 0.5), quantile(ms, 0.95), total}
		})
}

func incidentRate(w *world, a asking) []string {
	perInstance := map[*simulator.Instance][]*simulator.Incident{}
	for _, o := range w.incidents(func(*simulator.Incident) bool { return true }) {
		perInstance[o.it.Instance] = append(perInstance[o.it.Instance], o.it)
	}
	return lines(w.started(a), func(o found[*simulator.Instance]) string { return line(o.source, o.it.Process.BpmnProcessID) }, func(all []found[*simulator.Instance]) []any {
		var incidents []*simulator.Incident
		for _, o := range all {
			incidents = append(incidents, perInstance[o.it]...)
		}
		ms := collect(incidents, func(i *simulator.Incident) (int64, bool) { return lasted(i.CreatedAt, i.ResolvedAt) })
		return []any{len(all), count(all, func(o found[*simulator.Instance]) bool { return o.it.Incidents > 0 }), len(incidents), len(incidents) - len(ms),
			share(len(incidents), len(all)), quantile(ms, 0.5), quantile(ms, 0.95)}
	})
}

func incidentsByType(w *world, a asking) []string {
	return lines(w.incidents(func(i *simulator.Incident) bool {
		return a.when(i.CreatedAt) && a.of(i.Process.BpmnProcessID, i.Instance.Tenant)
	}),
		func(o found[*simulator.Incident]) string {
			return line(o.source, o.it.Process.BpmnProcessID, o.it.ElementID, o.it.ErrorType)
		},
		func(all []found[*simulator.Incident]) []any {
			ms := collect(all, func(o found[*simulator.Incident]) (int64, bool) { return lasted(o.it.CreatedAt, o.it.ResolvedAt) })
			at := collect(all, func(o found[*simulator.Incident]) (int64, bool) { return o.it.CreatedAt, true })
			return []any{len(all), len(all) - len(ms), distinct(all, func(o found[*simulator.Incident]) int64 { return o.it.Instance.Key }), quantile(ms, 0.5), moment(at[len(at)-1])}
		})
}

func bottlenecks(w *world, a asking) []string {
	return lines(w.elements(func(e *simulator.Element) bool {
		return strings.HasPrefix(elementState(e), "ACTIV") && a.of(e.Process.BpmnProcessID, e.Instance.Tenant) &&
			!slices.Contains([]string{"PROCESS", "SUB_PROCESS", "CALL_ACTIVITY", "MULTI_INSTANCE_BODY"}, e.Type)
	}), func(o found[*simulator.Element]) string {
		return line(o.source, o.it.Process.BpmnProcessID, o.it.ID, o.it.Type, elementState(o.it))
	}, func(all []found[*simulator.Element]) []any {
		ms := collect(all, func(o found[*simulator.Element]) (int64, bool) { return a.now - o.it.EnteredAt, true })
		return []any{len(all), moment(a.now - ms[len(ms)-1]), quantile(ms, 0.5), last(ms)}
	})
}

func outliers(w *world, a asking) []string {
	groups := map[string][]found[*simulator.Element]{}
	for _, o := range w.elements(func(e *simulator.Element) bool {
		return a.process == "" || e.Process.BpmnProcessID == a.process
	}) {
		k := line(o.source, o.it.Process.BpmnProcessID, o.it.ID, o.it.Type)
		groups[k] = append(groups[k], o)
	}
	var out []string
	for k, all := range groups {
		ms := collect(all, func(o found[*simulator.Element]) (int64, bool) { return elementTook(o.it, a.now) })
		first, third := interpolated(ms, 0.25), interpolated(ms, 0.75)
		fence := third + 1.5*(third-first)
		for _, o := range all {
			if took, _ := elementTook(o.it, a.now); float64(took) > fence {
				out = append(out, k+tabbed(o.it.Instance.Key, o.it.Key, elementState(o.it), took, interpolated(ms, 0.5), int64(fence)))
			}
		}
	}
	return out
}

func funnel(w *world, a asking) []string {
	type way struct {
		source string
		first  int64 // MaxInt64 if never reached
		second []int64
	}
	ways := map[*simulator.Instance]*way{}
	for _, o := range w.elements(func(e *simulator.Element) bool {
		return e.ActivatedAt > 0 && a.began(e.Instance)
	}) {
		y := ways[o.it.Instance]
		if y == nil {
			y = &way{source: o.source, first: math.MaxInt64}
			ways[o.it.Instance] = y
		}
		switch o.it.ID {
		case a.first:
			y.first = min(y.first, o.it.ActivatedAt)
		case a.second:
			y.second = append(y.second, o.it.ActivatedAt)
		}
	}
	reached := slices.DeleteFunc(slices.Collect(maps.Values(ways)), func(y *way) bool { return y.first == math.MaxInt64 })
	return lines(reached, func(y *way) string { return y.source }, func(all []*way) []any {
		ms := collect(all, func(y *way) (int64, bool) {
			slices.Sort(y.second)
			for _, at := range y.second {
				if at >= y.first {
					return at - y.first, true
				}
			}
			return 0, false
		})
		return []any{len(all), len(ms), share(len(ms), len(all)), quantile(ms, 0.5), quantile(ms, 0.95)}
	})
}

func variants(w *world, a asking) []string {
	steps := map[*simulator.Instance][]*simulator.Element{}
	for _, o := range w.elements(func(e *simulator.Element) bool {
		return e.ActivatedAt > 0 && e.Type != "PROCESS" && e.Type != "MULTI_INSTANCE_BODY"
	}) {
		steps[o.it.Instance] = append(steps[o.it.Instance], o.it)
	}
	whole := map[string]int{}
	all := w.completed(a)
	process := func(o found[*simulator.Instance]) string { return line(o.source, o.it.Process.BpmnProcessID) }
	for _, o := range all {
		whole[process(o)]++
	}
	path := func(i *simulator.Instance, name func(string) string) string {
		slices.SortFunc(steps[i], func(a, b *simulator.Element) int {
			return cmp.Or(cmp.Compare(a.ActivatedAt, b.ActivatedAt), cmp.Compare(a.Key, b.Key))
		})
		var ids []string
		for _, e := range steps[i] {
			ids = append(ids, e.ID)
		}
		ids = slices.Compact(ids)
		for i := range ids {
			ids[i] = name(ids[i])
		}
		return strings.Join(ids, " > ")
	}
	return lines(all, func(o found[*simulator.Instance]) string {
		return line(process(o), path(o.it, func(id string) string { return id }), path(o.it, func(id string) string {
			return cmp.Or(w.names[o.source][[2]string{o.it.Process.BpmnProcessID, id}], id)
		}))
	}, func(all []found[*simulator.Instance]) []any {
		return []any{len(all), share(len(all), whole[process(all[0])]), quantile(collect(all, instanceTook), 0.5)}
	})
}

func directlyFollows(w *world, a asking) []string {
	type step struct {
		source, process, from, to string
		instance, gap             int64
	}
	var all []step
	for _, o := range w.elements(func(e *simulator.Element) bool { return a.began(e.Instance) }) {
		for _, before := range o.it.Follows { // a migration renames nothing ended or not yet begun
			all = append(all, step{o.source, o.it.Instance.Process.BpmnProcessID, before.ID, o.it.FirstID, o.it.Instance.Key, o.it.EnteredAt - max(before.CompletedAt, before.TerminatedAt)})
		}
	}
	return lines(all, func(s step) string { return line(s.source, s.process, s.from, s.to) }, func(all []step) []any {
		gaps := collect(all, func(s step) (int64, bool) { return s.gap, true })
		return []any{len(all), distinct(all, func(s step) int64 { return s.instance }), quantile(gaps, 0.5), last(gaps)}
	})
}

func errorText(w *world, a asking) []string {
	words := regexp.MustCompile(`[0-9A-Za-z\x80-\xff]+`)
	var out []string
	for _, v := range w.happened(func(v event) bool { return a.when(v.At) }) {
		has := words.FindAllString(v.Value.Error, -1)
		if !slices.ContainsFunc(a.words, func(word string) bool { return !slices.Contains(has, word) }) {
			out = append(out, line(v.Source, moment(v.At), v.Value.Process, v.Value.Instance, v.ValueType, v.Intent, v.Value.Element, escaped(v.Value.Error)))
		}
	}
	return out
}

// hourOf is the local start of the hour of a moment: Kolkata's is half an hour off.
func hourOf(ms int64, zone *time.Location) int64 {
	_, offset := time.UnixMilli(ms).In(zone).Zone()
	off := int64(offset) % 3600 * 1000
	return (ms+off)/3_600_000*3_600_000 - off
}

func throughput(w *world, a asking) []string {
	zone, err := time.LoadLocation(a.zone)
	if err != nil {
		panic(err)
	}
	hour := func(ms int64) int64 { return hourOf(ms, zone) }
	happened := map[string]map[int64][3]int{}
	for _, o := range w.instances(func(i *simulator.Instance) bool { return a.of(i.Process.BpmnProcessID, i.Tenant) }) {
		for what, at := range []int64{o.it.StartedAt, o.it.CompletedAt, o.it.TerminatedAt} {
			if !a.when(at) {
				continue
			}
			of := line(o.source, o.it.Process.BpmnProcessID, o.it.Process.Version)
			if happened[of] == nil {
				happened[of] = map[int64][3]int{}
			}
			n := happened[of][hour(at)]
			n[what]++
			happened[of][hour(at)] = n
		}
	}
	var out []string
	for of, hours := range happened {
		for h := hour(a.from); h < a.to; h += 3_600_000 {
			n := hours[h]
			out = append(out, of+tabbed(time.UnixMilli(h).In(zone).Format(time.DateTime), n[0], n[1], n[2]))
		}
	}
	return out
}

// period is started, completed and canceled instances of the range, p50, p95, share with incidents.
func (a asking) period(all []found[*simulator.Instance]) []any {
	all = slices.DeleteFunc(slices.Clone(all), func(o found[*simulator.Instance]) bool { return !a.began(o.it) })
	in := func(state string) int {
		return count(all, func(o found[*simulator.Instance]) bool { return instanceState(o.it) == state })
	}
	ms, incidents := collect(all, instanceTook), any(null)
	if len(all) > 0 {
		incidents = share(count(all, func(o found[*simulator.Instance]) bool { return o.it.Incidents > 0 }), len(all))
	}
	return []any{len(all), in("COMPLETED"), in("CANCELED"), quantile(ms, 0.5), quantile(ms, 0.95), incidents}
}

// workInProgress computes the end of every hour separately.
func workInProgress(w *world, a asking) []string {
	zone, err := time.LoadLocation(a.zone)
	if err != nil {
		panic(err)
	}
	all := w.instances(func(i *simulator.Instance) bool {
		end := max(i.CompletedAt, i.TerminatedAt)
		return a.of(i.Process.BpmnProcessID, i.Tenant) && i.StartedAt > 0 && i.StartedAt < a.to && (end == 0 || end >= a.from)
	})
	var out []string
	for h := hourOf(a.from, zone); h < a.to; h += 3_600_000 {
		begin, until := max(h, a.from), min(h+3_600_000, a.to)
		out = append(out, lines(all, func(o found[*simulator.Instance]) string {
			return line(o.source, o.it.Process.BpmnProcessID, time.UnixMilli(h).In(zone).Format(time.DateTime))
		}, func(all []found[*simulator.Instance]) []any {
			var started, ended, active int
			for _, o := range all {
				end := max(o.it.CompletedAt, o.it.TerminatedAt)
				started += map[bool]int{true: 1}[o.it.StartedAt >= begin && o.it.StartedAt < until]
				ended += map[bool]int{true: 1}[end >= begin && end < until]
				active += map[bool]int{true: 1}[o.it.StartedAt < until && (end == 0 || end >= until)]
			}
			return []any{started, ended, active}
		})...)
	}
	return out
}

func targets(w *world, a asking) []string {
	return lines(w.elements(func(e *simulator.Element) bool {
		return a.targets[e.ID] > 0 && e.TerminatedAt == 0 && a.when(e.EnteredAt) && a.of(e.Process.BpmnProcessID, e.Instance.Tenant)
	}), func(o found[*simulator.Element]) string {
		return line(o.source, o.it.Process.BpmnProcessID, o.it.ID, o.it.Type, a.targets[o.it.ID])
	}, func(all []found[*simulator.Element]) []any {
		took := func(o found[*simulator.Element]) (int64, bool) { return elementTook(o.it, a.now) }
		late := count(all, func(o found[*simulator.Element]) bool { ms, _ := took(o); return ms > 1000*a.targets[o.it.ID] })
		within := count(all, func(o found[*simulator.Element]) bool {
			ms, _ := took(o)
			return o.it.CompletedAt > 0 && ms <= 1000*a.targets[o.it.ID]
		})
		part := any(null)
		if within+late > 0 {
			part = share(within, within+late)
		}
		ms := collect(all, took)
		return []any{len(all), within, late, len(all) - within - late, part, quantile(ms, 0.5), quantile(ms, 0.95)}
	})
}

func rework(w *world, a asking) []string {
	bodies := map[string]map[int64]bool{}
	for source, truth := range w.truths {
		bodies[source] = map[int64]bool{}
		for _, e := range truth.Elements {
			bodies[source][e.Key] = e.Type == "MULTI_INSTANCE_BODY"
		}
	}
	passes := slices.DeleteFunc(w.elements(func(e *simulator.Element) bool {
		return a.when(e.EnteredAt) && a.of(e.Process.BpmnProcessID, e.Instance.Tenant)
	}), func(o found[*simulator.Element]) bool { return bodies[o.source][o.it.FlowScope] })
	return slices.DeleteFunc(lines(passes, func(o found[*simulator.Element]) string {
		return line(o.source, o.it.Process.BpmnProcessID, o.it.ID, o.it.Type)
	}, func(all []found[*simulator.Element]) []any {
		slices.SortFunc(all, func(a, b found[*simulator.Element]) int {
			return cmp.Or(cmp.Compare(a.it.EnteredAt, b.it.EnteredAt), cmp.Compare(a.it.Key, b.it.Key))
		})
		times, again, ms := map[[2]int64]int{}, map[int64]bool{}, int64(0)
		for _, o := range all {
			of := [2]int64{o.it.Instance.Key, o.it.FlowScope}
			if times[of]++; times[of] > 1 {
				took, _ := elementTook(o.it, a.now)
				again[o.it.Instance.Key], ms = true, ms+took
			}
		}
		instances := distinct(all, func(o found[*simulator.Element]) int64 { return o.it.Instance.Key })
		return []any{instances, len(again), share(len(again), instances), len(all), len(all) - len(times), slices.Max(slices.Collect(maps.Values(times))), ms}
	}), func(row string) bool { return strings.Split(row, "\t")[8] == "0" })
}

func handover(w *world, a asking) []string {
	type pair struct {
		source, process, from, to string
		instance, gap             int64
	}
	done := w.tasks(func(u *simulator.UserTask) bool {
		return u.CompletedAt > 0 && u.Assignee != "" && a.of(u.Process.BpmnProcessID, u.Instance.Tenant)
	})
	slices.SortFunc(done, func(a, b found[*simulator.UserTask]) int {
		return cmp.Or(cmp.Compare(a.it.CompletedAt, b.it.CompletedAt), cmp.Compare(a.it.Key, b.it.Key))
	})
	before, all := map[*simulator.Instance]*simulator.UserTask{}, []pair{}
	for _, o := range done {
		if b := before[o.it.Instance]; b != nil && a.when(o.it.CompletedAt) {
			all = append(all, pair{o.source, o.it.Process.BpmnProcessID, b.Assignee, o.it.Assignee, o.it.Instance.Key, o.it.CompletedAt - b.CompletedAt})
		}
		before[o.it.Instance] = o.it
	}
	return lines(all, func(p pair) string { return line(p.source, p.process, p.from, p.to) }, func(all []pair) []any {
		ms := collect(all, func(p pair) (int64, bool) { return p.gap, true })
		return []any{len(all), distinct(all, func(p pair) int64 { return p.instance }), quantile(ms, 0.5), quantile(ms, 0.95)}
	})
}

func stuck(w *world, a asking) []string {
	below := map[string]map[*simulator.Instance]int{}
	for source, truth := range w.truths {
		below[source] = incidentsBelow(truth)
	}
	var out []string
	for _, o := range w.instances(func(i *simulator.Instance) bool {
		return i.CompletedAt == 0 && i.TerminatedAt == 0 && i.LastSeen < a.now-a.quiet*1000 && a.of(i.Process.BpmnProcessID, i.Tenant)
	}) {
		i := o.it
		out = append(out, line(o.source, i.Process.BpmnProcessID, i.Process.Version, i.Key, "", moment(i.StartedAt), moment(i.LastSeen), a.now-i.LastSeen, i.OpenIncidents, below[o.source][i]))
	}
	return out
}

func timeline(w *world, a asking) []string {
	var out []string
	for _, v := range w.happened(func(v event) bool {
		return v.Source == a.source && strconv.FormatInt(v.Value.Instance, 10) == a.instance
	}) {
		jobType, retries := "", any(null)
		if v.ValueType == "JOB" {
			jobType = v.Value.JobType
		}
		if v.Value.Retries != nil {
			retries = *v.Value.Retries
		}
		out = append(out, line(moment(v.At), v.Partition, v.Position, v.ValueType, v.Intent, v.Value.Element, w.names[v.Source][[2]string{v.Value.Process, v.Value.Element}], v.Value.Kind, v.Key, jobType, v.Value.Worker, retries, escaped(v.Value.Error)))
	}
	return out
}

func instanceTree(w *world, a asking) []string {
	var out []string
	names, elements := w.names[a.source], map[int64]string{-1: line("", "")}
	for _, e := range w.truths[a.source].Elements {
		elements[e.Key] = line(e.ID, names[[2]string{e.Process.BpmnProcessID, e.ID}])
	}
	var visit func(i *simulator.Instance, depth int)
	visit = func(i *simulator.Instance, depth int) {
		took := between(i.StartedAt, max(i.CompletedAt, i.TerminatedAt))
		out = append(out, line(depth, i.Key, caller(i), elements[i.ParentElement], i.Process.BpmnProcessID, names[[2]string{i.Process.BpmnProcessID, i.Process.BpmnProcessID}], i.Process.Version, "", instanceState(i), i.OpenIncidents, moment(i.StartedAt), took))
		for _, c := range w.truths[a.source].Instances {
			if c.ParentInstance == i.Key {
				visit(c, depth+1)
			}
		}
	}
	for _, i := range w.truths[a.source].Instances {
		if strconv.FormatInt(i.Key, 10) == a.instance {
			visit(i, 0)
		}
	}
	return out
}

func usage(w *world, _ asking) []string {
	return lines(w.instances(func(i *simulator.Instance) bool { return i.StartedAt > 0 }), func(o found[*simulator.Instance]) string {
		return line(o.source, time.UnixMilli(o.it.StartedAt).UTC().Format("2006-01")+"-01", o.it.Tenant)
	}, func(all []found[*simulator.Instance]) []any {
		called := count(all, func(o found[*simulator.Instance]) bool { return o.it.ParentInstance > 0 })
		return []any{len(all) - called, called, count(all, func(o found[*simulator.Instance]) bool { return o.it.CompletedAt > 0 }),
			distinct(all, func(o found[*simulator.Instance]) string { return o.it.Process.BpmnProcessID })}
	})
}
