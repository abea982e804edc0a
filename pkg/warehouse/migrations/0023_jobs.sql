-- What questions ask of the steps of a job, by columns.
--
-- A step was a text for each event between the first and the last, and nearly every
-- job has one, its activation: whoever asked when that was, or how often a job timed
-- out, read all texts. The last word on each matter has a column of its own now, and
-- what is counted a set of numbers. Nothing says the state of a job that has ended but
-- its outcome, so that the text of its last state gives way then. v_jobs reads steps
-- no more.
--
-- The view that feeds the fold has another name than the one before, jobs_mv: as long as
-- there are both, the fold hears everything twice, which changes nothing.
ALTER TABLE {{.Table "jobs"}}{{.OnCluster}}
    ADD COLUMN IF NOT EXISTS activated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)) AFTER created_at, -- the last ACTIVATED of JOB_BATCH
    ADD COLUMN IF NOT EXISTS last_state SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER outcome, -- order, intent, worker, and ms to the deadline or -1, tab between, of the last event but CREATED, RETRIES_UPDATED and MIGRATED; ~ of COMPLETED and CANCELED, which is greater than all others
    ADD COLUMN IF NOT EXISTS retried SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER min_retries, -- order and retries, tab between, of the last event but CREATED, ACTIVATED, COMPLETED and CANCELED; empty when there was none
    ADD COLUMN IF NOT EXISTS migrated SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER retried, -- order, process, version and element of the last MIGRATED, tab between; empty when there was none
    ADD COLUMN IF NOT EXISTS failed SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER migrated, -- one number for each FAILED: its position, or a hash of its identity
    ADD COLUMN IF NOT EXISTS timed_out SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER failed, -- likewise for each TIMED_OUT
    ADD COLUMN IF NOT EXISTS errors_thrown SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER timed_out, -- likewise for each ERROR_THROWN
    COMMENT COLUMN steps 'until migration 0023 a text for each event but CREATED, COMPLETED and CANCELED; nothing reads or fills it since'{{if .Replicated}}
    SETTINGS alter_sync = 2{{end}};
{{if .Cluster}}
{{.Divided "jobs" "cityHash64(source, process_instance_key)"}}
{{end}}
-- A record of a job says something of one job, for which the empty batch stands; a batch
-- of each job that it has activated.
CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.job_events_mv{{.OnCluster}} TO {{.Table "jobs"}} AS
WITH
    r.value_type = 'JOB' AS of_job,
    if(of_job, r.key, job.1) AS job_key, if(of_job, r.process_instance_key, job.2.1) AS instance,
    if(of_job, r.retries, job.2.2) AS retries, if(of_job, r.deadline, job.2.3) AS deadline,
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    multiIf(r.intent = 'COMPLETED', 2, r.intent = 'CANCELED', 1, 0) AS ended,
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

-- What the steps say that are there. From here on both views have heard of every
-- insert: those that began before the one above was made have ended when this
-- statement begins (DB.run). It may run again, also on rows that it has put there itself.
INSERT INTO {{.Table "jobs"}} (source, process_instance_key, key, activated_at, last_state, retried, migrated, failed, timed_out, errors_thrown)
WITH
    arrayMap(s -> splitByChar('\t', s), arraySort(steps)) AS happened,
    toInt64OrZero(substring(arrayFilter(s -> s[2] = 'ACTIVATED', happened)[-1][1], 1, 15)) AS activated_ms,
    arrayFilter(s -> s[2] NOT IN ('RETRIES_UPDATED', 'MIGRATED'), happened)[-1] AS state,
    arrayFilter(s -> s[2] != 'ACTIVATED' AND s[4] != '-1', happened)[-1] AS counted,
    arrayFilter(s -> s[2] = 'MIGRATED', happened)[-1] AS moved,
    arrayMap(s -> (s[2], if(s[9] = '', toInt64OrZero(substring(s[1], 16)), reinterpretAsInt64(cityHash64(unhex(s[9]))))), happened) AS marks
SELECT source, process_instance_key, key,
    if(activated_ms > 0, toNullable(fromUnixTimestamp64Milli(activated_ms, 'UTC')), NULL) AS activated_at,
    multiIf(outcome > 0, '~', empty(state), '', arrayStringConcat([state[1], state[2], state[3], state[5]], '\t')) AS last_state,
    if(empty(counted), '', concat(counted[1], '\t', counted[4])) AS retried,
    if(empty(moved), '', arrayStringConcat([moved[1], moved[6], moved[7], moved[8]], '\t')) AS migrated,
    arrayFilter(m -> m.1 = 'FAILED', marks).2 AS failed,
    arrayFilter(m -> m.1 = 'TIMED_OUT', marks).2 AS timed_out,
    arrayFilter(m -> m.1 = 'ERROR_THROWN', marks).2 AS errors_thrown
FROM {{.Table "jobs"}}
WHERE notEmpty(steps)
SETTINGS min_insert_block_size_rows = 200000;

-- What people query: one row for each job, whatever has been merged so far. On a
-- cluster a batch of jobs belongs to no instance, so that what it says of a job may
-- stand on another shard than all else, where no FINAL finds it.
CREATE OR REPLACE VIEW {{.Database}}.v_jobs{{.OnCluster}} AS
WITH
    splitByChar('\t', last_state) AS last,
    splitByChar('\t', j.migrated) AS moved,
    greatest(last_state, retried, j.migrated) AS last_step,
    toInt64OrZero(substring(last_step, 1, 15)) AS last_step_ms,
    multiIf(outcome = 2, 'COMPLETED', outcome = 1, 'CANCELED',
        transform(last[2], ['', 'RECURRED_AFTER_BACKOFF', 'YIELDED', 'TIMEOUT_UPDATED'], ['CREATED', 'CREATED', 'CREATED', 'ACTIVATED'], last[2])) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(j.migrated = '', j.bpmn_process_id, moved[2]) AS bpmn_process_id, -- the process it belongs to
    if(j.migrated = '', j.version, toInt64OrNull(moved[3])) AS version,
    if(j.migrated = '', j.element_id, moved[4]) AS element_id,
    key - element_distance AS element_instance_key, job_type,
    now AS state, -- CREATED, ACTIVATED where batches tell, COMPLETED, FAILED, TIMED_OUT, ERROR_THROWN, CANCELED
    if(outcome > 0, j.worker, last[3]) AS worker, -- of that state
    if(retried = '', min_retries, toInt64OrNull(substring(retried, 37))) AS retries, -- left now
    min_retries, created_at,
    activated_at, -- last JOB_BATCH ACTIVATED with it
    if(outcome = 2, ended_at, NULL) AS completed_at,
    if(outcome = 1, ended_at, NULL) AS canceled_at,
    multiIf(outcome > 0, ended_at, last_step = '', created_at, last_step_ms > 0, toNullable(fromUnixTimestamp64Milli(last_step_ms, 'UTC')), NULL) AS last_seen, -- last event or activation
    if(now = 'ACTIVATED' AND toInt64OrZero(last[4]) > 0,
        fromUnixTimestamp64Milli(toInt64OrZero(substring(last_state, 1, 15)) + toInt64OrZero(last[4]), 'UTC'), NULL) AS deadline_at, -- until when the worker has it
    dateDiff('millisecond', created_at, if(outcome = 2, ended_at, NULL)) AS duration_ms,
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
) AS j;
{{- else}}
FROM {{.Database}}.jobs AS j FINAL;
{{- end}}

-- The view of before. Inserts that began with it alone have ended.
DROP VIEW IF EXISTS {{.Database}}.jobs_mv{{.OnCluster}};
