-- Jobs, one row each. A property that changes has a column with its last value, and
-- failures are sets of numbers. last_state of an ended job is '~', because only its
-- outcome counts. A caught error ends the job too: ERROR_THROWN is its last record. An
-- error that no event catches has the element NO_CATCH_EVENT_FOUND, and the job continues
-- once its incident is resolved. Only JOB_BATCH ACTIVATED, which engines export if
-- configured, says when a worker got a job; a batch has one entry for each of its jobs.
TABLE jobs
source
process_instance_key key(String) = instance -- processInstanceKey
key key(Int64) = job_key -- of the record: jobKey elsewhere
tenant_id
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
version max(Int64?) -- processDefinitionVersion; likewise
element_id max(Text) = if(r.element_id != 'NO_CATCH_EVENT_FOUND', r.element_id, '') -- elementId; likewise, and never NO_CATCH_EVENT_FOUND
element_distance max(Int64?) CODEC(T64, ZSTD(1)) = job_key - r.element_instance_key -- key - elementInstanceKey, which is small
job_type
created_at min(Time?) = if(r.intent = 'CREATED', at, NULL) -- UTC (CREATED)
activated_at max(Time?) = if(r.intent = 'ACTIVATED', at, NULL) -- UTC, when a worker got it last (JOB_BATCH ACTIVATED); NULL where these are not exported
ended_at max(Time?) = if(ended > 0, at, NULL) -- UTC, its end: COMPLETED, CANCELED, or a thrown error that an event caught; NULL while open
outcome max(UInt8) = ended -- 0 none yet, 1 CANCELED, 2 COMPLETED, 3 ERROR_THROWN that was caught
last_state max(String) = multiIf(ended > 0, '~', r.intent IN ('CREATED', 'RETRIES_UPDATED', 'MIGRATED'), '',
        concat(order_between, '\t', toString(r.intent), '\t', toString(r.worker), '\t', toString(if(deadline > 0, deadline - toUnixTimestamp64Milli(r.ts), -1)))) -- order, intent, worker, and ms to the deadline or -1, tab between, of the last event but CREATED, RETRIES_UPDATED and MIGRATED; ~ of an outcome, which is greater than all others
worker max(Text) = if(ended > 0, r.worker, '') -- worker of the outcome
late_ms max(Int64) = if(ended = 2 AND deadline > 0, greatest(toUnixTimestamp64Milli(r.ts) - deadline, 0), 0) -- ms from its deadline to its completion; 0 when in time
min_retries min(Int64?) CODEC(T64, ZSTD(1)) = if(retries >= 0, retries, NULL) -- fewest retries ever left
retried max(String) = if(order_between != '' AND r.intent != 'ACTIVATED' AND retries >= 0, concat(order_between, '\t', toString(assumeNotNull(retries))), '') -- order and retries, tab between, of the last event but CREATED, ACTIVATED and outcomes; empty when there was none
migrated max(String) = if(r.intent = 'MIGRATED', concat(order_between, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')
failed set(Int64) = groupUniqArrayIf({{.Mark}}, r.intent = 'FAILED') -- one number for each FAILED: its position, or a hash of its identity
timed_out set(Int64) = groupUniqArrayIf({{.Mark}}, r.intent = 'TIMED_OUT') -- likewise for each TIMED_OUT
errors_thrown set(Int64) = groupUniqArrayIf({{.Mark}}, r.intent = 'ERROR_THROWN') -- likewise for each ERROR_THROWN
INDEX ix_created created_at TYPE minmax GRANULARITY 1
--- A record of a job has an empty batch and describes one job; a batch describes each job
--- that it activated.
WITH
    r.value_type = 'JOB' AS of_job,
    if(of_job, r.key, job.1) AS job_key, if(of_job, r.process_instance_key, job.2.1) AS instance,
    if(of_job, r.retries, job.2.2) AS retries, if(of_job, r.deadline, job.2.3) AS deadline,
    {{.At}} AS at,
    multiIf(r.intent = 'COMPLETED', 2, r.intent = 'CANCELED', 1, r.intent = 'ERROR_THROWN' AND r.element_id != 'NO_CATCH_EVENT_FOUND', 3, 0) AS ended,
    if(ended > 0 OR r.intent = 'CREATED', '', {{.Order}}) AS order_between
FEED
    (
    SELECT source, process_instance_key, key, retries, deadline, tenant_id, bpmn_process_id, version, element_id, element_instance_key,
        job_type, value_type, intent, ts, position, identity, worker,
        JSONExtract(if(value_type = 'JOB', '', extra), 'Tuple(jobKeys Array(Int64), jobs Array(Tuple(processInstanceKey String, retries Nullable(Int64), deadline Nullable(Int64))))') AS batch,
        arrayZip(batch.1, arrayResize(batch.2, length(batch.1))) AS jobs
    FROM flow.records
    WHERE record_type = 'EVENT' AND (value_type = 'JOB' OR value_type = 'JOB_BATCH' AND intent = 'ACTIVATED')
    ) AS r
    LEFT ARRAY JOIN r.jobs AS job
    WHERE job_key > 0 AND (of_job OR instance NOT IN ('', '-1', '0'))

-- One row for each job.
--- A batch of jobs has no instance, so a row made from it may be on another shard than the
--- job's other rows, where FINAL does not merge them.
VIEW v_jobs
source process_instance_key
key Int64 -- job (key, jobKey in other records)
tenant_id
bpmn_process_id = if(j.migrated = '', j.bpmn_process_id, moved[2])
version = if(j.migrated = '', j.version, toInt64OrNull(moved[3]))
element_id = if(j.migrated = '', j.element_id, moved[4])
process_name element_name
element_instance_key = key - element_distance
job_type
state String = now -- CREATED, ACTIVATED (where JOB_BATCH records tell), FAILED, TIMED_OUT, ERROR_THROWN, COMPLETED, CANCELED
worker String = if(outcome > 0, j.worker, last[3]) -- worker of that state (worker)
retries = if(retried = '', min_retries, toInt64OrNull(substring(retried, 37)))
min_retries created_at activated_at
completed_at Time? = if(outcome = 2, j.ended_at, NULL) -- UTC (COMPLETED)
canceled_at Time? = if(outcome = 1, j.ended_at, NULL) -- UTC (CANCELED)
ended_at = j.ended_at
open UInt8 = outcome = 0 -- 1 until its end; also after a thrown error that nothing caught
last_seen Time? = multiIf(outcome > 0, j.ended_at, last_step = '', created_at, last_step_ms > 0, toNullable(fromUnixTimestamp64Milli(last_step_ms, 'UTC')), NULL) -- UTC, last event or activation
deadline_at Time? = if(now = 'ACTIVATED' AND toInt64OrZero(last[4]) > 0,
        fromUnixTimestamp64Milli(toInt64OrZero(substring(last_state, 1, 15)) + toInt64OrZero(last[4]), 'UTC'), NULL) -- UTC, until when the worker has it; NULL unless ACTIVATED
duration_ms Int64? = dateDiff('millisecond', created_at, if(outcome = 2, j.ended_at, NULL)) -- ms from created_at to completed_at; NULL unless completed
failures UInt32 = toUInt32(length(j.failed)) -- number of FAILED
timeouts UInt32 = toUInt32(length(j.timed_out)) -- number of TIMED_OUT
errors_thrown UInt32 = toUInt32(length(j.errors_thrown)) -- number of ERROR_THROWN
late_ms
completed_late UInt8 = late_ms > 0 -- 1 when completed after its deadline
WITH
    splitByChar('\t', last_state) AS last,
    splitByChar('\t', j.migrated) AS moved,
    greatest(last_state, retried, j.migrated) AS last_step,
    toInt64OrZero(substring(last_step, 1, 15)) AS last_step_ms,
    multiIf(outcome = 2, 'COMPLETED', outcome = 1, 'CANCELED', outcome = 3, 'ERROR_THROWN',
        transform(last[2], ['', 'RECURRED_AFTER_BACKOFF', 'YIELDED', 'TIMEOUT_UPDATED'], ['CREATED', 'CREATED', 'CREATED', 'ACTIVATED'], last[2])) AS now
FROM {{merged "jobs AS j" "1"}}
