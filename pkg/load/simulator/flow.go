package simulator

import "time"

type instance struct {
	Instance
	e      *Engine
	p      *partition
	def    *definition
	root   *element
	caller *element // the call activity of a called instance
	left   bool     // it does not count as running
}

type element struct {
	Element
	in    *instance
	scope *element // enclosing element; nil for the process
	node  *node
	event string // bpmnEventType

	then   func(b batch, last *element) // continues after the completion of it or its boundary event
	before func(b batch)                // writes records between its completing and its completion
	inner  *item                        // of a child of a multi-instance body

	active    []*element // running children
	called    *instance
	job       *job
	task      *userTask
	timer     *waitingTimer
	message   *subscription
	incident  *incident // open one
	variables []*variable
	mapped    bool // its input mapping was tried
	ended     bool
}

// begin starts an instance of a random process, except those that are only called.
func (e *Engine) begin() {
	pr := pick(&e.random, e.processes)
	for pr.callable || pr.id == "order-eu" && e.random.chance(700) { // most of its instances were migrated to it
		pr = pick(&e.random, e.processes)
	}
	p := pick(&e.random, e.partitions)
	in := e.newInstance(p, pick(&e.random, pr.versions), pick(&e.random, e.cfg.Tenants), nil)

	b := p.batch("PROCESS_INSTANCE_CREATION", "CREATE", -1, (*creationValue)(in))
	in.firstVariables(b)
	b.command("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", in.Key, (*elementValue)(in.root))
	b.event("PROCESS_INSTANCE_CREATION", "CREATED", p.nextKey(), (*creationValue)(in))
	in.start(b)
	in.planOperators()
}

func (e *Engine) newInstance(p *partition, def *definition, tenant string, caller *element) *instance {
	in := &instance{e: e, p: p, def: def, caller: caller}
	in.Instance = Instance{
		Key: p.nextKey(), Partition: p.id, Tenant: tenant, First: def.Process, Process: def.Process,
		ParentInstance: -1, ParentElement: -1,
	}
	if caller != nil {
		in.ParentInstance, in.ParentElement = caller.in.Key, caller.Key
		caller.called = in
	}
	in.root = &element{in: in, node: &node{kind: wholeProcess, id: def.process.id}, event: "UNSPECIFIED"}
	in.root.Element = Element{
		Key: in.Key, Instance: &in.Instance, Process: def.Process, FirstID: def.BpmnProcessID, ID: def.BpmnProcessID,
		Type: "PROCESS", FlowScope: -1, BodyKey: -1,
	}
	if t := e.cfg.Truth; t != nil {
		t.Instances = append(t.Instances, &in.Instance)
		t.Elements = append(t.Elements, &in.root.Element)
	}
	return in
}

func (in *instance) start(b batch) {
	in.root.write(b, "ELEMENT_ACTIVATING")
	in.EnteredAt, in.root.EnteredAt = b.ms(), b.ms()
	in.root.write(b, "ELEMENT_ACTIVATED")
	in.StartedAt, in.root.ActivatedAt = b.ms(), b.ms()
	in.root.run(b, in.def.process.elements, func(b batch, _ *element) { in.complete(b) })
}

// complete ends an instance whose last element has completed.
func (in *instance) complete(b batch) {
	b.command("PROCESS_INSTANCE", "COMPLETE_ELEMENT", in.Key, (*elementValue)(in.root))
	in.root.write(b, "ELEMENT_COMPLETING")
	in.root.write(b, "ELEMENT_COMPLETED")
	in.CompletedAt, in.root.CompletedAt = b.ms(), b.ms()
	in.root.ended = true
	if in.caller != nil {
		in.caller.complete(b)
	}
	in.e.left(in)
}

// event writes an event of the instance.
func (in *instance) event(b batch, valueType, intent string, key int64, v value) int64 {
	position := b.event(valueType, intent, key, v)
	if seen(valueType) {
		if in.FirstSeen == 0 {
			in.FirstSeen = b.ms()
		}
		in.LastSeen = b.ms()
	}
	return position
}

// seen reports whether records of a type count as activity of an instance.
func seen(valueType string) bool {
	return valueType == "PROCESS_INSTANCE" || valueType == "JOB" || valueType == "INCIDENT"
}

func (el *element) run(b batch, nodes []node, done func(batch, *element)) {
	el.prepare(b, nodes, 0, done).enter(b)
}

// prepare activates the i-th element, and schedules those after it.
func (el *element) prepare(b batch, nodes []node, i int, done func(batch, *element)) *element {
	n := &nodes[i]
	return el.child(b, n, func(b batch, last *element) {
		next, way := i+1, 0
		if n.kind == choice && el.in.e.random.chance(500) {
			next, way = i+2, 1
		}
		if next >= len(nodes) {
			done(b, last)
			return
		}
		el.take(b, last, way)
		c := el.prepare(b, nodes, next, done)
		c.follow(last)
		c.enter(b)
	})
}

// child activates an element of the scope.
func (el *element) child(b batch, n *node, then func(batch, *element)) *element {
	elementType, eventType := n.kind.bpmn()
	if n.loop != once {
		elementType = bodyType
	}
	c := el.newChild(n, elementType, eventType)
	c.then = then
	b.command("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", c.Key, (*elementValue)(c))
	return c
}

// follow records that a sequence flow leads here from another element, or that this is its boundary event.
func (el *element) follow(other *element) {
	if el.in.e.cfg.Truth != nil {
		el.Follows = append(el.Follows, &other.Element)
	}
}

func (el *element) newChild(n *node, elementType, eventType string) *element {
	id := el.in.def.name(n)
	c := &element{in: el.in, scope: el, node: n, event: eventType}
	c.Element = Element{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Process: el.in.def.Process,
		FirstID: id, ID: id, Type: elementType, FlowScope: el.Key, BodyKey: -1,
	}
	el.active = append(el.active, c)
	if t := el.in.e.cfg.Truth; t != nil {
		t.Elements = append(t.Elements, &c.Element)
	}
	return c
}

// take takes a sequence flow after an element of the scope, chosen by way.
func (el *element) take(b batch, from *element, way int) {
	flow := &element{in: el.in, scope: el, event: "UNSPECIFIED"}
	flow.Element = Element{Key: el.in.p.nextKey(), ID: flowID(from.node.id, way), Type: flowType, FlowScope: el.Key}
	el.in.event(b, "PROCESS_INSTANCE", "SEQUENCE_FLOW_TAKEN", flow.Key, (*elementValue)(flow))
}

func (el *element) write(b batch, intent string) {
	position := el.in.event(b, "PROCESS_INSTANCE", intent, el.Key, (*elementValue)(el))
	if el.Position == 0 {
		el.Position = position
	}
}

// enter is the first step of an element. A failing input mapping stops it before it is active.
func (el *element) enter(b batch) {
	el.write(b, "ELEMENT_ACTIVATING")
	el.EnteredAt = b.ms()
	if el.inner != nil {
		el.inner.variables(b, el)
	}
	el.activate(b)
}

func (el *element) activate(b batch) {
	if el.node.mapping && !el.mapped {
		el.mapped = true
		if el.in.e.random.chance(150) {
			el.in.e.awaitMapping(b, el)
			return
		}
	}
	if el.Type == bodyType {
		el.activateBody(b)
		return
	}
	switch el.node.kind {
	case service:
		el.newJob(b)
		el.activated(b)
	case user:
		el.activateUserTask(b)
	case timer:
		el.activateTimer(b)
	case message:
		el.activateMessage(b)
	case subProcess:
		el.activated(b)
		el.run(b, el.node.children, func(b batch, _ *element) { el.complete(b) })
	case call:
		el.activateCall(b)
	case fork:
		el.passFork(b)
	case rule:
		el.evaluate(b)
	default:
		el.activated(b)
		el.complete(b)
	}
}

func (el *element) activated(b batch) {
	el.write(b, "ELEMENT_ACTIVATED")
	el.ActivatedAt = b.ms()
}

// complete completes an element and continues after it.
func (el *element) complete(b batch) {
	b.command("PROCESS_INSTANCE", "COMPLETE_ELEMENT", el.Key, (*elementValue)(el))
	el.write(b, "ELEMENT_COMPLETING")
	if el.before != nil {
		el.before(b)
	}
	el.write(b, "ELEMENT_COMPLETED")
	el.CompletedAt = b.ms()
	el.end()
	el.then(b, el)
}

// terminate terminates an element and its children.
func (el *element) terminate(b batch) {
	b.command("PROCESS_INSTANCE", "TERMINATE_ELEMENT", el.Key, (*elementValue)(el))
	el.write(b, "ELEMENT_TERMINATING")
	if len(el.active) > 0 {
		key := el.in.p.nextKey()
		b.command("PROCESS_INSTANCE_BATCH", "TERMINATE", key, (*instanceBatchValue)(el))
		for len(el.active) > 0 {
			el.active[0].terminate(b)
		}
		el.in.event(b, "PROCESS_INSTANCE_BATCH", "TERMINATED", key, (*instanceBatchValue)(el))
	}
	if el.called != nil && !el.called.root.ended {
		el.called.root.terminate(b)
	}
	el.release(b)
	el.write(b, "ELEMENT_TERMINATED")
	el.TerminatedAt = b.ms()
	if el.scope == nil {
		el.in.TerminatedAt = b.ms()
		el.in.e.left(el.in)
	}
	el.end()
}

// release cancels everything for which an element waits.
func (el *element) release(b batch) {
	if el.job != nil {
		el.job.cancel(b)
	}
	if el.task != nil {
		el.task.cancel(b)
	}
	if el.timer != nil {
		el.timer.cancel(b)
	}
	if el.message != nil {
		el.message.cancel(b)
	}
	if el.incident != nil {
		el.incident.resolved(b)
	}
}

func (el *element) end() {
	el.ended = true
	if el.scope == nil {
		return
	}
	for i, other := range el.scope.active {
		if other == el {
			el.scope.active = append(el.scope.active[:i], el.scope.active[i+1:]...)
			break
		}
	}
}

// triggered writes that an external event resumes an element, between its completing and its completion.
func (el *element) triggered(b batch, target *node, variables string) {
	ev := &processEvent{el: el, target: el.in.def.name(target), variables: variables}
	key := el.in.p.nextKey()
	el.in.event(b, "PROCESS_EVENT", "TRIGGERING", key, ev)
	el.before = func(b batch) {
		if variables != "" {
			el.merge(b, "result_"+el.node.id, variables)
		}
		el.in.event(b, "PROCESS_EVENT", "TRIGGERED", key, ev)
		if el.inner != nil {
			el.inner.collect(b)
		}
	}
}

type processEvent struct {
	el        *element
	target    string
	variables string // JSON of the value, or empty
}

func (el *element) after(wait time.Duration, do func()) {
	el.in.e.after(wait, func() {
		if !el.ended {
			do()
		}
	})
}
