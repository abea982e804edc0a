package simulator

import "strconv"

// activateCall starts an instance of another process. The element waits for its end.
func (el *element) activateCall(b batch) {
	e := el.in.e
	if e.called == nil {
		for _, pr := range e.processes {
			if pr.id == el.node.does {
				e.called = pr.versions[len(pr.versions)-1]
			}
		}
	}
	el.activated(b)
	child := e.newInstance(el.in.p, e.called, el.in.Tenant, el)
	child.firstVariables(b)
	b.command("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", child.Key, (*elementValue)(child.root))
	child.start(b)
}

// passFork takes all branches of a parallel gateway at once, and continues after its join once all have arrived.
func (el *element) passFork(b batch) {
	then, scope, n := el.then, el.scope, el.node
	waiting := len(n.branches)
	var ends []*element
	arrived := func(b batch, last *element) {
		ends = append(ends, last)
		scope.take(b, last, 0)
		if waiting--; waiting > 0 {
			b.command("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", -1, (*elementValue)(el))
			b.reject("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", -1, (*elementValue)(el))
			return
		}
		joined := &node{kind: join, id: n.id + "_join"}
		c := scope.child(b, joined, then)
		for _, end := range ends {
			c.follow(end)
		}
		c.enter(b)
	}
	el.then = func(b batch, _ *element) {
		var first []*element
		for way, branch := range n.branches {
			scope.take(b, el, way)
			c := scope.prepare(b, branch, 0, arrived)
			c.follow(el)
			first = append(first, c)
		}
		for _, c := range first {
			c.enter(b)
		}
	}
	el.activated(b)
	el.complete(b)
}

// item is one iteration of a multi-instance body.
type item struct {
	body    *element
	index   int // from 0
	results *results
}

type results struct{ items []string }

func (r *results) json() string {
	b := []byte{'['}
	for i, s := range r.items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, s...)
	}
	return string(append(b, ']'))
}

// activateBody runs the activity of a multi-instance body once for each item.
func (el *element) activateBody(b batch) {
	n := 2 + int(el.in.e.random.below(4))
	r := &results{}
	for range n {
		r.items = append(r.items, "null")
	}
	el.activated(b)
	el.set(b, "results", r.json())
	done := 0
	el.before = func(b batch) { el.merge(b, "results_"+el.node.id, r.json()) }
	if el.node.loop == sequential {
		el.turn(b, &item{el, 0, r}, n)
		return
	}
	key := el.in.p.nextKey()
	b.command("PROCESS_INSTANCE_BATCH", "ACTIVATE", key, (*instanceBatchValue)(el))
	var turns []*element
	for i := range n {
		turns = append(turns, el.innerChild(b, &item{el, i, r}, func(b batch, _ *element) {
			if done++; done == n {
				el.complete(b)
			}
		}))
	}
	el.in.event(b, "PROCESS_INSTANCE_BATCH", "ACTIVATED", key, (*instanceBatchValue)(el))
	for _, c := range turns {
		c.enter(b)
	}
}

// turn runs the items of a sequential body, from one on.
func (el *element) turn(b batch, it *item, of int) {
	el.innerChild(b, it, func(b batch, _ *element) {
		if it.index+1 == of {
			el.complete(b)
			return
		}
		el.turn(b, &item{el, it.index + 1, it.results}, of)
	}).enter(b)
}

// innerChild activates the activity of one item. It has the id of the body, and the body as flow scope.
func (el *element) innerChild(b batch, it *item, then func(batch, *element)) *element {
	elementType, eventType := el.node.kind.bpmn()
	c := el.newChild(el.node, elementType, eventType)
	c.BodyKey, c.inner, c.then = el.Key, it, then
	c.before = func(b batch) { it.collect(b) }
	b.command("PROCESS_INSTANCE", "ACTIVATE_ELEMENT", c.Key, (*elementValue)(c))
	return c
}

// variables sets the local variables of an iteration.
func (it *item) variables(b batch, el *element) {
	el.set(b, "item", `"item `+strconv.Itoa(it.index)+`"`)
	el.set(b, "loopCounter", strconv.Itoa(it.index+1))
}

// collect adds the result of an iteration to the body's collection.
func (it *item) collect(b batch) {
	it.results.items[it.index] = strconv.Itoa(it.index)
	it.body.set(b, "results", it.results.json())
}
