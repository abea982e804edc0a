-- Of a cluster; on a single server there is nothing to do. Blocks that are sent again
-- are divided among the shards in the same way for ever, and so are the counters that
-- a recount inserts.
{{if .Cluster}}
{{.Divided "records" "cityHash64(source, process_instance_key)"}}
{{.Divided "counts_1m" "cityHash64(source, bpmn_process_id, minute)"}}
{{.Divided "sources" "cityHash64(source)"}}
{{.Divided "migrated_instances" "cityHash64(source, process_instance_key)"}}
{{.Divided "process_instances" "cityHash64(source, process_instance_key)"}}
{{.Divided "element_instances" "cityHash64(source, process_instance_key)"}}
{{.Divided "jobs" "cityHash64(source, process_instance_key)"}}
{{.Divided "incidents" "cityHash64(source, process_instance_key)"}}
{{.Divided "variables" "cityHash64(source, process_instance_key)"}}
{{.Divided "user_tasks" "cityHash64(source, process_instance_key)"}}
{{.Divided "waits" "cityHash64(source, process_instance_key)"}}
{{.Divided "process_definitions" "cityHash64(source, '')"}}
{{.Divided "decisions" "cityHash64(source, process_instance_key)"}}

-- What people query: one row for each job. A batch of jobs belongs to no instance, so
-- that what it says of a job may stand on another shard than all else, where no FINAL
-- finds it. The intent of a step begins behind the 36th byte, a tab.
CREATE OR REPLACE VIEW {{.Database}}.v_jobs{{.OnCluster}} AS
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
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.element_distance) AS element_distance, max(p.job_type) AS job_type,
        min(p.created_at) AS created_at, max(p.ended_at) AS ended_at, max(p.outcome) AS outcome, max(p.worker) AS worker,
        max(p.late_ms) AS late_ms, min(p.min_retries) AS min_retries, groupUniqArrayArray(p.steps) AS steps
    FROM {{.Database}}.jobs AS p
    GROUP BY source, process_instance_key, key
) AS j;
{{end}}
