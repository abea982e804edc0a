-- What analysts query: one row per thing, whatever has been merged so far.

CREATE VIEW IF NOT EXISTS {{.Database}}.v_process_instances{{.OnCluster}} AS
SELECT bpmn_process_id, process_instance_key, version, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, failed_job_record_ids,
    multiIf(terminated_at IS NOT NULL, 'TERMINATED', completed_at IS NOT NULL, 'COMPLETED',
        length(incident_keys) > length(resolved_incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    length(incident_keys) AS incidents, length(failed_job_record_ids) AS job_failures
FROM {{.Database}}.process_instances FINAL;

CREATE VIEW IF NOT EXISTS {{.Database}}.v_element_instances{{.OnCluster}} AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, bpmn_element_type,
    activated_at, completed_at, terminated_at, first_position,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM {{.Database}}.element_instances FINAL;

CREATE VIEW IF NOT EXISTS {{.Database}}.v_jobs{{.OnCluster}} AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, job_type, worker,
    created_at, completed_at, completed_deadline, canceled_at, last_seen, min_retries, failed_ids, timed_out_ids,
    dateDiff('millisecond', created_at, completed_at) AS duration_ms,
    length(failed_ids) AS failures, length(timed_out_ids) AS timeouts,
    completed_deadline > 0 AND toUnixTimestamp64Milli(assumeNotNull(completed_at)) > completed_deadline AS completed_late
FROM {{.Database}}.jobs FINAL;

CREATE VIEW IF NOT EXISTS {{.Database}}.v_incidents{{.OnCluster}} AS
SELECT bpmn_process_id, key, process_instance_key, element_id, error_type, error_message, created_at, resolved_at,
    resolved_at IS NULL AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM {{.Database}}.incidents FINAL;

-- An event log with the column names of XES.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_event_log{{.OnCluster}} AS
SELECT process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", toString(key) AS "concept:instance", position
FROM {{.Database}}.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';
