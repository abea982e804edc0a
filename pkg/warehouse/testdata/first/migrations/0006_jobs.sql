-- Jobs, one row each.
--
-- Most jobs are created and completed. Those that go back and forth between
-- workers have steps: a set of texts, one for each event in between, that sort
-- in the order in which the engine wrote them; the last one says what is so
-- now. When a worker has got a job stands in JOB_BATCH ACTIVATED alone, which
-- engines export only when told to.
CREATE TABLE IF NOT EXISTS {{.Table "jobs"}}{{.OnCluster}}
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(3)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record: jobKey elsewhere
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in steps
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- processDefinitionVersion; likewise
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise, and never NO_CATCH_EVENT_FOUND
    element_distance     SimpleAggregateFunction(max, Nullable(Int64)) CODEC(T64, ZSTD(1)),   -- key - elementInstanceKey, which is small
    job_type             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- type
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- CREATED
    ended_at             SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- COMPLETED or CANCELED
    outcome              SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)),                  -- 0 none yet, 1 CANCELED, 2 COMPLETED
    worker               SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- worker of COMPLETED or CANCELED
    late_ms              SimpleAggregateFunction(max, Int64) CODEC(ZSTD(1)),                  -- how long after its deadline it was completed, ms; 0 when in time
    min_retries          SimpleAggregateFunction(min, Nullable(Int64)) CODEC(T64, ZSTD(1)),   -- least retries ever left
    steps                SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1)), -- of each event but CREATED, COMPLETED and CANCELED, tab between: order, intent, worker, retries or -1, ms to the deadline or -1, process, version and element of MIGRATED, identity where it has no position
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "jobs"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "jobs" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.jobs_mv{{.OnCluster}} TO {{.Table "jobs"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    multiIf(r.intent = 'COMPLETED', 2, r.intent = 'CANCELED', 1, 0) AS ended
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version,
    maxIf(r.element_id, r.element_id != 'NO_CATCH_EVENT_FOUND') AS element_id,
    max(r.key - r.element_instance_key) AS element_distance, max(r.job_type) AS job_type,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(ended > 0, at, NULL)) AS ended_at,
    max(ended) AS outcome,
    maxIf(r.worker, ended > 0) AS worker,
    max(if(ended = 2 AND r.deadline > 0, greatest(toUnixTimestamp64Milli(r.ts) - r.deadline, 0), 0)) AS late_ms,
    min(if(r.retries >= 0, r.retries, NULL)) AS min_retries,
    groupUniqArrayArray(if(ended > 0 OR r.intent = 'CREATED', [], [concat({{.Order}}, '\t', toString(r.intent), '\t', toString(r.worker), '\t',
        toString(ifNull(r.retries, -1)), '\t', toString(if(r.deadline > 0, r.deadline - toUnixTimestamp64Milli(r.ts), -1)), '\t',
        if(r.intent = 'MIGRATED', concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '\t\t'), '\t', hex(r.identity))])) AS steps
FROM
(
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type,
        intent, ts, position, identity, worker, retries, deadline
    FROM {{.Table "records"}}
    WHERE value_type = 'JOB' AND record_type = 'EVENT' AND key > 0
    UNION ALL
    SELECT source, job.1 AS process_instance_key, job_key AS key, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type,
        intent, ts, position, identity, worker, job.2 AS retries, job.3 AS deadline
    FROM
    (
        SELECT source, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type, intent, ts, position, identity, worker,
            JSONExtract(extra, 'Tuple(jobKeys Array(Int64), jobs Array(Tuple(processInstanceKey String, retries Nullable(Int64), deadline Nullable(Int64))))') AS batch,
            arrayResize(batch.2, length(batch.1)) AS jobs
        FROM {{.Table "records"}}
        WHERE value_type = 'JOB_BATCH' AND record_type = 'EVENT' AND intent = 'ACTIVATED'
    )
    ARRAY JOIN batch.1 AS job_key, jobs AS job
    WHERE job_key > 0 AND job.1 NOT IN ('', '-1', '0')
) AS r
GROUP BY source, process_instance_key, key;

-- What people query: one row for each job, whatever has been merged so far. The
-- intent of a step begins behind the 36th byte, a tab.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_jobs{{.OnCluster}} AS
WITH
    arraySort(steps) AS happened,
    splitByChar('\t', happened[-1]) AS last_step,
    splitByChar('\t', arrayFilter(s -> position(s, '\tRETRIES_UPDATED\t') != 36 AND position(s, '\tMIGRATED\t') != 36, happened)[-1]) AS last_state,
    splitByChar('\t', arrayFilter(s -> splitByChar('\t', s)[4] != '-1', happened)[-1]) AS counted,
    splitByChar('\t', arrayFilter(s -> position(s, '\tMIGRATED\t') = 36, happened)[-1]) AS migrated,
    fromUnixTimestamp64Milli(toInt64OrZero(substring(arrayFilter(s -> position(s, '\tACTIVATED\t') = 36, happened)[-1], 1, 15)), 'UTC') AS last_activated_at,
    fromUnixTimestamp64Milli(toInt64OrZero(substring(last_step[1], 1, 15)), 'UTC') AS last_step_at,
    multiIf(outcome = 2, 'COMPLETED', outcome = 1, 'CANCELED',
        transform(last_state[2], ['', 'RECURRED_AFTER_BACKOFF', 'YIELDED', 'TIMEOUT_UPDATED'], ['CREATED', 'CREATED', 'CREATED', 'ACTIVATED'], last_state[2])) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(length(migrated) < 2, j.bpmn_process_id, migrated[6]) AS bpmn_process_id, -- the process it belongs to
    if(length(migrated) < 2, j.version, toInt64OrNull(migrated[7])) AS version,
    if(length(migrated) < 2, j.element_id, migrated[8]) AS element_id,
    key - element_distance AS element_instance_key, job_type,
    now AS state, -- CREATED, ACTIVATED where batches tell, COMPLETED, FAILED, TIMED_OUT, ERROR_THROWN, CANCELED
    if(outcome > 0, j.worker, last_state[3]) AS worker, -- of that state
    if(length(counted) < 2, min_retries, toInt64OrNull(counted[4])) AS retries, -- left now
    min_retries, created_at,
    if(toUnixTimestamp64Milli(last_activated_at) > 0, toNullable(last_activated_at), NULL) AS activated_at, -- last JOB_BATCH ACTIVATED with it
    if(outcome = 2, ended_at, NULL) AS completed_at,
    if(outcome = 1, ended_at, NULL) AS canceled_at,
    multiIf(outcome > 0, ended_at, empty(steps), created_at, toUnixTimestamp64Milli(last_step_at) > 0, toNullable(last_step_at), NULL) AS last_seen, -- last event or activation
    if(now = 'ACTIVATED' AND toInt64OrZero(last_state[5]) > 0,
        fromUnixTimestamp64Milli(toInt64OrZero(substring(last_state[1], 1, 15)) + toInt64OrZero(last_state[5]), 'UTC'), NULL) AS deadline_at, -- until when the worker has it
    dateDiff('millisecond', created_at, if(outcome = 2, ended_at, NULL)) AS duration_ms,
    arrayCount(s -> position(s, '\tFAILED\t') = 36, steps) AS failures,
    arrayCount(s -> position(s, '\tTIMED_OUT\t') = 36, steps) AS timeouts,
    arrayCount(s -> position(s, '\tERROR_THROWN\t') = 36, steps) AS errors_thrown,
    late_ms, late_ms > 0 AS completed_late
FROM {{.Database}}.jobs AS j FINAL;
