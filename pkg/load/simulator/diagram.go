package simulator

import (
	"fmt"
	"strings"
)

// Sizes of shapes in the units of BPMN diagrams, as modelers use them.
const (
	taskWidth, taskHeight = 100, 80
	eventSize             = 36
	gatewaySize           = 50
	gap                   = 50 // between two elements
	margin                = 40 // within a sub-process
)

// diagram writes a process as a BPMN file with its diagram: elements in a row, branches of a gateway in a column.
type diagram struct {
	d      *definition
	model  strings.Builder // elements of the process
	roots  strings.Builder // messages and errors
	shapes strings.Builder
	edges  strings.Builder
}

type point struct{ x, y int }

// exit is the start of a sequence flow.
type exit struct {
	id string // element
	at point
}

// xml returns the BPMN of a version of a process.
func (d *definition) xml() string {
	w := &diagram{d: d}
	nodes := d.process.elements
	w.row(nodes, 160, 80+half(nodes))
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
		`<bpmn:definitions xmlns:bpmn="http://www.omg.org/spec/BPMN/20100524/MODEL" xmlns:bpmndi="http://www.omg.org/spec/BPMN/20100524/DI"` +
		` xmlns:dc="http://www.omg.org/spec/DD/20100524/DC" xmlns:di="http://www.omg.org/spec/DD/20100524/DI"` +
		` xmlns:zeebe="http://camunda.org/schema/zeebe/1.0" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"` +
		` id="definitions_` + d.BpmnProcessID + `" targetNamespace="http://bpmn.io/schema/bpmn">` + "\n")
	fmt.Fprintf(&b, `<bpmn:process id="%s" name="%s" isExecutable="true">`+"\n", d.BpmnProcessID, d.title())
	b.WriteString(w.model.String() + "</bpmn:process>\n" + w.roots.String())
	fmt.Fprintf(&b, `<bpmndi:BPMNDiagram id="diagram"><bpmndi:BPMNPlane id="plane" bpmnElement="%s">`+"\n", d.BpmnProcessID)
	b.WriteString(w.shapes.String() + w.edges.String() + "</bpmndi:BPMNPlane></bpmndi:BPMNDiagram>\n</bpmn:definitions>\n")
	return b.String()
}

// size returns the width and height of an element, including a gateway's branches and join.
func (n *node) size() (width, height int) {
	switch n.kind {
	case startEvent, endEvent, timer, message:
		return eventSize, eventSize
	case choice:
		return gatewaySize, gatewaySize
	case subProcess:
		return length(n.children) + 2*margin, 2 * (half(n.children) + margin)
	case fork:
		for _, branch := range n.branches {
			width = max(width, length(branch))
			height += 2*half(branch) + gap
		}
		return width + 2*(gatewaySize+gap), height - gap
	}
	return taskWidth, taskHeight
}

func length(nodes []node) int {
	sum := -gap
	for i := range nodes {
		width, _ := nodes[i].size()
		sum += gap + width
	}
	return sum
}

// half returns the extent of a row above and below its middle, including labels.
func half(nodes []node) int {
	highest := 0
	for i := range nodes {
		_, height := nodes[i].size()
		around := 0
		switch {
		case nodes[i].boundary != "":
			around = 60 // the event and its name, below
		case i > 0 && nodes[i-1].kind == choice:
			around = 20 // the flow around it, above
		}
		highest = max(highest, height/2+around)
	}
	return highest
}

// row draws elements from x on, centred at y, with their flows, and returns the exits of the row.
func (w *diagram) row(nodes []node, x, y int) []exit {
	var open, past []exit // to the current element, and to the next one
	for i := range nodes {
		n := &nodes[i]
		width, height := n.size()
		entry := point{x, y}
		for way, from := range open {
			w.flow(from, w.d.name(n), entry, 0, way > 0)
		}
		for _, from := range past {
			_, passed := nodes[i-1].size()
			w.around(from, w.d.name(n), point{x + width/2, y - height/2}, y-passed/2-20)
		}
		past = nil
		if i > 0 && nodes[i-1].kind == choice {
			past = []exit{{w.d.name(&nodes[i-1]), point{x - gap - gatewaySize/2, y - gatewaySize/2}}}
		}
		open = w.element(n, x, y, width, height)
		x += width + gap
	}
	return open
}

func (w *diagram) element(n *node, x, y, width, height int) []exit {
	id := w.d.name(n)
	if n.kind == fork {
		return w.fork(n, x, y, width)
	}
	w.open(n, id)
	w.shape(id, x, y-height/2, width, height, n.kind == subProcess)
	if n.kind == subProcess {
		w.row(n.children, x+margin, y)
	}
	w.close(n)
	exits := []exit{{id, point{x + width, y}}}
	if n.boundary != "" {
		w.boundary(n, id)
		w.shape(n.boundary, x+width/2, y+height/2-eventSize/2, eventSize, eventSize, false)
		exits = append(exits, exit{n.boundary, point{x + width/2 + eventSize, y + height/2}})
	}
	return exits
}

func (w *diagram) fork(n *node, x, y, width int) []exit {
	id, joined := w.d.name(n), n.id+"_join"
	_, height := n.size()
	end := point{x + width - gatewaySize, y}
	w.tag("parallelGateway", id, "")
	w.shape(id, x, y-gatewaySize/2, gatewaySize, gatewaySize, false)
	top := y - height/2
	for i, branch := range n.branches {
		middle := top + half(branch)
		top += 2*half(branch) + gap
		begin := x + gatewaySize + gap
		w.flow(exit{id, point{x + gatewaySize, y}}, w.d.name(&branch[0]), point{begin, middle}, i, false)
		for way, from := range w.row(branch, begin, middle) {
			w.flow(from, joined, end, 0, way > 0)
		}
	}
	w.tag("parallelGateway", joined, "")
	w.shape(joined, end.x, y-gatewaySize/2, gatewaySize, gatewaySize, false)
	return []exit{{joined, point{end.x + gatewaySize, y}}}
}

// flowID returns the id of an element's sequence flow; way counts its flows from 0.
func flowID(from string, way int) string {
	if way > 0 {
		return fmt.Sprintf("flow_%s_%d", from, way+1)
	}
	return "flow_" + from
}

// original returns the id of an element before its renaming, which flows keep.
func (w *diagram) original(name string) string {
	for from, to := range w.d.process.rename {
		if to == name {
			return from
		}
	}
	return name
}

// flow draws a sequence flow from left to right. A flow from a boundary event is drawn below first.
func (w *diagram) flow(from exit, to string, at point, way int, below bool) {
	points := []point{from.at, at}
	switch middle := (from.at.x + at.x) / 2; {
	case below:
		points = []point{from.at, {at.x - gap/2, from.at.y}, {at.x - gap/2, at.y}, at}
	case from.at.y != at.y:
		points = []point{from.at, {middle, from.at.y}, {middle, at.y}, at}
	}
	w.edge(flowID(w.original(from.id), way), from.id, to, points, "")
}

// around draws the second flow of a gateway, around the next element.
func (w *diagram) around(from exit, to string, at point, above int) {
	above = min(above, at.y-20)
	w.edge(flowID(w.original(from.id), 1), from.id, to, []point{from.at, {from.at.x, above}, {at.x, above}, at}, "=skip")
}

func (w *diagram) edge(id, from, to string, points []point, condition string) {
	fmt.Fprintf(&w.model, `<bpmn:sequenceFlow id="%s" sourceRef="%s" targetRef="%s"`, id, from, to)
	if condition == "" {
		w.model.WriteString("/>\n")
	} else {
		fmt.Fprintf(&w.model, `><bpmn:conditionExpression xsi:type="bpmn:tFormalExpression">%s</bpmn:conditionExpression></bpmn:sequenceFlow>`+"\n", condition)
	}
	fmt.Fprintf(&w.edges, `<bpmndi:BPMNEdge id="%s_di" bpmnElement="%s">`, id, id)
	for _, p := range points {
		fmt.Fprintf(&w.edges, `<di:waypoint x="%d" y="%d"/>`, p.x, p.y)
	}
	w.edges.WriteString("</bpmndi:BPMNEdge>\n")
}

func (w *diagram) shape(id string, x, y, width, height int, expanded bool) {
	more := ""
	if expanded {
		more = ` isExpanded="true"`
	}
	fmt.Fprintf(&w.shapes, `<bpmndi:BPMNShape id="%s_di" bpmnElement="%s"%s><dc:Bounds x="%d" y="%d" width="%d" height="%d"/></bpmndi:BPMNShape>`+"\n",
		id, id, more, x, y, width, height)
}

// tag writes an element without children.
func (w *diagram) tag(kind, id, attributes string) {
	fmt.Fprintf(&w.model, `<bpmn:%s id="%s" name="%s"%s/>`+"\n", kind, id, words(id), attributes)
}

// open starts an element with children.
func (w *diagram) open(n *node, id string) {
	within := map[kind]string{
		service: `<bpmn:extensionElements><zeebe:taskDefinition type="` + n.does + `"/></bpmn:extensionElements>`,
		user:    `<bpmn:extensionElements><zeebe:userTask/><zeebe:formDefinition externalReference="` + n.does + `"/></bpmn:extensionElements>`,
		call:    `<bpmn:extensionElements><zeebe:calledElement processId="` + n.does + `"/></bpmn:extensionElements>`,
		rule:    `<bpmn:extensionElements><zeebe:calledDecision decisionId="` + n.does + `" resultVariable="result_` + n.id + `"/></bpmn:extensionElements>`,
		timer:   `<bpmn:timerEventDefinition><bpmn:timeDuration xsi:type="bpmn:tFormalExpression">` + n.wait + `</bpmn:timeDuration></bpmn:timerEventDefinition>`,
		message: `<bpmn:messageEventDefinition messageRef="message_` + n.id + `"/>`,
	}[n.kind]
	attributes := ""
	if n.kind == choice {
		attributes = ` default="` + flowID(n.id, 0) + `"`
	}
	fmt.Fprintf(&w.model, `<bpmn:%s id="%s" name="%s"%s>%s`, n.kind.tag(), id, words(id), attributes, within)
	switch n.loop {
	case sequential:
		w.model.WriteString(`<bpmn:multiInstanceLoopCharacteristics isSequential="true"/>`)
	case parallel:
		w.model.WriteString(`<bpmn:multiInstanceLoopCharacteristics/>`)
	}
	if n.kind == subProcess {
		w.model.WriteString("\n")
	}
	if n.kind == message {
		fmt.Fprintf(&w.roots, `<bpmn:message id="message_%s" name="%s"/>`+"\n", n.id, n.does)
	}
}

func (w *diagram) close(n *node) { fmt.Fprintf(&w.model, "</bpmn:%s>\n", n.kind.tag()) }

// boundary writes the error event at the boundary of an element.
func (w *diagram) boundary(n *node, id string) {
	fmt.Fprintf(&w.model, `<bpmn:boundaryEvent id="%s" name="%s" attachedToRef="%s"><bpmn:errorEventDefinition errorRef="error_%s"/></bpmn:boundaryEvent>`+"\n",
		n.boundary, words(n.boundary), id, n.boundary)
	fmt.Fprintf(&w.roots, `<bpmn:error id="error_%s" name="%s" errorCode="REFUSED"/>`+"\n", n.boundary, n.boundary)
}

func (k kind) tag() string {
	return map[kind]string{
		startEvent: "startEvent", service: "serviceTask", user: "userTask", timer: "intermediateCatchEvent", message: "intermediateCatchEvent",
		choice: "exclusiveGateway", subProcess: "subProcess", call: "callActivity", endEvent: "endEvent", rule: "businessRuleTask",
	}[k]
}

// words converts an id to a label.
func words(id string) string {
	text := strings.ReplaceAll(id, "_", " ")
	return strings.ToUpper(text[:1]) + text[1:]
}
