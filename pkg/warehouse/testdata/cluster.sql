CREATE DATABASE IF NOT EXISTS flow ON CLUSTER 'main';

CREATE TABLE IF NOT EXISTS flow.migrations ON CLUSTER 'main'
(
    version    UInt32,
    name       String,
    checksum   String, -- of the file as it stands in the source
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/migrations', '{shard}-{replica}')
ORDER BY version
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS flow.records_local ON CLUSTER 'main'
(
    source                 LowCardinality(String)      CODEC(ZSTD(1)), -- the engine, as the token says
    own_id                 String                      CODEC(ZSTD(1)), -- empty where it follows from partition and position
    id                     String                      ALIAS if(own_id = '', concat(toString(partition_id), '-', toString(position)), own_id),
    identity               String                      CODEC(ZSTD(1)), -- empty, 16 bytes of hash, or lane.incarnation.sequence.index
    key                    Int64                       CODEC(Delta(8), ZSTD(1)),
    record_type            LowCardinality(String)      CODEC(ZSTD(1)),
    value_type             LowCardinality(String)      CODEC(ZSTD(1)),
    intent                 LowCardinality(String)      CODEC(ZSTD(1)),
    ts                     DateTime64(3, 'UTC')        CODEC(Delta(8), ZSTD(3)),
    partition_id           Int64                       CODEC(ZSTD(1)),
    position               Int64                       CODEC(Delta(8), ZSTD(1)),
    source_record_offset   Nullable(Int64)             CODEC(ZSTD(1)), -- to position
    source_record_position Nullable(Int64)             ALIAS position + source_record_offset,
    record_version         Nullable(Int64)             CODEC(ZSTD(1)),
    broker_version         LowCardinality(String)      CODEC(ZSTD(1)),
    rejection_type         LowCardinality(String)      CODEC(ZSTD(1)),
    rejection_reason       String                      CODEC(ZSTD(1)),
    operation_reference    Nullable(Int64)             CODEC(ZSTD(1)),
    tenant_id              LowCardinality(String)      CODEC(ZSTD(1)),
    bpmn_process_id        LowCardinality(String)      CODEC(ZSTD(1)),
    process_definition_key Nullable(Int64)             CODEC(ZSTD(1)),
    version                Nullable(Int64)             CODEC(ZSTD(1)),
    process_instance_key   String                      CODEC(ZSTD(1)), -- text by contract; Zeebe sends an int64
    parent_process_instance_key Nullable(Int64)        CODEC(ZSTD(1)),
    parent_element_instance_key Nullable(Int64)        CODEC(ZSTD(1)),
    element_id             LowCardinality(String)      CODEC(ZSTD(1)),
    element_instance_key   Nullable(Int64)             CODEC(Delta(8), ZSTD(1)),
    flow_scope_key         Nullable(Int64)             CODEC(Delta(8), ZSTD(1)),
    scope_key              Nullable(Int64)             CODEC(Delta(8), ZSTD(1)), -- of a variable
    bpmn_element_type      LowCardinality(String)      CODEC(ZSTD(1)),
    bpmn_event_type        LowCardinality(String)      CODEC(ZSTD(1)),
    job_type               LowCardinality(String)      CODEC(ZSTD(1)),
    job_kind               LowCardinality(String)      CODEC(ZSTD(1)),
    job_key                Nullable(Int64)             CODEC(Delta(8), ZSTD(1)), -- of an incident
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
    lane                   UInt16                      CODEC(ZSTD(1)),
    incarnation            UInt64                      CODEC(ZSTD(1)), -- life of the lane, ms
    stream_seq             UInt64                      CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the message, in its lane
    stream_idx             UInt32                      CODEC(T64, ZSTD(1)),                  -- of the record, in its message
    INDEX ix_pik process_instance_key TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_key key                  TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_id  id                   TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_err error_message        TYPE text(tokenizer = splitByNonAlpha) GRANULARITY 100000000
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/flow/records', '{replica}')
PARTITION BY toYYYYMM(ts)
PRIMARY KEY (toDate(ts), value_type, bpmn_process_id, process_instance_key)
ORDER BY    (toDate(ts), value_type, bpmn_process_id, process_instance_key,
             ts, source, partition_id, position, key, record_type, intent, own_id, identity)
TTL toDateTime(received_at) + INTERVAL 400 DAY DELETE
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS flow.records ON CLUSTER 'main' AS flow.records_local
ENGINE = Distributed('main', 'flow', 'records_local', cityHash64(source, process_instance_key));

CREATE VIEW IF NOT EXISTS flow.v_records ON CLUSTER 'main' AS
SELECT source, id, key, record_type, value_type, intent, ts, partition_id, position, source_record_position,
    record_version, broker_version, rejection_type, rejection_reason, operation_reference,
    tenant_id, bpmn_process_id, process_definition_key, version,
    process_instance_key, parent_process_instance_key, parent_element_instance_key,
    element_id, element_instance_key, flow_scope_key, scope_key, bpmn_element_type, bpmn_event_type,
    job_type, job_kind, job_key, worker, retries, deadline, deadline_at, error_type, error_code, error_message,
    variables, custom_headers, extra, received_at, lane, incarnation, stream_seq, stream_idx
FROM flow.records FINAL;

CREATE TABLE IF NOT EXISTS flow.counts_1m_local ON CLUSTER 'main'
(
    source          LowCardinality(String) CODEC(ZSTD(1)),
    minute          DateTime('UTC')        CODEC(Delta(4), ZSTD(1)),
    tenant_id       LowCardinality(String) CODEC(ZSTD(1)),
    value_type      LowCardinality(String) CODEC(ZSTD(1)),
    record_type     LowCardinality(String) CODEC(ZSTD(1)),
    intent          LowCardinality(String) CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) CODEC(ZSTD(1)),
    version         Int64                  CODEC(ZSTD(1)), -- 0 when the record has none
    records         SimpleAggregateFunction(sum, Int64)  CODEC(T64, ZSTD(1)), -- a recount inserts differences
    received_at     SimpleAggregateFunction(max, DateTime('UTC')) CODEC(Delta(4), ZSTD(1))
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/counts_1m', '{replica}')
PARTITION BY toYYYYMM(minute)
ORDER BY (minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id, source)
TTL received_at + INTERVAL 400 DAY DELETE
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

CREATE TABLE IF NOT EXISTS flow.counts_1m ON CLUSTER 'main' AS flow.counts_1m_local
ENGINE = Distributed('main', 'flow', 'counts_1m_local', rand());

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.counts_1m_mv ON CLUSTER 'main' TO flow.counts_1m_local AS
SELECT r.source AS source, toStartOfMinute(r.ts) AS minute, r.tenant_id AS tenant_id, r.value_type AS value_type,
    r.record_type AS record_type, r.intent AS intent, r.bpmn_process_id AS bpmn_process_id,
    ifNull(r.version, 0) AS version, toInt64(count()) AS records, toDateTime(max(r.received_at), 'UTC') AS received_at
FROM flow.records_local AS r
GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version;

CREATE TABLE IF NOT EXISTS flow.sources_local ON CLUSTER 'main'
(
    source         LowCardinality(String) CODEC(ZSTD(1)),
    partition_id   Int64                  CODEC(ZSTD(1)), -- 0: records that are not known by their position
    day            Date                   CODEC(ZSTD(1)), -- of the records' timestamps, UTC
    lane           UInt16                 CODEC(ZSTD(1)),
    incarnation    UInt64                 CODEC(ZSTD(1)),
    first_position SimpleAggregateFunction(min, Nullable(Int64)) CODEC(ZSTD(1)),
    last_position  SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),
    first_ts       SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    last_ts        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),
    received_at    SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(ZSTD(1)),
    last_seq       SimpleAggregateFunction(max, UInt64) CODEC(ZSTD(1)),
    rows           SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1))
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/sources', '{replica}')
ORDER BY (source, partition_id, day, lane, incarnation)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.sources ON CLUSTER 'main' AS flow.sources_local
ENGINE = Distributed('main', 'flow', 'sources_local', cityHash64(source));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.sources_mv ON CLUSTER 'main' TO flow.sources_local AS
SELECT r.source AS source, if(r.identity = '', r.partition_id, 0) AS partition_id, toDate(r.ts) AS day, r.lane AS lane, r.incarnation AS incarnation,
    min(if(r.identity = '', toNullable(r.position), NULL)) AS first_position,
    max(if(r.identity = '', toNullable(r.position), NULL)) AS last_position,
    min(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS first_ts,
    max(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS last_ts,
    max(r.received_at) AS received_at, max(r.stream_seq) AS last_seq, count() AS rows
FROM flow.records_local AS r
GROUP BY source, partition_id, day, lane, incarnation;

CREATE VIEW IF NOT EXISTS flow.v_sources ON CLUSTER 'main' AS
SELECT s.source AS source, s.partition_id AS partition_id, sum(s.rows) AS records,
    argMax(s.last_position, (s.day, s.last_position)) AS last_position, min(s.first_ts) AS first_ts, max(s.last_ts) AS last_ts,
    max(s.received_at) AS received_at, arraySort(groupUniqArray(s.lane)) AS lanes
FROM flow.sources AS s
GROUP BY source, partition_id;

CREATE TABLE IF NOT EXISTS flow.process_instances_local ON CLUSTER 'main'
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
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/process_instances', '{replica}')
ORDER BY (bpmn_process_id, process_instance_key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.process_instances ON CLUSTER 'main' AS flow.process_instances_local
ENGINE = Distributed('main', 'flow', 'process_instances_local', cityHash64(process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.process_instances_mv ON CLUSTER 'main' TO flow.process_instances_local AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key, max(r.version) AS version,
    min(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS started_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(value_type = 'PROCESS_INSTANCE' AND bpmn_element_type = 'PROCESS' AND intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(ts) AS first_seen, max(ts) AS last_seen,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, value_type = 'INCIDENT' AND intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf(r.id, value_type = 'JOB' AND intent = 'FAILED') AS failed_job_record_ids
FROM flow.records_local AS r
WHERE record_type = 'EVENT' AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY bpmn_process_id, process_instance_key;

CREATE TABLE IF NOT EXISTS flow.element_instances_local ON CLUSTER 'main'
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
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/element_instances', '{replica}')
ORDER BY (bpmn_process_id, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.element_instances ON CLUSTER 'main' AS flow.element_instances_local
ENGINE = Distributed('main', 'flow', 'element_instances_local', cityHash64(process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.element_instances_mv ON CLUSTER 'main' TO flow.element_instances_local AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.bpmn_element_type) AS bpmn_element_type,
    min(if(intent = 'ELEMENT_ACTIVATED', toNullable(ts), NULL)) AS activated_at,
    max(if(intent = 'ELEMENT_COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'ELEMENT_TERMINATED', toNullable(ts), NULL)) AS terminated_at,
    min(r.position) AS first_position
FROM flow.records_local AS r
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT' AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED')
GROUP BY bpmn_process_id, key;

CREATE TABLE IF NOT EXISTS flow.jobs_local ON CLUSTER 'main'
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
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/jobs', '{replica}')
ORDER BY (bpmn_process_id, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.jobs ON CLUSTER 'main' AS flow.jobs_local
ENGINE = Distributed('main', 'flow', 'jobs_local', cityHash64(process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.jobs_mv ON CLUSTER 'main' TO flow.jobs_local AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, max(r.version) AS version,
    any(r.element_id) AS element_id, any(r.job_type) AS job_type, max(r.worker) AS worker,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'COMPLETED', toNullable(ts), NULL)) AS completed_at,
    max(if(intent = 'COMPLETED', deadline, NULL)) AS completed_deadline,
    max(if(intent = 'CANCELED', toNullable(ts), NULL)) AS canceled_at,
    max(ts) AS last_seen, min(r.retries) AS min_retries,
    groupUniqArrayIf(r.id, intent = 'FAILED') AS failed_ids,
    groupUniqArrayIf(r.id, intent = 'TIMED_OUT') AS timed_out_ids
FROM flow.records_local AS r
WHERE value_type = 'JOB' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;

CREATE TABLE IF NOT EXISTS flow.incidents_local ON CLUSTER 'main'
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
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/incidents', '{replica}')
ORDER BY (bpmn_process_id, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.incidents ON CLUSTER 'main' AS flow.incidents_local
ENGINE = Distributed('main', 'flow', 'incidents_local', cityHash64(process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.incidents_mv ON CLUSTER 'main' TO flow.incidents_local AS
SELECT r.bpmn_process_id AS bpmn_process_id, r.key AS key, any(r.process_instance_key) AS process_instance_key, any(r.element_id) AS element_id,
    max(r.error_type) AS error_type, max(r.error_message) AS error_message,
    min(if(intent = 'CREATED', toNullable(ts), NULL)) AS created_at,
    max(if(intent = 'RESOLVED', toNullable(ts), NULL)) AS resolved_at
FROM flow.records_local AS r
WHERE value_type = 'INCIDENT' AND record_type = 'EVENT'
GROUP BY bpmn_process_id, key;

CREATE VIEW IF NOT EXISTS flow.v_process_instances ON CLUSTER 'main' AS
SELECT bpmn_process_id, process_instance_key, version, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, failed_job_record_ids,
    multiIf(terminated_at IS NOT NULL, 'TERMINATED', completed_at IS NOT NULL, 'COMPLETED',
        length(incident_keys) > length(resolved_incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    length(incident_keys) AS incidents, length(failed_job_record_ids) AS job_failures
FROM flow.process_instances FINAL;

CREATE VIEW IF NOT EXISTS flow.v_element_instances ON CLUSTER 'main' AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, bpmn_element_type,
    activated_at, completed_at, terminated_at, first_position,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM flow.element_instances FINAL;

CREATE VIEW IF NOT EXISTS flow.v_jobs ON CLUSTER 'main' AS
SELECT bpmn_process_id, key, process_instance_key, version, element_id, job_type, worker,
    created_at, completed_at, completed_deadline, canceled_at, last_seen, min_retries, failed_ids, timed_out_ids,
    dateDiff('millisecond', created_at, completed_at) AS duration_ms,
    length(failed_ids) AS failures, length(timed_out_ids) AS timeouts,
    completed_deadline > 0 AND toUnixTimestamp64Milli(assumeNotNull(completed_at)) > completed_deadline AS completed_late
FROM flow.jobs FINAL;

CREATE VIEW IF NOT EXISTS flow.v_incidents ON CLUSTER 'main' AS
SELECT bpmn_process_id, key, process_instance_key, element_id, error_type, error_message, created_at, resolved_at,
    resolved_at IS NULL AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM flow.incidents FINAL;

CREATE VIEW IF NOT EXISTS flow.v_event_log ON CLUSTER 'main' AS
SELECT process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", toString(key) AS "concept:instance", position
FROM flow.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';

CREATE TABLE IF NOT EXISTS flow.changes ON CLUSTER 'main'
(
    stream_seq  UInt64 CODEC(Delta(8), ZSTD(1)),           -- of the message, in lane 0
    changed_at  DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    changed_by  LowCardinality(String) CODEC(ZSTD(1)),     -- subject of the token
    kind        LowCardinality(String) CODEC(ZSTD(1)),     -- such as user.patched
    target_kind LowCardinality(String) CODEC(ZSTD(1)),     -- user or field
    target_key  String CODEC(ZSTD(1)),                     -- as in the state store
    members     Array(LowCardinality(String)) CODEC(ZSTD(1)) -- names only
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/changes', '{shard}-{replica}')
ORDER BY (stream_seq, changed_at)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;
