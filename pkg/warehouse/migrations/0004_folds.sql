-- What records say about instances, elements, jobs and incidents, folded with
-- min, max, any and sets only: a record seen twice, or late, changes nothing.

CREATE TABLE IF NOT EXISTS {{.Table "process_instances"}}{{.OnCluster}}
(
    bpmn_process_id        LowCardinality(String),
    process_instance_key   String CODEC(ZSTD(1)),
    version                SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    started_at             SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    completed_at           SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    terminated_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    first_seen             SimpleAggregateFunction(min, DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    last_seen              SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    incident_keys          SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)),
    resolved_incident_keys SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)),
    failed_job_record_ids  SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "process_instances"}}
ORDER BY (bpmn_process_id, process_instance_key)
SETTINGS {{.TableSettings}};
{{.Distributed "process_instances" "cityHash64(process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.process_instances_mv{{.OnCluster}} TO {{.Table "process_instances"}} AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key, max(r.version) AS version,
    min(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS started_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(ts) AS first_seen, max(ts) AS last_seen,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf(r.id, value_type = 'JOB' AND intent = 'FAILED') AS failed_job_record_ids
FROM {{.Table "records"}} AS r
WHERE record_type = 'EVENT' AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY bpmn_process_id, process_instance_key;

CREATE TABLE IF NOT EXISTS {{.Table "element_instances"}}{{.OnCluster}}
(
    bpmn_process_id      LowCardinality(String),
    key                  Int64 CODEC(Delta(8), ZSTD(1)),
    process_instance_key SimpleAggregateFunction(any, String) CODEC(ZSTD(1)),
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    element_id           SimpleAggregateFunction(any, LowCardinality(String)) CODEC(ZSTD(1)),
    bpmn_element_type    SimpleAggregateFunction(any, LowCardinality(String)) CODEC(ZSTD(1)),
    activated_at         SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    completed_at         SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    terminated_at        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    first_position       SimpleAggregateFunction(min, Int64) CODEC(Delta(8), ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "element_instances"}}
ORDER BY (bpmn_process_id, key)
SETTINGS {{.TableSettings}};
{{.Distributed "element_instances" "cityHash64(process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.element_instances_mv{{.OnCluster}} TO {{.Table "element_instances"}} AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.bpmn_element_type) AS bpmn_element_type,
    min(if(intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS activated_at,
    max(if(intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(r.position) AS first_position
FROM {{.Table "records"}} AS r
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT' AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED')
GROUP BY bpmn_process_id, key;

CREATE TABLE IF NOT EXISTS {{.Table "jobs"}}{{.OnCluster}}
(
    bpmn_process_id      LowCardinality(String),
    key                  Int64 CODEC(Delta(8), ZSTD(1)),
    process_instance_key SimpleAggregateFunction(any, String) CODEC(ZSTD(1)),
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    element_id           SimpleAggregateFunction(any, LowCardinality(String)) CODEC(ZSTD(1)),
    job_type             SimpleAggregateFunction(any, LowCardinality(String)) CODEC(ZSTD(1)),
    worker               SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)),
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    completed_at         SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    completed_deadline   SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    canceled_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    last_seen            SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    min_retries          SimpleAggregateFunction(min, Nullable(Int64)) CODEC(ZSTD(1)),
    failed_ids           SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1)),
    timed_out_ids        SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "jobs"}}
ORDER BY (bpmn_process_id, key)
SETTINGS {{.TableSettings}};
{{.Distributed "jobs" "cityHash64(process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.jobs_mv{{.OnCluster}} TO {{.Table "jobs"}} AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.job_type) AS job_type, max(r.worker) AS worker,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'COMPLETED', deadline, NULL)) AS completed_deadline,
    max(if(intent = 'CANCELED', toNullable(ts), NULL)) AS canceled_at,
    max(ts) AS last_seen, min(r.retries) AS min_retries,
    groupUniqArrayIf(r.id, intent = 'FAILED') AS failed_ids,
    groupUniqArrayIf(r.id, intent = 'TIMED_OUT') AS timed_out_ids
FROM {{.Table "records"}} AS r
WHERE value_type = 'JOB' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;

CREATE TABLE IF NOT EXISTS {{.Table "incidents"}}{{.OnCluster}}
(
    bpmn_process_id      LowCardinality(String),
    key                  Int64 CODEC(Delta(8), ZSTD(1)),
    process_instance_key SimpleAggregateFunction(any, String) CODEC(ZSTD(1)),
    element_id           SimpleAggregateFunction(any, LowCardinality(String)) CODEC(ZSTD(1)),
    error_type           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)),
    error_message        SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    resolved_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "incidents"}}
ORDER BY (bpmn_process_id, key)
SETTINGS {{.TableSettings}};
{{.Distributed "incidents" "cityHash64(process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.incidents_mv{{.OnCluster}} TO {{.Table "incidents"}} AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, any(r.element_id) AS element_id,
    max(r.error_type) AS error_type, max(r.error_message) AS error_message,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'RESOLVED', toNullable(ts), NULL)) AS resolved_at
FROM {{.Table "records"}} AS r
WHERE value_type = 'INCIDENT' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;
