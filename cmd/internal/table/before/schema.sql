-- The tables and views of analysts as they stood at e79fe00, for one server.
CREATE DATABASE before;
CREATE TABLE before.records
(
    id                     String                      CODEC(ZSTD(1)),
    key                    Int64                       CODEC(Delta(8), ZSTD(1)),
    record_type            LowCardinality(String)      CODEC(ZSTD(1)),
    value_type             LowCardinality(String)      CODEC(ZSTD(1)),
    intent                 LowCardinality(String)      CODEC(ZSTD(1)),
    ts                     DateTime64(3, 'UTC')        CODEC(Delta(8), ZSTD(3)),
    partition_id           Int64                       CODEC(ZSTD(1)),
    position               Int64                       CODEC(Delta(8), ZSTD(1)),
    tenant_id              LowCardinality(String)      CODEC(ZSTD(1)),
    bpmn_process_id        LowCardinality(String)      CODEC(ZSTD(1)),
    process_definition_key Nullable(Int64)             CODEC(ZSTD(1)),
    version                Nullable(Int64)             CODEC(ZSTD(1)),
    process_instance_key   String                      CODEC(ZSTD(1)), -- text by contract; Zeebe sends an int64
    element_id             LowCardinality(String)      CODEC(ZSTD(1)),
    element_instance_key   Nullable(Int64)             CODEC(Delta(8), ZSTD(1)),
    bpmn_element_type      LowCardinality(String)      CODEC(ZSTD(1)),
    job_type               LowCardinality(String)      CODEC(ZSTD(1)),
    worker                 LowCardinality(String)      CODEC(ZSTD(1)),
    retries                Nullable(Int64)             CODEC(ZSTD(1)),
    deadline               Nullable(Int64)             CODEC(ZSTD(1)), -- ms since 1970; -1 is "not set"
    deadline_at            Nullable(DateTime64(3, 'UTC')) ALIAS if(deadline > 0, fromUnixTimestamp64Milli(assumeNotNull(deadline), 'UTC'), NULL),
    error_type             LowCardinality(String)      CODEC(ZSTD(1)),
    error_code             LowCardinality(String)      CODEC(ZSTD(1)),
    error_message          String                      CODEC(ZSTD(1)),
    variables              String                      CODEC(ZSTD(3)), -- JSON
    custom_headers         LowCardinality(String)      CODEC(ZSTD(1)), -- JSON, static per element
    extra                  String                      CODEC(ZSTD(1)), -- JSON of every other member
    received_at            DateTime64(3, 'UTC')        CODEC(ZSTD(1)),
    stream_seq             UInt64                      CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the message, in its lane
    stream_idx             UInt32                      CODEC(T64, ZSTD(1)),           -- of the record, in its message
    lane                   UInt16                      CODEC(ZSTD(1)),
    INDEX ix_pik process_instance_key TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_key key                  TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_id  id                   TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_err error_message        TYPE text(tokenizer = splitByNonAlpha) GRANULARITY 100000000
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
PRIMARY KEY (toDate(ts), value_type, bpmn_process_id, process_instance_key)
ORDER BY    (toDate(ts), value_type, bpmn_process_id, process_instance_key, ts, id)
TTL toDateTime(received_at) + INTERVAL 400 DAY DELETE
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

CREATE TABLE before.counts_1m
(
    minute          DateTime('UTC')        CODEC(Delta(4), ZSTD(1)),
    tenant_id       LowCardinality(String) CODEC(ZSTD(1)),
    value_type      LowCardinality(String) CODEC(ZSTD(1)),
    record_type     LowCardinality(String) CODEC(ZSTD(1)),
    intent          LowCardinality(String) CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) CODEC(ZSTD(1)),
    version         Int64                  CODEC(ZSTD(1)), -- 0 when the record has none
    records         SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    received_at     SimpleAggregateFunction(max, DateTime('UTC')) CODEC(Delta(4), ZSTD(1))
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id)
TTL received_at + INTERVAL 400 DAY DELETE
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

CREATE MATERIALIZED VIEW before.counts_1m_mv TO before.counts_1m AS
SELECT toStartOfMinute(r.ts) AS minute, r.tenant_id AS tenant_id, r.value_type AS value_type,
    r.record_type AS record_type, r.intent AS intent, r.bpmn_process_id AS bpmn_process_id,
    ifNull(r.version, 0) AS version, count() AS records, toDateTime(max(r.received_at), 'UTC') AS received_at
FROM before.records AS r
GROUP BY minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version;

CREATE TABLE before.process_instances
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
ENGINE = AggregatingMergeTree
ORDER BY (bpmn_process_id, process_instance_key)
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE MATERIALIZED VIEW before.process_instances_mv TO before.process_instances AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key, max(r.version) AS version,
    min(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS started_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(ts) AS first_seen, max(ts) AS last_seen,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf(r.id, value_type = 'JOB' AND intent = 'FAILED') AS failed_job_record_ids
FROM before.records AS r
WHERE record_type = 'EVENT' AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY bpmn_process_id, process_instance_key;

CREATE TABLE before.element_instances
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
ENGINE = AggregatingMergeTree
ORDER BY (bpmn_process_id, key)
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE MATERIALIZED VIEW before.element_instances_mv TO before.element_instances AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.bpmn_element_type) AS bpmn_element_type,
    min(if(intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS activated_at,
    max(if(intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(r.position) AS first_position
FROM before.records AS r
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT' AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED')
GROUP BY bpmn_process_id, key;

CREATE TABLE before.jobs
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
ENGINE = AggregatingMergeTree
ORDER BY (bpmn_process_id, key)
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE MATERIALIZED VIEW before.jobs_mv TO before.jobs AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.job_type) AS job_type, max(r.worker) AS worker,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'COMPLETED', deadline, NULL)) AS completed_deadline,
    max(if(intent = 'CANCELED', toNullable(ts), NULL)) AS canceled_at,
    max(ts) AS last_seen, min(r.retries) AS min_retries,
    groupUniqArrayIf(r.id, intent = 'FAILED') AS failed_ids,
    groupUniqArrayIf(r.id, intent = 'TIMED_OUT') AS timed_out_ids
FROM before.records AS r
WHERE value_type = 'JOB' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;

CREATE TABLE before.incidents
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
ENGINE = AggregatingMergeTree
ORDER BY (bpmn_process_id, key)
SETTINGS merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE MATERIALIZED VIEW before.incidents_mv TO before.incidents AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, any(r.element_id) AS element_id,
    max(r.error_type) AS error_type, max(r.error_message) AS error_message,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'RESOLVED', toNullable(ts), NULL)) AS resolved_at
FROM before.records AS r
WHERE value_type = 'INCIDENT' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;

CREATE VIEW before.v_records AS
SELECT id, key, record_type, value_type, intent, ts, partition_id, position, tenant_id, bpmn_process_id,
    process_definition_key, version, process_instance_key, element_id, element_instance_key, bpmn_element_type,
    job_type, worker, retries, deadline, deadline_at, error_type, error_code, error_message, variables,
    custom_headers, extra, received_at, stream_seq, stream_idx, lane
FROM before.records FINAL;

CREATE VIEW before.v_process_instances AS
SELECT bpmn_process_id, process_instance_key, version, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, failed_job_record_ids,
    multiIf(terminated_at IS NOT NULL, 'TERMINATED', completed_at IS NOT NULL, 'COMPLETED',
        length(incident_keys) > length(resolved_incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    length(incident_keys) AS incidents, length(failed_job_record_ids) AS job_failures
FROM before.process_instances FINAL;

CREATE VIEW before.v_element_instances AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, bpmn_element_type,
    activated_at, completed_at, terminated_at, first_position,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM before.element_instances FINAL;

CREATE VIEW before.v_jobs AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, job_type, worker,
    created_at, completed_at, completed_deadline, canceled_at, last_seen, min_retries, failed_ids, timed_out_ids,
    dateDiff('millisecond', created_at, completed_at) AS duration_ms,
    length(failed_ids) AS failures, length(timed_out_ids) AS timeouts,
    completed_deadline > 0 AND toUnixTimestamp64Milli(assumeNotNull(completed_at)) > completed_deadline AS completed_late
FROM before.jobs FINAL;

CREATE VIEW before.v_incidents AS
SELECT bpmn_process_id, key, process_instance_key, element_id, error_type, error_message, created_at, resolved_at,
    resolved_at IS NULL AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM before.incidents FINAL;

CREATE VIEW before.v_event_log AS
SELECT process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", toString(key) AS "concept:instance", position
FROM before.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';

