package export

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/warehouse"
)

// objectLog is where objects and events go. A type is declared before the
// first of it.
type objectLog interface {
	objectType(name string, attributes []attribute) error
	eventType(name string, attributes []attribute) error
	object(object) error
	event(objectEvent) error
	close() error
}

// attribute declares an attribute of a type.
type attribute struct {
	Name string `json:"name"`
	Type string `json:"type"` // string, integer or time, as OCEL names them
}

// value is an attribute that has a value: a string, an int64 or a time.
type value struct {
	name string
	is   any
	at   time.Time // since when, of an object; zero for always
}

// relation says what another object is to the one, or to the event, that has it.
type relation struct {
	Object    string `json:"objectId"`
	Qualifier string `json:"qualifier"`
}

type object struct {
	id, kind  string
	values    []value
	relations []relation
}

type objectEvent struct {
	id, kind  string
	at        time.Time
	values    []value
	relations []relation
}

// Types of objects.
const (
	instanceType   = "instance"
	elementType    = "element"
	jobType        = "job"
	userTaskType   = "user task"
	incidentType   = "incident"
	definitionType = "definition"
)

func texts(names ...string) (all []attribute) {
	for _, name := range names {
		all = append(all, attribute{name, "string"})
	}
	return all
}

// objectTypes are the types of objects with what is known of each.
var objectTypes = []struct {
	name       string
	attributes []attribute
}{
	{instanceType, append(texts("source", "key", "tenant", "process", "state"), attribute{"version", "integer"})},
	{elementType, texts("elementId", "bpmnElementType", "state")},
	{jobType, append(texts("jobType", "worker", "state"), attribute{"retries", "integer"}, attribute{"failures", "integer"})},
	{userTaskType, texts("assignee", "state")},
	{incidentType, texts("errorType", "errorMessage", "state")},
	{definitionType, append(texts("source", "process", "name"), attribute{"version", "integer"})},
}

// objects writes instances as objects and events.
//
// An element is an event of its own type, the id in the model, at its end;
// when it began stands in the state of its object. What happens to instances,
// jobs, user tasks and incidents are events of types that have a space in
// their names, which no id has.
type objects struct {
	log         objectLog
	definitions map[string]warehouse.Definition // by object id; those that are written already are gone
	known       map[string]bool                 // object ids of definitions
	declared    map[string]bool                 // types of events
	begun       bool

	id   func(kind string, key any) string // of an object of the instance that is written
	err  error                             // the first one
	seen uint64                            // events of the instance that is written
}

func newObjects(log objectLog, definitions []warehouse.Definition) *objects {
	o := &objects{log: log, definitions: map[string]warehouse.Definition{}, known: map[string]bool{}, declared: map[string]bool{}}
	for _, d := range definitions {
		id := objectID(definitionType, d.Source, d.Key)
		o.definitions[id], o.known[id] = d, true
	}
	return o
}

func objectID(kind, source string, key any) string {
	return fmt.Sprintf("%s:%s/%v", strings.ReplaceAll(kind, " ", "_"), source, key)
}

// begin declares the types of objects.
func (o *objects) begin() error {
	if o.begun {
		return nil
	}
	o.begun = true
	for _, t := range objectTypes {
		if err := o.log.objectType(t.name, t.attributes); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) instance(c *warehouse.Case) (uint64, error) {
	if err := o.begin(); err != nil {
		return 0, err
	}
	o.seen = 0
	o.id = func(kind string, key any) string { return objectID(kind, c.Source, key) }
	o.whole(c)
	ids := map[int64]bool{} // elements
	for i := range c.Elements {
		ids[c.Elements[i].Key] = true
	}
	o.elements(c, ids)
	o.jobs(c, ids)
	o.userTasks(c, ids)
	o.incidents(c, ids)
	return o.seen, o.err
}

func (o *objects) close() error {
	if err := o.begin(); err != nil {
		return err
	}
	return o.log.close()
}

// whole writes the instance itself, and its definition when it is the first of it.
func (o *objects) whole(c *warehouse.Case) {
	me := o.id(instanceType, c.Key)
	var of []relation
	if c.Definition != nil {
		id := o.id(definitionType, *c.Definition)
		if d, first := o.definitions[id]; first {
			delete(o.definitions, id)
			o.object(object{id: id, kind: definitionType, values: append(
				[]value{{name: "source", is: d.Source}, {name: "process", is: d.Process}, {name: "name", is: d.Name}}, number("version", d.Version)...)})
		}
		if o.known[id] {
			of = append(of, relation{id, "definition"})
		}
	}
	related := of
	if c.Called {
		related = append(related[:len(related):len(related)], relation{o.id(instanceType, *c.Parent), "called by"})
	}
	ended := end(c.CompletedAt, c.TerminatedAt)
	values := []value{{name: "source", is: c.Source}, {name: "key", is: c.Key}, {name: "tenant", is: c.Tenant}, {name: "process", is: c.Process}}
	values = append(values, number("version", c.Version)...)
	o.object(object{id: me, kind: instanceType, relations: related, values: append(values, states("ACTIVE", &c.StartedAt, c.State, ended)...)})
	of = append([]relation{{me, "instance"}}, of...)
	o.event("instance started", me, &c.StartedAt, nil, of)
	o.event("instance completed", me, c.CompletedAt, nil, of)
	o.event("instance terminated", me, c.TerminatedAt, nil, of)
}

func (o *objects) elements(c *warehouse.Case, ids map[int64]bool) {
	did := resources(c)
	instance := relation{o.id(instanceType, c.Key), "instance"}
	for i := range c.Elements {
		e := &c.Elements[i]
		if e.Type == "PROCESS" {
			continue // that is the instance
		}
		me := o.id(elementType, e.Key)
		of := []relation{instance}
		if s := e.FlowScope; s != nil && ids[*s] && strconv.FormatInt(*s, 10) != c.Key {
			of = append(of, relation{o.id(elementType, *s), "inside"})
		}
		o.object(object{id: me, kind: elementType, relations: of, values: append(
			[]value{{name: "elementId", is: e.Element}, {name: "bpmnElementType", is: e.Type}}, states("ACTIVE", e.ActivatedAt, e.State, end(e.CompletedAt, e.TerminatedAt))...)})
		if e.Type == "MULTI_INSTANCE_BODY" {
			continue // its children have the same name
		}
		with := []relation{{me, "element"}, instance}
		if who := did[e.Key]; who != "" {
			o.event(e.Element, me, e.CompletedAt, []value{{name: "resource", is: who}}, with)
		} else {
			o.event(e.Element, me, e.CompletedAt, nil, with)
		}
		if e.CompletedAt == nil {
			o.event(e.Element+" (terminated)", me, e.TerminatedAt, nil, with)
		}
	}
}

// about is an object of an element with what it is related to.
func (o *objects) about(c *warehouse.Case, ids map[int64]bool, me, qualifier string, element *int64) (of, with []relation) {
	of = []relation{{o.id(instanceType, c.Key), "instance"}}
	if element != nil && ids[*element] && strconv.FormatInt(*element, 10) != c.Key {
		of = append(of, relation{o.id(elementType, *element), "element"})
	}
	return of, append([]relation{{me, qualifier}}, of...)
}

func (o *objects) jobs(c *warehouse.Case, ids map[int64]bool) {
	for _, j := range c.Jobs {
		me := o.id(jobType, j.Key)
		of, with := o.about(c, ids, me, "job", j.ElementInstance)
		values := append([]value{{name: "jobType", is: j.Type}, {name: "failures", is: int64(j.Failures)}}, text("worker", j.Worker)...)
		values = append(values, number("retries", j.Retries)...)
		o.object(object{id: me, kind: jobType, relations: of, values: append(values, states("CREATED", j.CreatedAt, j.State, end(j.CompletedAt, j.CanceledAt))...)})
		kind := value{name: "jobType", is: j.Type}
		o.event("job created", me, j.CreatedAt, []value{kind}, with)
		o.event("job completed", me, j.CompletedAt, append([]value{kind}, text("resource", j.Worker)...), with)
		o.event("job canceled", me, j.CanceledAt, []value{kind}, with)
	}
}

func (o *objects) userTasks(c *warehouse.Case, ids map[int64]bool) {
	for _, u := range c.UserTasks {
		me := o.id(userTaskType, u.Key)
		of, with := o.about(c, ids, me, "user task", u.ElementInstance)
		who := text("resource", u.Assignee)
		o.object(object{id: me, kind: userTaskType, relations: of, values: append(text("assignee", u.Assignee), states("CREATED", u.CreatedAt, u.State, end(u.CompletedAt, u.CanceledAt))...)})
		o.event("user task created", me, u.CreatedAt, nil, with)
		o.event("user task assigned", me, u.AssignedAt, who, with)
		o.event("user task completed", me, u.CompletedAt, who, with)
		o.event("user task canceled", me, u.CanceledAt, nil, with)
	}
}

func (o *objects) incidents(c *warehouse.Case, ids map[int64]bool) {
	jobs := map[int64]bool{}
	for _, j := range c.Jobs {
		jobs[j.Key] = true
	}
	for _, i := range c.Incidents {
		me := o.id(incidentType, i.Key)
		of, with := o.about(c, ids, me, "incident", i.ElementInstance)
		if i.Job != nil && jobs[*i.Job] {
			job := relation{o.id(jobType, *i.Job), "job"}
			of, with = append(of, job), append(with, job)
		}
		state := "CREATED"
		if i.ResolvedAt != nil {
			state = "RESOLVED"
		}
		values := append([]value{{name: "errorType", is: i.ErrorType}}, text("errorMessage", i.ErrorMessage)...)
		o.object(object{id: me, kind: incidentType, relations: of, values: append(values, states("CREATED", i.CreatedAt, state, i.ResolvedAt)...)})
		kind := []value{{name: "errorType", is: i.ErrorType}}
		o.event("incident created", me, i.CreatedAt, kind, with)
		o.event("incident resolved", me, i.ResolvedAt, kind, with)
	}
}

func (o *objects) object(one object) {
	if o.err == nil {
		o.err = o.log.object(one)
	}
}

// event writes an event about an object, if it has happened.
func (o *objects) event(kind, about string, at *time.Time, values []value, with []relation) {
	if at == nil || o.err != nil {
		return
	}
	if !o.declared[kind] {
		o.declared[kind] = true
		if o.err = o.log.eventType(kind, texts("resource", "jobType", "errorType")); o.err != nil {
			return
		}
	}
	o.seen++
	o.err = o.log.event(objectEvent{id: kind + ":" + about, kind: kind, at: *at, values: values, relations: with})
}

// end is when something came to its end, nil when it has not.
func end(one, other *time.Time) *time.Time {
	if one != nil {
		return one
	}
	return other
}

// states are the state that something began in and the one that it has now.
// When it got into that is not known unless it has ended.
func states(first string, since *time.Time, now string, then *time.Time) []value {
	switch {
	case then == nil:
		return []value{{name: "state", is: now}}
	case since == nil || first == now:
		return []value{{name: "state", is: now, at: *then}}
	}
	return []value{{name: "state", is: first, at: *since}, {name: "state", is: now, at: *then}}
}

func text(name, is string) []value {
	if is == "" {
		return nil
	}
	return []value{{name: name, is: is}}
}

func number(name string, is *int64) []value {
	if is == nil {
		return nil
	}
	return []value{{name: name, is: *is}}
}
