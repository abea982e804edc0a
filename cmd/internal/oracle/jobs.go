package oracle

import "encoding/json"

// job is a job: v_jobs.
type job struct {
	tenant, process, elementID, kind string
	version, elementInstance         number
	migrated                         last

	createdAt, activatedAt, endedAt number

	outcome           int    // 0 none, 1 canceled, 2 completed, 3 ended by a caught error
	worker            string // of the outcome
	now               last   // intent, worker, ms to the deadline: of the last event that changes the state
	retried           last   // retries
	minRetries        number
	late              int64
	failures, expired int64
	thrown            int64
}

// take adds an event of the job itself, or an item of a batch.
func (j *job) take(r *record, key, retries, deadline number) {
	v := &r.Value
	greatest(&j.tenant, v.TenantID)
	greatest(&j.process, v.BpmnProcessID)
	greatest(&j.kind, v.Type)
	if r.element != "NO_CATCH_EVENT_FOUND" {
		greatest(&j.elementID, text(r.element))
	}
	j.version.setMax(r.version)
	j.elementInstance.setMin(v.ElementInstanceKey)
	if retries.n >= 0 {
		j.minRetries.setMin(retries)
	}
	switch r.Intent {
	case "CREATED":
		j.createdAt.setMin(r.at())
		return
	case "COMPLETED":
		j.outcome = max(j.outcome, 2)
		if deadline.n > 0 {
			j.late = max(j.late, r.ts-deadline.n)
		}
	case "CANCELED":
		j.outcome = max(j.outcome, 1)
	case "ACTIVATED":
		j.activatedAt.setMax(r.at())
	case "FAILED":
		j.failures++
	case "TIMED_OUT":
		j.expired++
	case "ERROR_THROWN":
		j.thrown++
		if r.element != "NO_CATCH_EVENT_FOUND" {
			j.outcome = 3
		}
	case "MIGRATED":
		j.migrated.take(r, string(v.BpmnProcessID), whole(r.version.n), r.element)
	}
	if r.is("JOB", "COMPLETED", "CANCELED") || r.is("JOB", "ERROR_THROWN") && r.element != "NO_CATCH_EVENT_FOUND" {
		greatest(&j.worker, v.Worker)
		j.endedAt.setMax(r.at())
		return
	}
	if r.Intent != "RETRIES_UPDATED" && r.Intent != "MIGRATED" {
		left := int64(-1)
		if deadline.n > 0 {
			left = deadline.n - r.ts
		}
		j.now.take(r, string(r.Intent), string(v.Worker), whole(left))
	}
	if r.Intent != "ACTIVATED" && retries.known && retries.n >= 0 {
		j.retried.take(r, whole(retries.n))
	}
}

// takeBatch adds the activation of several jobs: keys and items have the same order.
func (f *aggregates) takeBatch(r *record) {
	var jobKeys []number
	var jobs []struct {
		ProcessInstanceKey text   `json:"processInstanceKey"`
		Retries            number `json:"retries"`
		Deadline           moment `json:"deadline"`
	}
	if json.Unmarshal(r.Value.JobKeys, &jobKeys) != nil || json.Unmarshal(r.Value.Jobs, &jobs) != nil {
		return // not a batch
	}
	for i, key := range jobKeys[:min(len(jobKeys), len(jobs))] {
		if of := jobs[i]; key.n > 0 && aboutInstance(string(of.ProcessInstanceKey)) {
			at(f.jobs, inInstance{string(of.ProcessInstanceKey), key.n}).take(r, key, of.Retries, of.Deadline.number)
		}
	}
}

func (j *job) state() string {
	if j.outcome > 0 {
		return [...]string{"", "CANCELED", "COMPLETED", "ERROR_THROWN"}[j.outcome]
	}
	switch intent := j.now.or(0, ""); intent {
	case "", "RECURRED_AFTER_BACKOFF", "YIELDED":
		return "CREATED"
	case "TIMEOUT_UPDATED":
		return "ACTIVATED"
	default:
		return intent
	}
}

// lastSeen returns the time of the last event.
func (j *job) lastSeen() number {
	if j.outcome > 0 {
		return j.endedAt
	}
	step := j.now
	for _, l := range []last{j.retried, j.migrated} {
		if l.known && (!step.known || step.before(l)) {
			step = l
		}
	}
	if !step.known {
		return j.createdAt
	}
	return step.at()
}

// deadline returns the end of a worker's activation.
func (j *job) deadline() number {
	var left number
	if j.state() != "ACTIVATED" || left.UnmarshalJSON([]byte(j.now.or(2, "0"))) != nil || left.n <= 0 {
		return number{}
	}
	return number{j.now.ts + left.n, true}
}

func (f *aggregates) jobTable() *Table {
	t := newTable("v_jobs", 2, "process_instance_key", "key", "tenant_id", "bpmn_process_id", "version", "element_id", "element_instance_key", "job_type",
		"state", "worker", "retries", "min_retries", "created_at", "activated_at", "completed_at", "canceled_at", "ended_at", "open", "last_seen", "deadline_at",
		"duration_ms", "failures", "timeouts", "errors_thrown", "late_ms", "completed_late")
	for of, j := range f.jobs {
		worker := j.now.or(1, "")
		var completed, canceled number
		if j.outcome > 0 {
			worker = j.worker
		}
		switch j.outcome {
		case 2:
			completed = j.endedAt
		case 1:
			canceled = j.endedAt
		}
		t.put(of.instance, whole(of.key), j.tenant, j.migrated.or(0, j.process), j.migrated.or(1, j.version.cell()), j.migrated.or(2, j.elementID),
			j.elementInstance.cell(), j.kind, j.state(), worker, j.retried.or(0, j.minRetries.cell()), j.minRetries.cell(),
			j.createdAt.time(), j.activatedAt.time(), completed.time(), canceled.time(), j.endedAt.time(), flag(j.outcome == 0), j.lastSeen().time(), j.deadline().time(),
			between(j.createdAt, completed), whole(j.failures), whole(j.expired), whole(j.thrown), whole(j.late), flag(j.late > 0))
	}
	return t
}
