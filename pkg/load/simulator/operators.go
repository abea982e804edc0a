package simulator

import "time"

type incident struct {
	Incident
	in *instance
	el *element
}

// raise creates an incident of an element, or of its job.
func (el *element) raise(b batch, errorType, message string, j *job) *incident {
	i := &incident{in: el.in, el: el}
	i.Incident = Incident{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, Job: -1, Process: el.in.def.Process,
		ElementID: el.ID, ErrorType: errorType, ErrorMessage: message, CreatedAt: b.ms(),
	}
	if j != nil {
		i.Job = j.Key
	}
	el.incident = i
	if t := el.in.e.cfg.Truth; t != nil {
		t.Incidents = append(t.Incidents, &i.Incident)
	}
	el.in.Incidents++
	el.in.OpenIncidents++
	el.in.event(b, "INCIDENT", "CREATED", i.Key, (*incidentValue)(i))
	return i
}

// resolved ends an incident that was resolved or whose element has ended.
func (i *incident) resolved(b batch) {
	i.ResolvedAt = b.ms()
	i.in.OpenIncidents--
	i.el.incident = nil
	i.in.event(b, "INCIDENT", "RESOLVED", i.Key, (*incidentValue)(i))
}

// resolve carries out an operator's resolution of an incident.
func (i *incident) resolve() batch {
	b := i.in.p.batch("INCIDENT", "RESOLVE", i.Key, (*incidentValue)(i))
	i.resolved(b)
	return b
}

// awaitMapping stops an element whose input mapping fails until an operator provides the variable. Some are never resolved.
func (e *Engine) awaitMapping(b batch, el *element) {
	i := el.raise(b, "IO_MAPPING_ERROR", "No variable found with name 'address'", nil)
	if e.random.chance(250) {
		e.left(el.in.top())
		return
	}
	el.after(e.between(time.Minute, 30*time.Minute), func() {
		b := el.in.p.batch("VARIABLE_DOCUMENT", "UPDATE", -1, (*documentValue)(el))
		el.in.root.set(b, "address", `"Elbchaussee 1"`)
		b.event("VARIABLE_DOCUMENT", "UPDATED", el.in.p.nextKey(), (*documentValue)(el))
		el.activate(i.resolve())
	})
}

// planOperators draws whether an operator cancels or migrates an instance.
func (in *instance) planOperators() {
	e := in.e
	switch r := e.random.below(100); {
	case r < 5:
		e.after(e.between(50*time.Millisecond, 10*time.Second), in.cancel)
	case r < 10:
		e.after(e.between(10*time.Second, 30*time.Minute), in.cancel)
	}
	if e.random.chance(150) {
		in.planMigration(4)
	}
}

func (in *instance) cancel() {
	if in.root.ended {
		return
	}
	b := in.p.batch("PROCESS_INSTANCE", "CANCEL", in.Key, (*elementValue)(in.root))
	in.root.terminate(b)
}

func (in *instance) planMigration(tries int) {
	in.e.after(in.e.between(time.Second, 3*time.Minute), func() {
		if in.root.ended || in.migrate() || tries == 0 {
			return
		}
		in.planMigration(tries - 1)
	})
}

// migrate migrates an instance with its active elements to another process or version, unless it waits for more than jobs
// and people.
func (in *instance) migrate() bool {
	target := in.def.process.versions[versions-1]
	if other := in.def.process.target; other != nil {
		target = other.versions[versions-1]
	}
	if target == in.def || !in.root.movable() {
		return false
	}
	v := &migrationValue{in, target.DefinitionKey}
	b := in.p.batch("PROCESS_INSTANCE_MIGRATION", "MIGRATE", in.Key, v)
	in.def, in.Process = target, target.Process
	todo := []*element{in.root}
	for len(todo) > 0 { // breadth first, like the engine
		el := todo[0]
		todo = append(todo[1:], el.active...)
		el.migrate(b)
	}
	in.event(b, "PROCESS_INSTANCE_MIGRATION", "MIGRATED", in.Key, v)
	return true
}

func (el *element) movable() bool {
	switch el.node.kind {
	case wholeProcess, subProcess, service, user:
	default:
		return false
	}
	for _, c := range el.active {
		if !c.movable() {
			return false
		}
	}
	return true
}

// migrate moves one element, with its job, incident, user task and variables.
func (el *element) migrate(b batch) {
	el.Process = el.in.Process
	el.ID = el.in.def.name(el.node)
	if el.scope == nil {
		el.ID = el.in.Process.BpmnProcessID
	}
	el.in.MigratedElement++
	el.write(b, "ELEMENT_MIGRATED")
	if j := el.job; j != nil {
		j.Process, j.ElementID = el.Process, el.ID
		j.marker = false
		j.write(b, "MIGRATED")
	}
	if i := el.incident; i != nil {
		i.Process, i.ElementID = el.Process, el.ID
		el.in.event(b, "INCIDENT", "MIGRATED", i.Key, (*incidentValue)(i))
	}
	if t := el.task; t != nil {
		t.Process, t.ElementID = el.Process, el.ID
		t.action = ""
		t.write(b, "MIGRATED")
	}
	for _, v := range el.variables {
		v.Process = el.Process
		// This record does not have the value.
		el.in.event(b, "VARIABLE", "MIGRATED", v.Key, (*migratedVariableValue)(v))
	}
}
