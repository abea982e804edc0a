package warehouse_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"sluice/pkg/load/simulator"
)

// asking are the parsed parameters of a question.
type asking struct {
	source, process, tenant, first, second, instance, name, value, zone, tree string
	from, to, now, quiet, against                                             int64
	targets                                                                   map[string]int64 // seconds
	words                                                                     []string
}

func (a asking) of(process, tenant string) bool {
	return (a.process == "" || process == a.process) && (a.tenant == "" || tenant == a.tenant)
}

// began reports whether an instance belongs to the process and was started in the range.
func (a asking) began(i *simulator.Instance) bool {
	return a.of(i.Process.BpmnProcessID, i.Tenant) && a.when(i.StartedAt)
}

func (a asking) when(ms int64) bool { return ms > 0 && ms >= a.from && ms < a.to }

// found pairs a thing with its engine.
type found[T any] struct {
	source string
	it     T
}

func gather[T any](w *world, from func(*simulator.Truth) []T, which func(T) bool) []found[T] {
	var all []found[T]
	for _, source := range slices.Sorted(maps.Keys(w.truths)) {
		for _, it := range from(w.truths[source]) {
			if which(it) {
				all = append(all, found[T]{source, it})
			}
		}
	}
	return all
}

func (w *world) instances(which func(*simulator.Instance) bool) []found[*simulator.Instance] {
	return gather(w, func(t *simulator.Truth) []*simulator.Instance { return t.Instances }, which)
}

func (w *world) elements(which func(*simulator.Element) bool) []found[*simulator.Element] {
	return gather(w, func(t *simulator.Truth) []*simulator.Element { return t.Elements }, which)
}

func (w *world) jobs(which func(*simulator.Job) bool) []found[*simulator.Job] {
	return gather(w, func(t *simulator.Truth) []*simulator.Job { return t.Jobs }, which)
}

func (w *world) incidents(which func(*simulator.Incident) bool) []found[*simulator.Incident] {
	return gather(w, func(t *simulator.Truth) []*simulator.Incident { return t.Incidents }, which)
}

// above are the callers of an instance, the nearest first.
func above(t *simulator.Truth, i *simulator.Instance) (all []*simulator.Instance) {
	for i.ParentInstance > 0 {
		i = t.Instances[slices.IndexFunc(t.Instances, func(other *simulator.Instance) bool { return other.Key == i.ParentInstance })]
		all = append(all, i)
	}
	return all
}

// incidentsBelow counts the open incidents of all that each instance has called.
func incidentsBelow(t *simulator.Truth) map[*simulator.Instance]int {
	below := map[*simulator.Instance]int{}
	for _, i := range t.Instances {
		for _, caller := range above(t, i) {
			below[caller] += i.OpenIncidents
		}
	}
	return below
}

// lines makes one line of each group: its key, then its values.
func lines[T any](all []T, key func(T) string, row func([]T) []any) []string {
	groups := map[string][]T{}
	for _, it := range all {
		groups[key(it)] = append(groups[key(it)], it)
	}
	var out []string
	for k, group := range groups {
		out = append(out, k+tabbed(row(group)...))
	}
	return out
}

// tabbed prints values as ClickHouse does, a tab before each.
func tabbed(values ...any) string {
	var b strings.Builder
	for _, v := range values {
		if f, ok := v.(float64); ok {
			v = strconv.FormatFloat(f, 'f', -1, 64)
		}
		fmt.Fprintf(&b, "\t%v", v)
	}
	return b.String()
}

func line(values ...any) string { return tabbed(values...)[1:] }

func count[T any](all []T, which func(T) bool) int {
	n := 0
	for _, it := range all {
		if which(it) {
			n++
		}
	}
	return n
}

func distinct[T any, K comparable](all []T, key func(T) K) int {
	seen := map[K]bool{}
	for _, it := range all {
		seen[key(it)] = true
	}
	return len(seen)
}

func collect[T any](all []T, value func(T) (int64, bool)) []int64 {
	var values []int64
	for _, it := range all {
		if v, ok := value(it); ok {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

// share is a ratio to four places.
func share(part, whole int) float64 { return rounded(float64(part) / float64(whole)) }

func rounded(x float64) float64 { return math.RoundToEven(x*1e4) / 1e4 }

// quantile is the exact quantile of sorted values, as in pandas and numpy.
func quantile(sorted []int64, level float64) any {
	if len(sorted) == 0 {
		return null
	}
	return interpolated(sorted, level)
}

// interpolated adds in ClickHouse's order, so that the last digit is equal.
func interpolated(sorted []int64, level float64) float64 {
	at := level*float64(len(sorted)-1) + 1
	i := int(at)
	if i == len(sorted) {
		return float64(sorted[i-1])
	}
	return float64(sorted[i-1]) + (at-float64(i))*float64(sorted[i]-sorted[i-1])
}

func sum(values []int64) (total int64) {
	for _, v := range values {
		total += v
	}
	return total
}

func last(sorted []int64) any {
	if len(sorted) == 0 {
		return null
	}
	return sorted[len(sorted)-1]
}

func lasted(from, to int64) (int64, bool) { return to - from, from > 0 && to > 0 }

func instanceState(i *simulator.Instance) string {
	switch {
	case i.TerminatedAt > 0:
		return "CANCELED"
	case i.CompletedAt > 0:
		return "COMPLETED"
	}
	return "ACTIVE"
}

func elementState(e *simulator.Element) string {
	switch {
	case e.TerminatedAt > 0:
		return "TERMINATED"
	case e.CompletedAt > 0:
		return "COMPLETED"
	case e.ActivatedAt > 0:
		return "ACTIVE"
	}
	return "ACTIVATING"
}

// ownTime is the duration of an instance without the durations of its called instances.
func (w *world) ownTime(tree string) func(found[*simulator.Instance]) (int64, bool) {
	called := map[*simulator.Instance][]*simulator.Instance{}
	for source, truth := range w.truths {
		byKey := map[int64]*simulator.Instance{}
		for _, i := range w.truths[source].Instances {
			byKey[i.Key] = i
		}
		for _, i := range truth.Instances {
			if caller := byKey[i.ParentInstance]; caller != nil && tree == "0" {
				called[caller] = append(called[caller], i)
			}
		}
	}
	return func(o found[*simulator.Instance]) (int64, bool) {
		took, ok := instanceTook(o)
		var until int64
		slices.SortFunc(called[o.it], func(a, b *simulator.Instance) int { return cmp.Compare(a.StartedAt, b.StartedAt) })
		for _, c := range called[o.it] {
			if end := max(c.CompletedAt, c.TerminatedAt); c.StartedAt > 0 && end > until {
				took -= end - max(c.StartedAt, until)
				until = end
			}
		}
		return took, ok
	}
}

func instanceTook(o found[*simulator.Instance]) (int64, bool) {
	return lasted(o.it.StartedAt, o.it.CompletedAt)
}

// elementTook is the duration of an element, until now if it is active.
func elementTook(e *simulator.Element, now int64) (int64, bool) {
	begun := cmp.Or(e.ActivatedAt, e.EnteredAt)
	return lasted(begun, cmp.Or(e.CompletedAt, e.TerminatedAt, max(now, begun)))
}

func jobTook(o found[*simulator.Job]) (int64, bool) { return lasted(o.it.CreatedAt, o.it.CompletedAt) }
