package export_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/cmd/internal/export"
	"sluice/pkg/fatal"
	"sluice/pkg/load/simulator"
)

// objectLog is an OCEL log as sorted texts.
type objectLog struct {
	Objects, Events, OfEvents, OfObjects []string
}

func (l *objectLog) object(id, kind string) {
	l.Objects = append(l.Objects, kind+" "+id)
}

func (l *objectLog) event(kind string, at time.Time, id string) {
	l.Events = append(l.Events, fmt.Sprintf("%s %s %s", kind, at.UTC().Format(time.RFC3339Nano), strings.TrimPrefix(id, kind+":")))
}

func (l *objectLog) sorted() *objectLog {
	for _, all := range []*[]string{&l.Objects, &l.Events, &l.OfEvents, &l.OfObjects} {
		slices.Sort(*all)
	}
	return l
}

// TestOCELMatchesTheSimulation compares objects, events and their relations with the simulation.
func TestOCELMatchesTheSimulation(t *testing.T) {
	w := simulated(t)
	for _, c := range []struct {
		name, file string
		of         export.Selection
	}{
		{"all of it", "log.json", export.Selection{}},
		{"a tenant", "log.json", export.Selection{Tenant: "acme", Source: "cluster-a"}},
		{"compressed", "log.jsonocel.gz", export.Selection{Process: "order"}},
		{"nothing", "log.json", export.Selection{Process: "no such process"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := readOCEL(t, write(t, w, c.of, "ocel", c.file))
			if diff := cmp.Diff(w.objects(c.of), got); diff != "" {
				t.Errorf("-truth +log:\n%s", diff)
			}
		})
	}
}

func readOCEL(t *testing.T, file string) *objectLog {
	t.Helper()
	type relation struct{ ObjectID, Qualifier string }
	type value struct {
		Name  string
		Time  string
		Value any
	}
	var log struct {
		EventTypes, ObjectTypes []struct {
			Name       string
			Attributes []struct{ Name, Type string }
		}
		Events []struct {
			ID, Type      string
			Time          time.Time
			Attributes    []value
			Relationships []relation
		}
		Objects []struct {
			ID, Type      string
			Attributes    []value
			Relationships []relation
		}
	}
	fatal.If(t, json.NewDecoder(open(t, file)).Decode(&log))
	declared := map[string]string{}
	for _, kind := range append(log.EventTypes, log.ObjectTypes...) {
		declared[kind.Name] = "is"
		for _, a := range kind.Attributes {
			declared[kind.Name+" "+a.Name] = a.Type
		}
	}
	check := func(kind string, values []value) {
		for _, v := range values {
			want := map[bool]string{true: "string", false: "integer"}[fmt.Sprintf("%T", v.Value) == "string"]
			if got := declared[kind+" "+v.Name]; got != want || declared[kind] == "" {
				t.Errorf("%s has the %s %v, which is declared as %q", kind, v.Name, v.Value, got)
			}
		}
	}
	l, ids := new(objectLog), map[string]bool{}
	for _, o := range log.Objects {
		said := map[string]string{}
		for _, v := range o.Attributes {
			said[v.Name] = fmt.Sprint(v.Value)
		}
		kind := o.Type
		if kind == "instance" {
			kind = fmt.Sprintf("instance %q %q %q", said["name"], said["variable.amount"], said["variable.note"])
		} else if kind == "element" {
			kind = fmt.Sprintf("element %q", said["name"])
		}
		l.object(o.ID, kind)
		ids[o.ID] = true
		check(o.Type, o.Attributes)
		for _, r := range o.Relationships {
			l.OfObjects = append(l.OfObjects, o.ID+" "+r.Qualifier+" "+r.ObjectID)
		}
	}
	for _, e := range log.Events {
		l.event(e.Type, e.Time, e.ID)
		check(e.Type, e.Attributes)
		for _, r := range e.Relationships {
			l.OfEvents = append(l.OfEvents, e.ID+" "+r.Qualifier+" "+r.ObjectID)
		}
	}
	for _, r := range append(l.OfEvents, l.OfObjects...) {
		if to := r[strings.LastIndex(r, " ")+1:]; !ids[to] {
			t.Errorf("%s relates to a missing object", r)
		}
	}
	return l.sorted()
}

// objects are the expected ones of a selection.
func (w *world) objects(s export.Selection) *objectLog {
	l := new(objectLog)
	for source, truth := range w.truths {
		one(l, s, source, truth)
	}
	return l.sorted()
}

func one(l *objectLog, s export.Selection, source string, truth *simulator.Truth) {
	in := func(i *simulator.Instance) bool { return selected(s, source, i) }
	id := func(kind string, key int64) string {
		return fmt.Sprintf("%s:%s/%d", strings.ReplaceAll(kind, " ", "_"), source, key)
	}
	relate := func(to *[]string, from, qualifier, other string) {
		*to = append(*to, from+" "+qualifier+" "+other)
	}
	event := func(kind, about string, at int64, with ...[2]string) {
		if at == 0 {
			return
		}
		l.event(kind, time.UnixMilli(at), kind+":"+about)
		for _, w := range with {
			relate(&l.OfEvents, kind+":"+about, w[0], w[1])
		}
	}
	instances, definitions := map[int64]*simulator.Instance{}, map[int64]bool{}
	for _, i := range truth.Instances {
		instances[i.Key] = i
	}
	for _, i := range truth.Instances {
		if !in(i) {
			continue
		}
		me, definition := id("instance", i.Key), id("definition", i.Process.DefinitionKey)
		chosen := values(truth, i)
		l.object(me, fmt.Sprintf("instance %q %q %q", "The "+i.Process.BpmnProcessID+" process", chosen[0], chosen[1]))
		if !definitions[i.Process.DefinitionKey] {
			definitions[i.Process.DefinitionKey] = true
			l.object(definition, "definition")
		}
		relate(&l.OfObjects, me, "definition", definition)
		if parent := instances[i.ParentInstance]; parent != nil && in(parent) {
			relate(&l.OfObjects, me, "called by", id("instance", parent.Key))
		}
		root := i
		for root.ParentInstance > 0 {
			root = instances[root.ParentInstance]
		}
		if root != i && in(root) {
			relate(&l.OfObjects, me, "root", id("instance", root.Key))
		}
		with := [][2]string{{"instance", me}, {"definition", definition}}
		event("instance started", me, i.StartedAt, with...)
		event("instance completed", me, i.CompletedAt, with...)
		event("instance terminated", me, i.TerminatedAt, with...)
	}
	// related are the instance and element of an object.
	related := func(i *simulator.Instance, e *simulator.Element) (all [][2]string) {
		all = [][2]string{{"instance", id("instance", i.Key)}}
		if e != nil && e.Type != "PROCESS" {
			all = append(all, [2]string{"element", id("element", e.Key)})
		}
		return all
	}
	of := func(me string, all [][2]string) {
		for _, r := range all {
			relate(&l.OfObjects, me, r[0], r[1])
		}
	}
	for _, e := range truth.Elements {
		if !in(e.Instance) || e.Type == "PROCESS" {
			continue
		}
		me := id("element", e.Key)
		l.object(me, fmt.Sprintf("element %q", name(e.ID)))
		of(me, related(e.Instance, nil))
		if e.FlowScope != e.Instance.Key {
			relate(&l.OfObjects, me, "inside", id("element", e.FlowScope))
		}
		if e.Type == "MULTI_INSTANCE_BODY" {
			continue
		}
		with := append([][2]string{{"element", me}}, related(e.Instance, nil)...)
		event(e.ID, me, e.CompletedAt, with...)
		if e.CompletedAt == 0 {
			event(e.ID+" (terminated)", me, e.TerminatedAt, with...)
		}
	}
	for _, j := range truth.Jobs {
		if !in(j.Instance) {
			continue
		}
		me, around := id("job", j.Key), related(j.Instance, j.Element)
		l.object(me, "job")
		of(me, around)
		around = append([][2]string{{"job", me}}, around...)
		event("job created", me, j.CreatedAt, around...)
		event("job completed", me, j.CompletedAt, around...)
		event("job canceled", me, j.CanceledAt, around...)
	}
	for _, u := range truth.UserTasks {
		if !in(u.Instance) {
			continue
		}
		me, around := id("user task", u.Key), related(u.Instance, u.Element)
		l.object(me, "user task")
		of(me, around)
		around = append([][2]string{{"user task", me}}, around...)
		event("user task created", me, u.CreatedAt, around...)
		event("user task assigned", me, u.AssignedAt, around...)
		event("user task completed", me, u.CompletedAt, around...)
		event("user task canceled", me, u.CanceledAt, around...)
	}
	for _, i := range truth.Incidents {
		if !in(i.Instance) {
			continue
		}
		me, around := id("incident", i.Key), related(i.Instance, i.Element)
		if i.Job > 0 {
			around = append(around, [2]string{"job", id("job", i.Job)})
		}
		l.object(me, "incident")
		of(me, around)
		around = append([][2]string{{"incident", me}}, around...)
		event("incident created", me, i.CreatedAt, around...)
		event("incident resolved", me, i.ResolvedAt, around...)
	}
}
