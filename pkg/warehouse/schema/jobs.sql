-- Jobs, one row each. Each thing that changes has a column with its last value, and
-- failures are sets of numbers. last_state of a job that has ended is '~', as only its
-- outcome counts then. An error that an event catches ends the job too: nothing follows
-- its ERROR_THROWN. One that nothing catches has the element NO_CATCH_EVENT_FOUND, and
-- the job continues once its incident is resolved. When a worker got a job is said by JOB_BATCH ACTIVATED alone,
-- which engines export only when told to; a batch carries one entry for each of its jobs.
{{.CreateTable "jobs"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey' CODEC(ZSTD(3)),
    key Int64 COMMENT 'of the record: jobKey elsewhere' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionVersion; likewise' CODEC(ZSTD(3)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId; likewise, and never NO_CATCH_EVENT_FOUND' CODEC(ZSTD(1)),
    element_distance SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'key - elementInstanceKey, which is small' CODEC(T64, ZSTD(1)),
    job_type SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'type' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CREATED' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    activated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'the last ACTIVATED of JOB_BATCH' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    ended_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'COMPLETED, CANCELED, or ERROR_THROWN that was caught' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    outcome SimpleAggregateFunction(max, UInt8) COMMENT '0 none yet, 1 CANCELED, 2 COMPLETED, 3 ERROR_THROWN that was caught' CODEC(ZSTD(1)),
    last_state SimpleAggregateFunction(max, String) COMMENT 'order, intent, worker, and ms to the deadline or -1, tab between, of the last event but CREATED, RETRIES_UPDATED and MIGRATED; ~ of an outcome, which is greater than all others' CODEC(ZSTD(1)),
    worker SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'worker of the outcome' CODEC(ZSTD(1)),
    late_ms SimpleAggregateFunction(max, Int64) COMMENT 'how long after its deadline it was completed, ms; 0 when in time' CODEC(ZSTD(1)),
    min_retries SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'least retries ever left' CODEC(T64, ZSTD(1)),
    retried SimpleAggregateFunction(max, String) COMMENT 'order and retries, tab between, of the last event but CREATED, ACTIVATED and outcomes; empty when there was none' CODEC(ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, version and element of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    failed SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'one number for each FAILED: its position, or a hash of its identity' CODEC(ZSTD(1)),
    timed_out SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'likewise for each TIMED_OUT' CODEC(ZSTD(1)),
    errors_thrown SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'likewise for each ERROR_THROWN' CODEC(ZSTD(1)),
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "jobs"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "jobs" "cityHash64(source, process_instance_key)"}}

-- A record of a job is about one job, for which the empty batch stands; a batch is about
-- each job that it has activated.
{{.CreateFeed "jobs"}} AS
WITH
    r.value_type = 'JOB' AS of_job,
    if(of_job, r.key, job.1) AS job_key, if(of_job, r.process_instance_key, job.2.1) AS instance,
    if(of_job, r.retries, job.2.2) AS retries, if(of_job, r.deadline, job.2.3) AS deadline,
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    multiIf(r.intent = 'COMPLETED', 2, r.intent = 'CANCELED', 1, r.intent = 'ERROR_THROWN' AND r.element_id != 'NO_CATCH_EVENT_FOUND', 3, 0) AS ended,
    if(ended > 0 OR r.intent = 'CREATED', '', {{.Order}}) AS order_between
SELECT r.source AS source, instance AS process_instance_key, job_key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version,
    maxIf(r.element_id, r.element_id != 'NO_CATCH_EVENT_FOUND') AS element_id,
    max(job_key - r.element_instance_key) AS element_distance, max(r.job_type) AS job_type,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(r.intent = 'ACTIVATED', at, NULL)) AS activated_at,
    max(if(ended > 0, at, NULL)) AS ended_at,
    max(ended) AS outcome,
    max(multiIf(ended > 0, '~', r.intent IN ('CREATED', 'RETRIES_UPDATED', 'MIGRATED'), '',
        concat(order_between, '\t', toString(r.intent), '\t', toString(r.worker), '\t', toString(if(deadline > 0, deadline - toUnixTimestamp64Milli(r.ts), -1))))) AS last_state,
    maxIf(r.worker, ended > 0) AS worker,
    max(if(ended = 2 AND deadline > 0, greatest(toUnixTimestamp64Milli(r.ts) - deadline, 0), 0)) AS late_ms,
    min(if(retries >= 0, retries, NULL)) AS min_retries,
    max(if(order_between != '' AND r.intent != 'ACTIVATED' AND retries >= 0, concat(order_between, '\t', toString(assumeNotNull(retries))), '')) AS retried,
    max(if(r.intent = 'MIGRATED', concat(order_between, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')) AS migrated,
    groupUniqArrayIf({{.Mark}}, r.intent = 'FAILED') AS failed,
    groupUniqArrayIf({{.Mark}}, r.intent = 'TIMED_OUT') AS timed_out,
    groupUniqArrayIf({{.Mark}}, r.intent = 'ERROR_THROWN') AS errors_thrown
FROM
(
    SELECT source, process_instance_key, key, retries, deadline, tenant_id, bpmn_process_id, version, element_id, element_instance_key,
        job_type, value_type, intent, ts, position, identity, worker,
        JSONExtract(if(value_type = 'JOB', '', extra), 'Tuple(jobKeys Array(Int64), jobs Array(Tuple(processInstanceKey String, retries Nullable(Int64), deadline Nullable(Int64))))') AS batch,
        arrayZip(batch.1, arrayResize(batch.2, length(batch.1))) AS jobs
    FROM {{.Table "records"}}
    WHERE record_type = 'EVENT' AND (value_type = 'JOB' OR value_type = 'JOB_BATCH' AND intent = 'ACTIVATED')
) AS r
LEFT ARRAY JOIN r.jobs AS job
WHERE job_key > 0 AND (of_job OR instance NOT IN ('', '-1', '0'))
GROUP BY source, process_instance_key, key;

-- One row for each job.
--
-- On a cluster a batch of jobs belongs to no instance, so its part of a job may be on
-- another shard than the rest, where FINAL does not find it.
{{.CreateView "v_jobs"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'job (key, jobKey in other records)',
    {{columns "tenant_id" "bpmn_process_id" "version" "element_id" "element_instance_key" "job_type"}},
    state String COMMENT 'CREATED, ACTIVATED (where JOB_BATCH records tell), FAILED, TIMED_OUT, ERROR_THROWN, COMPLETED, CANCELED',
    worker String COMMENT 'worker of that state (worker)',
    {{columns "retries"}},
    min_retries Nullable(Int64) COMMENT 'fewest retries ever left',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    activated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, when a worker got it last (JOB_BATCH ACTIVATED); NULL where these are not exported',
    completed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (COMPLETED)',
    canceled_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CANCELED)',
    ended_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, its end: COMPLETED, CANCELED, or a thrown error that an event caught; NULL while open',
    open UInt8 COMMENT '1 until its end; also after a thrown error that nothing caught',
    last_seen Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last event or activation',
    deadline_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, until when the worker has it; NULL unless ACTIVATED',
    duration_ms Nullable(Int64) COMMENT 'ms from created_at to completed_at; NULL unless completed',
    failures UInt32 COMMENT 'number of FAILED',
    timeouts UInt32 COMMENT 'number of TIMED_OUT',
    errors_thrown UInt32 COMMENT 'number of ERROR_THROWN',
    late_ms Int64 COMMENT 'ms from its deadline to its completion; 0 when in time',
    completed_late UInt8 COMMENT '1 when completed after its deadline'
) AS
WITH
    splitByChar('\t', last_state) AS last,
    splitByChar('\t', j.migrated) AS moved,
    greatest(last_state, retried, j.migrated) AS last_step,
    toInt64OrZero(substring(last_step, 1, 15)) AS last_step_ms,
    multiIf(outcome = 2, 'COMPLETED', outcome = 1, 'CANCELED', outcome = 3, 'ERROR_THROWN',
        transform(last[2], ['', 'RECURRED_AFTER_BACKOFF', 'YIELDED', 'TIMEOUT_UPDATED'], ['CREATED', 'CREATED', 'CREATED', 'ACTIVATED'], last[2])) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(j.migrated = '', j.bpmn_process_id, moved[2]) AS bpmn_process_id,
    if(j.migrated = '', j.version, toInt64OrNull(moved[3])) AS version,
    if(j.migrated = '', j.element_id, moved[4]) AS element_id,
    key - element_distance AS element_instance_key, job_type,
    now AS state,
    if(outcome > 0, j.worker, last[3]) AS worker,
    if(retried = '', min_retries, toInt64OrNull(substring(retried, 37))) AS retries,
    min_retries, created_at,
    activated_at,
    if(outcome = 2, j.ended_at, NULL) AS completed_at,
    if(outcome = 1, j.ended_at, NULL) AS canceled_at,
    j.ended_at AS ended_at, outcome = 0 AS open,
    multiIf(outcome > 0, j.ended_at, last_step = '', created_at, last_step_ms > 0, toNullable(fromUnixTimestamp64Milli(last_step_ms, 'UTC')), NULL) AS last_seen,
    if(now = 'ACTIVATED' AND toInt64OrZero(last[4]) > 0,
        fromUnixTimestamp64Milli(toInt64OrZero(substring(last_state, 1, 15)) + toInt64OrZero(last[4]), 'UTC'), NULL) AS deadline_at,
    dateDiff('millisecond', created_at, if(outcome = 2, j.ended_at, NULL)) AS duration_ms,
    toUInt32(length(j.failed)) AS failures,
    toUInt32(length(j.timed_out)) AS timeouts,
    toUInt32(length(j.errors_thrown)) AS errors_thrown,
    late_ms, late_ms > 0 AS completed_late
{{- if .Cluster}}
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.element_distance) AS element_distance, max(p.job_type) AS job_type,
        min(p.created_at) AS created_at, max(p.activated_at) AS activated_at, max(p.ended_at) AS ended_at, max(p.outcome) AS outcome, max(p.last_state) AS last_state,
        max(p.worker) AS worker, max(p.late_ms) AS late_ms, min(p.min_retries) AS min_retries, max(p.retried) AS retried, max(p.migrated) AS migrated,
        groupUniqArrayArray(p.failed) AS failed, groupUniqArrayArray(p.timed_out) AS timed_out, groupUniqArrayArray(p.errors_thrown) AS errors_thrown
    FROM {{.Database}}.jobs AS p
    GROUP BY source, process_instance_key, key
) AS j
{{- else}}
FROM {{.Database}}.jobs AS j FINAL
{{- end}};
