package export

import (
	"cmp"
	"slices"
	"time"

	"sluice/pkg/warehouse"
)

// Transitions, as the lifecycle extension of XES names them.
const (
	start    = "start"
	complete = "complete"
	abort    = "ate_abort"
)

// event is a step in the life of an element.
type event struct {
	element    *warehouse.CaseElement
	transition string
	at         time.Time
	resource   string // who did it: the worker, or the person; of complete only
}

// events are the steps of an instance in the order in which they happened. The
// process itself is none of them, nor are multi-instance bodies: what happens
// in them has the same names, and would be there twice.
func events(c *warehouse.Case) []event {
	did := resources(c)
	var all []event
	for i := range c.Elements {
		e := &c.Elements[i]
		if e.Type == "PROCESS" || e.Type == "MULTI_INSTANCE_BODY" {
			continue
		}
		if e.ActivatedAt != nil {
			all = append(all, event{element: e, transition: start, at: *e.ActivatedAt})
		}
		if e.CompletedAt != nil {
			all = append(all, event{element: e, transition: complete, at: *e.CompletedAt, resource: did[e.Key]})
		} else if e.TerminatedAt != nil {
			all = append(all, event{element: e, transition: abort, at: *e.TerminatedAt})
		}
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.at.Compare(b.at) })
	for from := 0; from < len(all); {
		to := from + 1
		for to < len(all) && all[to].at.Equal(all[from].at) {
			to++
		}
		inOrder(c, all[from:to])
		from = to
	}
	return all
}

// inOrder puts events of the same millisecond in the order in which an engine
// goes through them: an element begins before what is in it, ends after that,
// and is followed by those with greater keys, which were made later.
func inOrder(c *warehouse.Case, same []event) {
	if len(same) < 2 {
		return
	}
	// A path of keys from the outermost element to the one of the event; an end
	// sorts behind all that is in the element, a beginning before it.
	paths := make(map[int64][]int64, len(same))
	for _, v := range same {
		paths[v.element.Key] = path(c, v.element)
	}
	slices.SortStableFunc(same, func(a, b event) int {
		p, q := paths[a.element.Key], paths[b.element.Key]
		for i := range min(len(p), len(q)) {
			if p[i] != q[i] {
				return cmp.Compare(p[i], q[i])
			}
		}
		switch {
		case len(p) < len(q): // b is in a
			return ending(a)
		case len(p) > len(q):
			return -ending(b)
		}
		return ending(a) - ending(b)
	})
}

// ending is 1 for an end, and -1 for a beginning.
func ending(v event) int {
	if v.transition == start {
		return -1
	}
	return 1
}

// path are the keys of the elements around one, and its own.
func path(c *warehouse.Case, e *warehouse.CaseElement) []int64 {
	all := []int64{e.Key}
	for scope := e.FlowScope; scope != nil && len(all) <= len(c.Elements); {
		all = append(all, *scope)
		i, found := slices.BinarySearchFunc(c.Elements, *scope, func(e warehouse.CaseElement, key int64) int { return cmp.Compare(e.Key, key) })
		if !found {
			break
		}
		scope = c.Elements[i].FlowScope
	}
	slices.Reverse(all)
	return all
}

// resources are the workers and assignees that completed elements.
func resources(c *warehouse.Case) map[int64]string {
	all := map[int64]string{}
	for _, j := range c.Jobs {
		if j.ElementInstance != nil && j.CompletedAt != nil {
			all[*j.ElementInstance] = j.Worker
		}
	}
	for _, u := range c.UserTasks {
		if u.ElementInstance != nil && u.CompletedAt != nil {
			all[*u.ElementInstance] = u.Assignee
		}
	}
	return all
}

// caseID is what an instance is called in a log: keys of two engines may be
// equal.
func caseID(c *warehouse.Case) string { return c.Source + "/" + c.Key }
