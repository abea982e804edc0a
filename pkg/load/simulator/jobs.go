package simulator

import (
	"strings"
	"time"
)

type job struct {
	Job
	in        *instance
	el        *element
	plan      []outcome // outcome of each activation
	variables string
	marker    bool // its element id was replaced by noCatchEvent
	gone      bool
}

type outcome int

const (
	completes    outcome = iota
	completeLate         // after its deadline, before the engine times it out
	failsOnce            // with retries left
	failsBackOff         // with retries left and a backoff
	failsForGood         // no retries left: an incident, resolved by an operator
	givenUp              // likewise, never resolved
	timesOut
	throws     // an error that the boundary event catches, if any
	throwsLost // an error that nothing catches: an incident
	extends    // asks for more time, then completes
	abandoned  // no worker completes it
)

// noCatchEvent is Zeebe's element id of a job whose error is not caught.
const noCatchEvent = "NO_CATCH_EVENT_FOUND"

func (e *Engine) outcomes(n *node) []outcome {
	switch r := e.random.below(100); {
	case r < 7:
		return []outcome{timesOut, completes}
	case r < 16:
		return []outcome{failsOnce, completes}
	case r < 21:
		return []outcome{failsOnce, timesOut, failsForGood, completes}
	case r < 24:
		return []outcome{timesOut, timesOut, failsOnce, completes}
	case r < 29 && n.boundary != "":
		return []outcome{throws}
	case r < 32:
		return []outcome{throwsLost, completes}
	case r < 35:
		return []outcome{completeLate}
	case r < 38:
		return []outcome{failsBackOff, completes}
	case r < 41:
		return []outcome{extends}
	case r < 42:
		return []outcome{failsOnce, givenUp}
	case r < 43:
		return []outcome{abandoned}
	}
	return []outcome{completes}
}

func (el *element) newJob(b batch) {
	j := &job{in: el.in, el: el, plan: el.in.e.outcomes(el.node)}
	j.Job = Job{
		Key: el.in.p.nextKey(), Instance: &el.in.Instance, Element: &el.Element, Process: el.in.def.Process,
		ElementID: el.ID, Type: el.node.does, State: JobCreated, Retries: 3, MinRetries: 3, Deadline: -1, CreatedAt: b.ms(),
	}
	el.job = j
	if t := el.in.e.cfg.Truth; t != nil {
		t.Jobs = append(t.Jobs, &j.Job)
	}
	j.write(b, "CREATED")
	j.wait()
}

func (j *job) write(b batch, intent string) {
	j.LastSeen = b.ms()
	j.in.event(b, "JOB", intent, j.Key, (*jobValue)(j))
}

// wait makes the job available to workers.
func (j *job) wait() {
	p := j.in.p
	queue := p.waiting[j.Type]
	p.waiting[j.Type] = append(queue, j)
	if len(queue) == 0 {
		p.e.after(p.e.between(time.Millisecond, 80*time.Millisecond), func() { p.poll(j.Type) })
	}
}

const jobTimeout = 5 * time.Minute

// poll activates jobs of a type for a worker.
func (p *partition) poll(jobType string) {
	var taken []*job
	for _, j := range p.waiting[jobType] {
		if !j.gone {
			taken = append(taken, j)
		}
	}
	p.waiting[jobType] = nil
	if len(taken) == 0 {
		return
	}
	worker := pick(&p.e.random, workers())
	v := &jobBatchValue{jobType: jobType, worker: worker, jobs: taken}
	b := p.batch("JOB_BATCH", "ACTIVATE", -1, v)
	v.activated = true
	for _, j := range taken {
		j.State, j.Worker, j.ActivatedAt, j.LastSeen = JobActivated, worker, b.ms(), b.ms()
		j.Deadline = b.ms() + int64(float64(jobTimeout.Milliseconds())/p.e.cfg.Haste)
		j.Activations++
	}
	b.event("JOB_BATCH", "ACTIVATED", p.nextKey(), v)
	for _, j := range taken {
		j.work()
	}
}

// work schedules the outcome of an activation.
func (j *job) work() {
	e, next := j.in.e, j.plan[0]
	if len(j.plan) > 1 {
		j.plan = j.plan[1:]
	}
	soon := e.between(20*time.Millisecond, 4*time.Second)
	active := j.Activations
	plan := func(wait time.Duration, do func()) {
		e.after(wait, func() {
			if !j.gone && j.Activations == active {
				do()
			}
		})
	}
	switch next {
	case completes:
		plan(soon, j.complete)
	case completeLate:
		plan(jobTimeout+time.Second, j.complete)
	case failsOnce:
		plan(soon, func() { j.fail(0) })
	case failsBackOff:
		plan(soon, func() { j.fail(30 * time.Second) })
	case failsForGood:
		plan(soon, func() { j.exhaust(true) })
	case givenUp:
		plan(soon, func() { j.exhaust(false) })
	case timesOut:
		plan(jobTimeout+e.between(time.Second, 20*time.Second), j.timeOut)
	case throws:
		plan(soon, j.throw)
	case throwsLost:
		plan(soon, j.throwLost)
	case extends:
		plan(soon, j.extend)
		plan(soon+time.Second, j.complete)
	case abandoned:
		e.left(j.in.top())
	}
}

// top returns the root instance.
func (in *instance) top() *instance {
	for in.caller != nil {
		in = in.caller.in
	}
	return in
}

func (j *job) batch(intent string) batch {
	return j.in.p.batch("JOB", intent, j.Key, (*jobValue)(j))
}

func (j *job) complete() {
	j.variables = j.in.e.result()
	b := j.batch("COMPLETE")
	j.State, j.CompletedAt, j.EndedAt = JobCompleted, b.ms(), b.ms()
	j.write(b, "COMPLETED")
	j.gone = true
	j.el.job = nil
	j.el.triggered(b, j.el.node, j.variables)
	j.el.complete(b)
}

// failed writes a failure; the job keeps its worker.
func (j *job) failed(b batch, left int64) {
	f := pick(&j.in.e.random, failures())
	j.ErrorCode, j.ErrorMessage = f.code, f.message
	j.State, j.Retries, j.MinRetries = JobFailed, left, min(j.MinRetries, left)
	j.Failures++
	j.in.JobFailures++
	j.write(b, "FAILED")
}

func (j *job) fail(backOff time.Duration) {
	b := j.batch("FAIL")
	j.failed(b, max(1, j.Retries-1))
	if backOff == 0 {
		j.wait()
		return
	}
	j.in.e.after(backOff, func() {
		if j.gone {
			return
		}
		b := j.batch("RECUR_AFTER_BACKOFF")
		j.State = JobCreated
		j.write(b, "RECURRED_AFTER_BACKOFF")
		j.wait()
	})
}

// exhaust fails a job without retries. It gets new ones before the incident is resolved.
func (j *job) exhaust(resolve bool) {
	b := j.batch("FAIL")
	j.failed(b, 0)
	i := j.el.raise(b, "JOB_NO_RETRIES", j.ErrorMessage, j)
	if !resolve {
		j.in.e.left(j.in.top())
		return
	}
	j.in.e.after(j.in.e.between(time.Minute, time.Hour), func() {
		if j.gone {
			return
		}
		b := j.batch("UPDATE_RETRIES")
		j.Retries = 1 + j.in.e.random.below(5)
		j.write(b, "RETRIES_UPDATED")
		i.resolve()
		j.wait()
	})
}

func (j *job) timeOut() {
	b := j.batch("TIME_OUT")
	j.State = JobTimedOut
	j.TimeOuts++
	j.write(b, "TIMED_OUT")
	j.wait()
	j.in.e.after(j.in.e.between(time.Second, time.Minute), func() {
		if j.gone { // the first worker is too late
			j.batch("COMPLETE").reject("JOB", "COMPLETE", j.Key, (*jobValue)(j))
		}
	})
}

// extend postpones the deadline.
func (j *job) extend() {
	b := j.batch("UPDATE_TIMEOUT")
	j.Deadline += int64(float64(jobTimeout.Milliseconds()) / j.in.e.cfg.Haste)
	j.write(b, "TIMEOUT_UPDATED")
}

func (j *job) thrown(b batch, code string) {
	j.ErrorCode, j.ErrorMessage = code, "refused by "+strings.ToUpper(j.Worker)
	j.State = JobErrorThrown
	j.write(b, "ERROR_THROWN")
}

// throw throws an error that the element's boundary event catches. The flow continues there.
func (j *job) throw() {
	b, el := j.batch("THROW_ERROR"), j.el
	j.thrown(b, "REFUSED")
	j.EndedAt = b.ms()
	j.gone = true
	el.job = nil
	caught := &node{kind: boundaryEvent, id: el.node.boundary}
	ev := &processEvent{el: el, target: caught.id}
	key := el.in.p.nextKey()
	el.in.event(b, "PROCESS_EVENT", "TRIGGERING", key, ev)
	el.terminate(b)
	el.in.event(b, "PROCESS_EVENT", "TRIGGERED", key, ev)
	event := el.scope.child(b, caught, el.then)
	event.follow(el)
	event.enter(b)
}

// throwLost throws an error that is not caught.
func (j *job) throwLost() {
	b := j.batch("THROW_ERROR")
	j.marker = true
	j.thrown(b, "LOST")
	i := j.el.raise(b, "UNHANDLED_ERROR_EVENT", "Expected to throw an error event with the code 'LOST', but it was not caught.", j)
	j.in.e.after(j.in.e.between(time.Minute, 20*time.Minute), func() {
		if j.gone {
			return
		}
		i.resolve()
		j.marker = false
		j.wait()
	})
}

// cancel cancels the job of a terminated element.
func (j *job) cancel(b batch) {
	if j.gone {
		return
	}
	j.State, j.CanceledAt, j.EndedAt = JobCanceled, b.ms(), b.ms()
	j.write(b, "CANCELED")
	j.gone = true
}
