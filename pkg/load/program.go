package load

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// program is the life of one process instance, step by step.
type program []step

// step is one record of it. A step with a chance stands for itself and the
// steps up to skip: they happen together or not at all.
type step struct {
	template  template
	valueType valueType
	before    effect // on the instance, before the record is written
	key       subject
	chance    uint32 // of 2^32; 0 is always
	skip      int    // steps to pass over when the chance did not come
}

// effect is what a step does to its instance.
type effect int

const (
	nothing    effect = iota
	newElement        // another element instance is entered
	newJob            // a job, user task or subscription begins, with three retries
	assign            // a worker takes the job for five minutes
	fail              // the job fails for a new reason, one retry less
	giveUp            // the job fails for a new reason, no retry left
	newEvent          // an incident, timer or message begins, good for an hour
)

// subject is what the key of a record belongs to.
type subject int

const (
	ofInstance subject = iota
	ofElement
	ofJob
	ofEvent
	ofNothing // -1
	ofItself  // a new key
)

// builder writes the program of one version of one process.
type builder struct {
	fixed   names
	slots   map[string]slot
	full    bool
	program program
	err     error
}

func compileProgram(p process, version int, definition int64) (program, error) {
	own := map[string]string{
		"process":     p.id,
		"version":     strconv.Itoa(version),
		"definition":  strconv.FormatInt(definition, 10),
		"variables":   p.variables,
		"headers":     headers,
		"ref":         "$instance",
		"jobExtra":    jobExtra,
		"jobRetries":  "$retries",
		"jobDeadline": "$deadline",
	}
	if p.keyText {
		own["ref"] = `"$instance"`
	}
	if p.legacy {
		own["jobExtra"], own["jobRetries"], own["jobDeadline"] = "", `"$retries"`, `"$deadline"`
	}
	b := &builder{full: p.full, fixed: names{own}, slots: slots()}
	b.instance(p)
	return b.program, b.err
}

// instance is the life of a process instance from creation to completion.
func (b *builder) instance(p process) {
	head := slimHead
	if b.full {
		head = fullHead
	}
	b.maybe(0.003, func() { b.raw(head+rejectionRecord, valueCreation, nothing, ofNothing) })
	b.record(creationValue, valueCreation, "CREATED", nothing, ofItself)

	process := map[string]string{"element": p.id, "elementType": "PROCESS", "eventType": "UNSPECIFIED", "scope": "-1"}
	b.within(process, func() {
		b.record(elementValue, valueElement, "ELEMENT_ACTIVATING", nothing, ofInstance)
		b.record(elementValue, valueElement, "ELEMENT_ACTIVATED", nothing, ofInstance)
	})
	b.variable("CREATED", "$instance", "country", `\"$country\"`)
	b.variable("CREATED", "$instance", "amount", "$amount")
	for i, e := range p.elements {
		b.element(e)
		if i < len(p.elements)-1 {
			flow := map[string]string{"element": fmt.Sprintf("Flow_%d", i+1), "elementType": "SEQUENCE_FLOW", "eventType": "UNSPECIFIED", "scope": "$instance"}
			b.within(flow, func() { b.record(elementValue, valueElement, "SEQUENCE_FLOW_TAKEN", nothing, ofItself) })
		}
	}
	b.within(process, func() {
		b.record(elementValue, valueElement, "ELEMENT_COMPLETING", nothing, ofInstance)
		b.record(elementValue, valueElement, "ELEMENT_COMPLETED", nothing, ofInstance)
	})
}

func (b *builder) element(e element) {
	elementType, eventType := e.kind.bpmn()
	b.within(map[string]string{"element": e.id, "elementType": elementType, "eventType": eventType, "scope": "$instance", "does": e.does}, func() {
		b.record(elementValue, valueElement, "ELEMENT_ACTIVATING", newElement, ofElement)
		b.record(elementValue, valueElement, "ELEMENT_ACTIVATED", nothing, ofElement)
		switch e.kind {
		case service:
			b.job()
		case user:
			b.userTask()
		case timer:
			b.record(timerValue, valueTimer, "CREATED", newEvent, ofEvent)
			b.record(timerValue, valueTimer, "TRIGGERED", nothing, ofEvent)
		case message:
			b.record(subscriptionValue, valueSubscription, "CREATED", newJob, ofJob)
			b.record(messageValue, valueMessage, "PUBLISHED", newEvent, ofEvent)
			b.record(subscriptionValue, valueSubscription, "CORRELATED", nothing, ofJob)
			b.maybe(0.5, func() { b.record(messageValue, valueMessage, "EXPIRED", nothing, ofEvent) })
		case gateway:
			b.maybe(0.4, func() { b.variable("UPDATED", "$instance", "amount", "$amount") })
		}
		b.record(elementValue, valueElement, "ELEMENT_COMPLETING", nothing, ofElement)
		b.record(elementValue, valueElement, "ELEMENT_COMPLETED", nothing, ofElement)
	})
}

// job is created, taken by a worker, and completed, now and then after it timed
// out, failed, or came to need a person.
func (b *builder) job() {
	b.within(map[string]string{"jobWorker": "", "jobRetries": "3", "jobDeadline": "-1", "jobErrorCode": "", "jobError": "", "jobVariables": "{}"}, func() {
		b.record(jobValue, valueJob, "CREATED", newJob, ofJob)
	})
	taken := map[string]string{"jobWorker": "$worker", "jobErrorCode": "", "jobError": "", "jobVariables": "{}"}
	failed := maps.Clone(taken)
	failed["jobErrorCode"], failed["jobError"] = "$errorCode", "$error"
	completed := maps.Clone(taken)
	completed["jobVariables"] = jobResult

	b.maybe(0.25, func() { b.record(jobBatchValue, valueJobBatch, "ACTIVATED", assign, ofItself) })
	b.maybe(0.02, func() { b.within(taken, func() { b.record(jobValue, valueJob, "TIMED_OUT", assign, ofJob) }) })
	b.maybe(0.05, func() { b.within(failed, func() { b.record(jobValue, valueJob, "FAILED", fail, ofJob) }) })
	b.maybe(0.015, func() {
		b.within(failed, func() { b.record(jobValue, valueJob, "FAILED", giveUp, ofJob) })
		b.record(incidentValue, valueIncident, "CREATED", newEvent, ofEvent)
		b.maybe(0.8, func() { b.record(incidentValue, valueIncident, "RESOLVED", nothing, ofEvent) })
	})
	b.within(completed, func() { b.record(jobValue, valueJob, "COMPLETED", assign, ofJob) })
	b.maybe(0.3, func() { b.variable("CREATED", "$elementKey", "result", `{\"ok\":$flag,\"reference\":\"$hex\"}`) })
}

func (b *builder) userTask() {
	b.within(map[string]string{"assignee": "", "action": ""}, func() {
		b.record(userTaskValue, valueUserTask, "CREATED", newJob, ofJob)
	})
	b.within(map[string]string{"action": "assign"}, func() { b.record(userTaskValue, valueUserTask, "ASSIGNED", nothing, ofJob) })
	b.within(map[string]string{"action": "complete"}, func() { b.record(userTaskValue, valueUserTask, "COMPLETED", nothing, ofJob) })
}

func (b *builder) variable(intent, scope, name, literal string) {
	b.within(map[string]string{"scope": scope, "variable": name, "literal": literal}, func() {
		b.record(variableValue, valueVariable, intent, nothing, ofItself)
	})
}

// record adds a step that writes value in the envelope of the engine.
func (b *builder) record(value string, t valueType, intent string, before effect, key subject) {
	envelope := slimEnvelope
	if b.full {
		envelope = fullEnvelope
	}
	b.within(map[string]string{"valueType": t.String(), "intent": intent}, func() { b.raw(envelope+value, t, before, key) })
}

func (b *builder) raw(text string, t valueType, before effect, key subject) {
	compiled, err := compile(text, b.fixed, b.slots)
	if err != nil && b.err == nil {
		b.err = fmt.Errorf("%s: %w", t, err)
	}
	b.program = append(b.program, step{template: compiled, valueType: t, before: before, key: key})
}

// maybe makes the steps that add adds happen with a chance between 0 and 1.
func (b *builder) maybe(chance float64, add func()) {
	first := len(b.program)
	add()
	b.program[first].chance = uint32(chance * (1 << 32))
	b.program[first].skip = len(b.program) - first
}

// within fixes further names for the steps that add adds.
func (b *builder) within(fixed map[string]string, add func()) {
	b.fixed = append(b.fixed, fixed)
	add()
	b.fixed = b.fixed[:len(b.fixed)-1]
}

// names are the names that are fixed, the innermost last.
type names []map[string]string

func (n names) value(name string) (string, bool) {
	for _, fixed := range slices.Backward(n) {
		if value, ok := fixed[name]; ok {
			return value, true
		}
	}
	return "", false
}

// slot is a place of a template that is filled for every record.
type slot int

const (
	slotNone slot = iota
	slotPartition
	slotPosition
	slotSource     // position of the command that caused the record
	slotKey        // of the record itself
	slotTimestamp  // epoch ms
	slotInstance   // key of the process instance
	slotElementKey // key of the element instance
	slotJob        // key of the job or user task
	slotDeadline   // epoch ms
	slotRetries
	slotWorker
	slotAssignee
	slotErrorCode
	slotError   // text of the current failure
	slotNumber  // up to six digits, fixed per instance
	slotAmount  // with two decimals, fixed per instance
	slotCountry // fixed per instance
	slotFlag    // true or false, fixed per instance
	slotDigit   // one digit, fixed per instance
	slotHex     // eight hex digits, new in every record
)

func slots() map[string]slot {
	return map[string]slot{
		"partition": slotPartition, "position": slotPosition, "source": slotSource, "key": slotKey,
		"timestamp": slotTimestamp, "instance": slotInstance, "elementKey": slotElementKey, "job": slotJob,
		"deadline": slotDeadline, "retries": slotRetries, "worker": slotWorker, "assignee": slotAssignee,
		"errorCode": slotErrorCode, "error": slotError, "number": slotNumber, "amount": slotAmount,
		"country": slotCountry, "flag": slotFlag, "digit": slotDigit, "hex": slotHex,
	}
}

// template is a record with holes: literal text, each followed by a slot.
type template []piece

type piece struct {
	text string
	slot slot
}

// compile replaces the names that are fixed, whose own text may hold names
// again, and cuts the rest at the slots that are known.
func compile(text string, fixed names, known map[string]slot) (template, error) {
	var t template
	literal := strings.Builder{}
	for budget := 1000; ; budget-- {
		before, after, found := strings.Cut(text, "$")
		literal.WriteString(before)
		if !found {
			return append(t, piece{literal.String(), slotNone}), nil
		}
		name := after[:nameLength(after)]
		text = after[len(name):]
		if value, ok := fixed.value(name); ok && budget > 0 {
			text = value + text
			continue
		}
		s, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("template has no slot $%s", name)
		}
		t = append(t, piece{literal.String(), s})
		literal.Reset()
	}
}

func nameLength(s string) int {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return i
		}
	}
	return len(s)
}

// render appends the record that t makes of what the generator is at.
func (g *Generator) render(dst []byte, t template, in *instance, key int64) []byte {
	for _, p := range t {
		dst = append(dst, p.text...)
		switch p.slot {
		case slotNone:
		case slotPartition:
			dst = append(dst, in.home.text...)
		case slotPosition:
			dst = strconv.AppendInt(dst, in.home.position, 10)
		case slotSource:
			dst = strconv.AppendInt(dst, in.home.position-1, 10)
		case slotKey:
			dst = strconv.AppendInt(dst, key, 10)
		case slotTimestamp:
			dst = append(dst, g.clock.text...)
		case slotInstance:
			dst = append(dst, in.keyText[:in.keyLen]...)
		case slotElementKey:
			dst = strconv.AppendInt(dst, in.element, 10)
		case slotJob:
			dst = strconv.AppendInt(dst, in.job, 10)
		case slotDeadline:
			dst = strconv.AppendInt(dst, in.deadline, 10)
		case slotRetries:
			dst = strconv.AppendInt(dst, int64(in.retries), 10)
		case slotWorker:
			dst = append(dst, pick(g.workers, in.worker)...)
		case slotAssignee:
			dst = append(dst, pick(g.assignees, in.traits>>4)...)
		case slotErrorCode:
			dst = append(dst, pick(g.failures, in.failure).code...)
		case slotError:
			f := pick(g.failures, in.failure)
			dst = append(dst, f.before...)
			if f.number {
				dst = strconv.AppendUint(dst, in.failure>>8%10000, 10)
			}
			dst = append(dst, f.after...)
		case slotNumber:
			dst = strconv.AppendUint(dst, in.traits>>8%1_000_000, 10)
		case slotAmount:
			dst = strconv.AppendUint(dst, in.traits>>16%5000, 10)
			dst = append(dst, '.', '0'+byte(in.traits>>32%10), '1'+byte(in.traits>>36%9))
		case slotCountry:
			dst = append(dst, pick(g.countries, in.traits>>40)...)
		case slotFlag:
			dst = strconv.AppendBool(dst, in.traits>>50&1 == 1)
		case slotDigit:
			dst = append(dst, '0'+byte(in.traits>>52%10))
		case slotHex:
			dst = appendHex(dst, uint32(g.random.next()))
		}
	}
	return dst
}

func appendHex(dst []byte, n uint32) []byte {
	const digits = "0123456789abcdef"
	for shift := 28; shift >= 0; shift -= 4 {
		dst = append(dst, digits[n>>shift&15])
	}
	return dst
}
