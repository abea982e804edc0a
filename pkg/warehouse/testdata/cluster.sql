CREATE DATABASE IF NOT EXISTS flow ON CLUSTER 'main';

CREATE TABLE IF NOT EXISTS flow.migrations ON CLUSTER 'main'
(
    version    UInt32, -- number of the file
    name       String, -- of the file
    checksum   String, -- of the file as it stands in the source
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC') -- UTC
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/migrations', '{shard}-{replica}')
ORDER BY version
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS flow.records_local ON CLUSTER 'main'
(
    source                 LowCardinality(String)      CODEC(ZSTD(1)), -- the engine, as the token says
    own_id                 String                      CODEC(ZSTD(1)), -- empty where it follows from partition and position
    id                     String                      ALIAS if(own_id = '', concat(toString(partition_id), '-', toString(position)), own_id),
    identity               String                      CODEC(ZSTD(1)), -- empty, 8 bytes of hash, or lane.incarnation.sequence.index
    key                    Int64                       CODEC(Delta(8), ZSTD(1)),
    record_type            LowCardinality(String)      CODEC(ZSTD(1)),
    value_type             LowCardinality(String)      CODEC(ZSTD(1)),
    intent                 LowCardinality(String)      CODEC(ZSTD(1)),
    ts                     DateTime64(3, 'UTC')        CODEC(Delta(8), ZSTD(3)),
    partition_id           Int64                       CODEC(ZSTD(3)),
    position               Int64                       CODEC(Delta(8), ZSTD(1)),
    source_record_offset   Nullable(Int64)             CODEC(ZSTD(1)), -- to position
    source_record_position Nullable(Int64)             ALIAS position + source_record_offset,
    record_version         Nullable(Int64)             CODEC(ZSTD(3)),
    broker_version         LowCardinality(String)      CODEC(ZSTD(1)),
    rejection_type         LowCardinality(String)      CODEC(ZSTD(1)),
    rejection_reason       String                      CODEC(ZSTD(1)),
    operation_reference    Nullable(Int64)             CODEC(ZSTD(1)),
    tenant_id              LowCardinality(String)      CODEC(ZSTD(1)),
    bpmn_process_id        LowCardinality(String)      CODEC(ZSTD(1)),
    process_definition_key Nullable(Int64)             CODEC(ZSTD(1)),
    version                Nullable(Int64)             CODEC(ZSTD(3)),
    process_instance_key   String                      CODEC(ZSTD(3)), -- text by contract; Zeebe sends an int64
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
    retries                Nullable(Int64)             CODEC(ZSTD(3)),
    deadline               Nullable(Int64)             CODEC(ZSTD(1)), -- ms since 1970; -1 is "not set"
    deadline_at            Nullable(DateTime64(3, 'UTC')) ALIAS if(deadline > 0, fromUnixTimestamp64Milli(assumeNotNull(deadline), 'UTC'), NULL),
    error_type             LowCardinality(String)      CODEC(ZSTD(1)),
    error_code             LowCardinality(String)      CODEC(ZSTD(1)),
    error_message          String                      CODEC(ZSTD(1)),
    variables              String                      CODEC(ZSTD(3)), -- JSON
    custom_headers         LowCardinality(String)      CODEC(ZSTD(1)), -- JSON, static per element
    extra                  String                      CODEC(ZSTD(1)), -- JSON of every other member
    received_at            DateTime64(3, 'UTC')        CODEC(Delta(8), T64('bit'), ZSTD(1)),
    lane                   UInt16                      CODEC(ZSTD(1)),
    incarnation            UInt64                      CODEC(ZSTD(1)), -- life of the lane, ms
    stream_seq             UInt64                      CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the message, in its lane
    stream_idx             UInt32                      CODEC(T64, ZSTD(1)),                  -- of the record, in its message
    INDEX ix_pik process_instance_key TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_key key                  TYPE minmax GRANULARITY 1,
    INDEX ix_pos position             TYPE minmax GRANULARITY 1,
    INDEX ix_own own_id               TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_err error_message        TYPE text(tokenizer = splitByNonAlpha) GRANULARITY 100000000
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/flow/records', '{replica}')
PARTITION BY toYYYYMM(ts)
PRIMARY KEY (toDate(ts), value_type, bpmn_process_id, process_instance_key)
ORDER BY    (toDate(ts), value_type, bpmn_process_id, process_instance_key,
             ts, source, partition_id, position, key, record_type, intent, own_id, identity)
TTL toDateTime(received_at) + INTERVAL 400 DAY DELETE
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

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

CREATE VIEW IF NOT EXISTS flow.v_event_log ON CLUSTER 'main' AS
SELECT source, process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", tenant_id AS "case:tenant",
    toString(key) AS "concept:instance", position
FROM flow.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';

CREATE TABLE IF NOT EXISTS flow.counts_1m_local ON CLUSTER 'main'
(
    source          LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    minute          DateTime('UTC')        CODEC(Delta(4), ZSTD(1)), -- that the timestamps are in, UTC
    tenant_id       LowCardinality(String) CODEC(ZSTD(1)),
    value_type      LowCardinality(String) CODEC(ZSTD(1)),
    record_type     LowCardinality(String) CODEC(ZSTD(1)),
    intent          LowCardinality(String) CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) CODEC(ZSTD(1)),
    version         Int64                  CODEC(ZSTD(1)), -- 0 when the record has none
    records         SimpleAggregateFunction(sum, Int64)  CODEC(T64, ZSTD(1)), -- how many; sum it, as a recount inserts differences
    received_at     SimpleAggregateFunction(max, DateTime('UTC')) CODEC(Delta(4), ZSTD(1)) -- when the api took the last of them in, UTC
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/counts_1m', '{replica}')
PARTITION BY toYYYYMM(minute)
ORDER BY (minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id, source)
TTL received_at + INTERVAL 400 DAY DELETE
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '', ttl_only_drop_parts = 1;

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
    source         LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    partition_id   Int64                  CODEC(ZSTD(1)), -- partitionId; 0: records that are not known by their position
    day            Date                   CODEC(ZSTD(1)), -- of the records' timestamps, UTC
    lane           UInt16                 CODEC(ZSTD(1)), -- of the stream, that they came in by
    incarnation    UInt64                 CODEC(ZSTD(1)), -- life of that lane, ms since 1970
    first_position SimpleAggregateFunction(min, Nullable(Int64)) CODEC(ZSTD(1)), -- lowest position of the day
    last_position  SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- highest position of the day
    first_ts       SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- earliest timestamp, UTC
    last_ts        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- latest timestamp, UTC
    received_at    SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(ZSTD(1)), -- when the api took the last one in, UTC
    last_seq       SimpleAggregateFunction(max, UInt64) CODEC(ZSTD(1)), -- last message in that lane with one of them
    rows           SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1))  -- how many were stored
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/sources', '{replica}')
ORDER BY (source, partition_id, day, lane, incarnation)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

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

CREATE TABLE IF NOT EXISTS flow.migrated_instances_local ON CLUSTER 'main'
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    migrated_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)) -- last ELEMENT_MIGRATED of the PROCESS; NULL when there was none
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/migrated_instances', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.migrated_instances ON CLUSTER 'main' AS flow.migrated_instances_local
ENGINE = Distributed('main', 'flow', 'migrated_instances_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.migrated_instances_mv ON CLUSTER 'main' TO flow.migrated_instances_local AS
SELECT r.source AS source, r.process_instance_key AS process_instance_key,
    max(if(r.intent = 'ELEMENT_MIGRATED' AND r.bpmn_element_type = 'PROCESS' AND toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS migrated_at
FROM flow.records_local AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT') AND (r.intent IN ('ELEMENT_MIGRATED', 'MIGRATED') OR r.bpmn_process_id = '')
    AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, process_instance_key;

CREATE TABLE IF NOT EXISTS flow.process_instances_local ON CLUSTER 'main'
(
    source                      LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    bpmn_process_id             LowCardinality(String) CODEC(ZSTD(1)), -- bpmnProcessId of the event
    process_instance_key        String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    tenant_id                   SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    version                     SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- version of the process, or processDefinitionVersion; what it is after a migration stands in migrated
    process_definition_key      SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- processDefinitionKey; likewise
    began                       SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- process, version and definition of its first event (ELEMENT_ACTIVATING of the PROCESS), tab between; empty until that is here
    migrated                    SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and definition of the last ELEMENT_MIGRATED of the PROCESS, tab between; empty when there was none
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentProcessInstanceKey: the instance that called it; -1 when none did
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentElementInstanceKey: the call activity in that; -1
    state                       SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 0 only jobs or incidents seen, 1 events of its elements, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED of the PROCESS
    started_at                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATED of the PROCESS
    completed_at                SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_COMPLETED of the PROCESS
    terminated_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),                       -- ELEMENT_TERMINATED of the PROCESS
    first_seen                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- first event of its elements, jobs and incidents
    last_seen                   SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- last event of these
    incident_keys               SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT CREATED
    resolved_incident_keys      SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT RESOLVED
    job_failures                SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- one number for each JOB FAILED: its position, or a hash of its identity
    INDEX ix_started started_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/process_instances', '{replica}')
PRIMARY KEY (source, bpmn_process_id, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bpmn_process_id, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.process_instances ON CLUSTER 'main' AS flow.process_instances_local
ENGINE = Distributed('main', 'flow', 'process_instances_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.process_instances_mv ON CLUSTER 'main' TO flow.process_instances_local AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
SELECT r.source AS source, r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.process_definition_key) AS process_definition_key,
    max(if(of_process AND r.intent = 'ELEMENT_ACTIVATING', definition, '')) AS began,
    max(if(of_process AND r.intent = 'ELEMENT_MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', definition), '')) AS migrated,
    max(r.parent_process_instance_key) AS parent_process_instance_key,
    max(r.parent_element_instance_key) AS parent_element_instance_key,
    max(multiIf(of_process AND r.intent = 'ELEMENT_TERMINATED', 4, of_process AND r.intent = 'ELEMENT_COMPLETED', 3, of_element, 1, 0)) AS state,
    min(if(of_process AND r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS started_at,
    max(if(of_process AND r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(of_process AND r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    min(at) AS first_seen, max(at) AS last_seen,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.value_type = 'JOB' AND r.intent = 'FAILED') AS job_failures
FROM flow.records_local AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT') AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, bpmn_process_id, process_instance_key;

CREATE VIEW IF NOT EXISTS flow.v_process_instances ON CLUSTER 'main' AS
SELECT source, process_instance_key, tenant_id,
    bpmn_process_id, version, process_definition_key,                   -- what it belongs to
    first_bpmn_process_id, first_version, first_process_definition_key, -- what it began with
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM
(
    SELECT source, process_instance_key, tenant_id, bpmn_process_id, version, process_definition_key,
        bpmn_process_id AS first_bpmn_process_id, version AS first_version, process_definition_key AS first_process_definition_key,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM flow.process_instances FINAL
    WHERE state > 0 AND (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.migrated_instances)
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now, splitByChar('\t', m.began) AS first
    SELECT source, process_instance_key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        if(m.began = '', m.bpmn_process_id, first[1]) AS first_bpmn_process_id,
        if(m.began = '', m.version, toInt64OrNull(first[2])) AS first_version,
        if(m.began = '', m.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM
    (
        SELECT source, process_instance_key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.process_definition_key) AS process_definition_key, max(p.began) AS began, max(p.migrated) AS migrated,
            max(p.parent_process_instance_key) AS parent_process_instance_key, max(p.parent_element_instance_key) AS parent_element_instance_key,
            max(p.state) AS state, min(p.started_at) AS started_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            min(p.first_seen) AS first_seen, max(p.last_seen) AS last_seen, groupUniqArrayArray(p.incident_keys) AS incident_keys,
            groupUniqArrayArray(p.resolved_incident_keys) AS resolved_incident_keys, groupUniqArrayArray(p.job_failures) AS job_failures
        FROM flow.process_instances AS p
        WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.migrated_instances)
        GROUP BY source, process_instance_key
    ) AS m
    WHERE m.state > 0
) AS i;

CREATE TABLE IF NOT EXISTS flow.element_instances_local ON CLUSTER 'main'
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    bpmn_process_id      LowCardinality(String) CODEC(ZSTD(1)), -- bpmnProcessId of the event
    process_instance_key String CODEC(ZSTD(3)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record: elementInstanceKey elsewhere
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- version of the process; what it is after a migration stands in migrated
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise
    bpmn_element_type    SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnElementType
    flow_scope_key       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- flowScopeKey: the element instance around it; -1 of a process
    state                SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 0 ELEMENT_MIGRATED alone seen, 1 ELEMENT_ACTIVATING, 2 ELEMENT_ACTIVATED, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED
    entered_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing
    activated_at         SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATED
    completed_at         SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_COMPLETED
    terminated_at        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),                       -- ELEMENT_TERMINATED
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and element of the last ELEMENT_MIGRATED, tab between; empty when there was none
    INDEX ix_entered entered_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/element_instances', '{replica}')
PRIMARY KEY (source, bpmn_process_id, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bpmn_process_id, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.element_instances ON CLUSTER 'main' AS flow.element_instances_local
ENGINE = Distributed('main', 'flow', 'element_instances_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.element_instances_mv ON CLUSTER 'main' TO flow.element_instances_local AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key, r.key AS key,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.element_id) AS element_id,
    max(r.bpmn_element_type) AS bpmn_element_type, max(r.flow_scope_key) AS flow_scope_key,
    max(multiIf(r.intent = 'ELEMENT_TERMINATED', 4, r.intent = 'ELEMENT_COMPLETED', 3, r.intent = 'ELEMENT_ACTIVATED', 2, r.intent = 'ELEMENT_ACTIVATING', 1, 0)) AS state,
    min(if(r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED'), at, NULL)) AS entered_at,
    min(if(r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS activated_at,
    max(if(r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    max(if(r.intent = 'ELEMENT_MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM flow.records_local AS r
WHERE r.value_type = 'PROCESS_INSTANCE' AND r.record_type = 'EVENT' AND r.key > 0
    AND r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED', 'ELEMENT_MIGRATED')
GROUP BY source, bpmn_process_id, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_element_instances ON CLUSTER 'main' AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, version, element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM flow.element_instances FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.migrated_instances)
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM
    (
        SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
            min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            max(p.migrated) AS migrated
        FROM flow.element_instances AS p
        WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.migrated_instances)
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

CREATE TABLE IF NOT EXISTS flow.jobs_local ON CLUSTER 'main'
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
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/jobs', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.jobs ON CLUSTER 'main' AS flow.jobs_local
ENGINE = Distributed('main', 'flow', 'jobs_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.jobs_mv ON CLUSTER 'main' TO flow.jobs_local AS
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
    groupUniqArrayArray(if(ended > 0 OR r.intent = 'CREATED', [], [concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.intent), '\t', toString(r.worker), '\t',
        toString(ifNull(r.retries, -1)), '\t', toString(if(r.deadline > 0, r.deadline - toUnixTimestamp64Milli(r.ts), -1)), '\t',
        if(r.intent = 'MIGRATED', concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '\t\t'), '\t', hex(r.identity))])) AS steps
FROM
(
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type,
        intent, ts, position, identity, worker, retries, deadline
    FROM flow.records_local
    WHERE value_type = 'JOB' AND record_type = 'EVENT' AND key > 0
    UNION ALL
    SELECT source, job.1 AS process_instance_key, job_key AS key, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type,
        intent, ts, position, identity, worker, job.2 AS retries, job.3 AS deadline
    FROM
    (
        SELECT source, tenant_id, bpmn_process_id, version, element_id, element_instance_key, job_type, intent, ts, position, identity, worker,
            JSONExtract(extra, 'Tuple(jobKeys Array(Int64), jobs Array(Tuple(processInstanceKey String, retries Nullable(Int64), deadline Nullable(Int64))))') AS batch,
            arrayResize(batch.2, length(batch.1)) AS jobs
        FROM flow.records_local
        WHERE value_type = 'JOB_BATCH' AND record_type = 'EVENT' AND intent = 'ACTIVATED'
    )
    ARRAY JOIN batch.1 AS job_key, jobs AS job
    WHERE job_key > 0 AND job.1 NOT IN ('', '-1', '0')
) AS r
GROUP BY source, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_jobs ON CLUSTER 'main' AS
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
FROM flow.jobs AS j FINAL;

CREATE TABLE IF NOT EXISTS flow.incidents_local ON CLUSTER 'main'
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(1)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), ZSTD(1)),       -- of the record
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise
    element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- elementInstanceKey
    job_key              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- jobKey; -1 when it is about no job
    error_type           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- errorType
    error_message        SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- errorMessage
    state                SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 1 CREATED or MIGRATED, 2 RESOLVED
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CREATED
    resolved_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- RESOLVED, by somebody or by the end of its element
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process and element of the last MIGRATED, tab between; empty when there was none
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/incidents', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.incidents ON CLUSTER 'main' AS flow.incidents_local
ENGINE = Distributed('main', 'flow', 'incidents_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.incidents_mv ON CLUSTER 'main' TO flow.incidents_local AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.element_id) AS element_id,
    max(r.element_instance_key) AS element_instance_key, max(r.job_key) AS job_key,
    max(r.error_type) AS error_type, max(r.error_message) AS error_message,
    max(if(r.intent = 'RESOLVED', 2, 1)) AS state,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(r.intent = 'RESOLVED', at, NULL)) AS resolved_at,
    max(if(r.intent = 'MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.bpmn_process_id), '\t', toString(r.element_id)), '')) AS migrated
FROM flow.records_local AS r
WHERE r.value_type = 'INCIDENT' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_incidents ON CLUSTER 'main' AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id, -- the process it belongs to
    if(migrated = '', i.element_id, now[3]) AS element_id,
    element_instance_key, nullIf(i.job_key, -1) AS job_key, error_type, error_message, created_at, resolved_at,
    state < 2 AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM flow.incidents AS i FINAL;

CREATE TABLE IF NOT EXISTS flow.variables_local ON CLUSTER 'main'
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(1)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    scope_distance       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- key - scopeKey, which is small
    name                 SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- name
    created              SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- value of CREATED, JSON
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- CREATED
    updated              SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order and value of the last UPDATED, tab between; empty when there was none
    updates              SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- one number for each UPDATED: its position, or a hash of its identity
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) -- order and process of the last MIGRATED, tab between; empty when there was none
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/variables', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.variables ON CLUSTER 'main' AS flow.variables_local
ENGINE = Distributed('main', 'flow', 'variables_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.variables_mv ON CLUSTER 'main' TO flow.variables_local AS
WITH JSONExtract(r.extra, 'Tuple(name String, value String)') AS said
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.key - r.scope_key) AS scope_distance, max(said.1) AS name,
    max(if(r.intent = 'CREATED', said.2, '')) AS created,
    min(if(r.intent = 'CREATED' AND toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS created_at,
    max(if(r.intent = 'UPDATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', said.2), '')) AS updated,
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.intent = 'UPDATED') AS updates,
    max(if(r.intent = 'MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.bpmn_process_id)), '')) AS migrated
FROM flow.records_local AS r
WHERE r.value_type = 'VARIABLE' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_variables ON CLUSTER 'main' AS
WITH toInt64OrZero(substring(updated, 1, 15)) AS updated_ms
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', v.bpmn_process_id, substring(migrated, 37)) AS bpmn_process_id,
    key - scope_distance AS scope_key, name, created AS first_value,
    if(updated = '', created, substring(updated, 37)) AS value,
    created_at, multiIf(updated = '', created_at, updated_ms > 0, fromUnixTimestamp64Milli(updated_ms, 'UTC'), NULL) AS updated_at,
    length(updates) AS changes
FROM flow.variables AS v FINAL;

CREATE TABLE IF NOT EXISTS flow.user_tasks_local ON CLUSTER 'main'
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(1)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record: userTaskKey
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- processDefinitionVersion; likewise
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise
    element_distance     SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- key - elementInstanceKey, which is small
    assigned             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order and assignee of the last CREATED, ASSIGNED or UPDATED, tab between
    offered              SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, dueDate and candidateGroupsList of the last CREATED or UPDATED, tab between
    state                SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 1 any event seen, 2 CANCELED, 3 COMPLETED
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CREATED
    assigned_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- last ASSIGNED
    ended_at             SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- COMPLETED or CANCELED
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and element of the last MIGRATED, tab between; empty when there was none
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/user_tasks', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.user_tasks ON CLUSTER 'main' AS flow.user_tasks_local
ENGINE = Distributed('main', 'flow', 'user_tasks_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.user_tasks_mv ON CLUSTER 'main' TO flow.user_tasks_local AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version, max(r.element_id) AS element_id,
    max(r.key - r.element_instance_key) AS element_distance,
    max(if(r.intent IN ('CREATED', 'ASSIGNED', 'UPDATED'), concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', JSONExtractString(r.extra, 'assignee')), '')) AS assigned,
    max(if(r.intent IN ('CREATED', 'UPDATED'), concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', JSONExtractString(r.extra, 'dueDate'), '\t', JSONExtractRaw(r.extra, 'candidateGroupsList')), '')) AS offered,
    max(multiIf(r.intent = 'COMPLETED', 3, r.intent = 'CANCELED', 2, 1)) AS state,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(r.intent = 'ASSIGNED', at, NULL)) AS assigned_at,
    max(if(r.intent IN ('COMPLETED', 'CANCELED'), at, NULL)) AS ended_at,
    max(if(r.intent = 'MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM flow.records_local AS r
WHERE r.value_type = 'USER_TASK' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_user_tasks ON CLUSTER 'main' AS
WITH splitByChar('\t', migrated) AS now, splitByChar('\t', offered) AS offer
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', u.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', u.version, toInt64OrNull(now[3])) AS version,
    if(migrated = '', u.element_id, now[4]) AS element_id,
    key - element_distance AS element_instance_key,
    substring(assigned, 37) AS assignee,
    JSONExtract(offer[3], 'Array(String)') AS candidate_groups,
    parseDateTime64BestEffortOrNull(offer[2], 3, 'UTC') AS due_at,
    transform(u.state, [2, 3], ['CANCELED', 'COMPLETED'], 'CREATED') AS state,
    created_at, assigned_at,
    if(u.state = 3, ended_at, NULL) AS completed_at,
    if(u.state = 2, ended_at, NULL) AS canceled_at,
    dateDiff('millisecond', created_at, assigned_at) AS waiting_ms,
    dateDiff('millisecond', assigned_at, if(u.state = 3, ended_at, NULL)) AS handling_ms,
    dateDiff('millisecond', created_at, if(u.state = 3, ended_at, NULL)) AS duration_ms
FROM flow.user_tasks AS u FINAL;

CREATE TABLE IF NOT EXISTS flow.waits_local ON CLUSTER 'main'
(
    source                 LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    value_type             LowCardinality(String) CODEC(ZSTD(1)), -- TIMER, PROCESS_MESSAGE_SUBSCRIPTION or MESSAGE
    process_instance_key   String CODEC(ZSTD(1)),                 -- processInstanceKey; empty of a message
    key                    Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id              SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId, of a subscription; what it is after a migration stands in migrated
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- processDefinitionKey, of a timer; likewise
    element_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId or targetElementId; likewise
    element_instance_key   SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- elementInstanceKey
    name                   SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- name or messageName
    correlation_key        SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- correlationKey
    due                    SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- dueDate of a timer, deadline of a message: ms since 1970
    state                  SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 1 waiting, 2 TRIGGERED or CORRELATED, 3 CANCELED, DELETED or EXPIRED
    created_at             SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CREATED, CREATING or PUBLISHED
    happened_at            SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- last TRIGGERED or CORRELATED
    ended_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CANCELED, DELETED or EXPIRED
    migrated               SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, definition and element of the last MIGRATED, tab between; empty when there was none
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/waits', '{replica}')
PRIMARY KEY (source, value_type, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, value_type, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.waits ON CLUSTER 'main' AS flow.waits_local
ENGINE = Distributed('main', 'flow', 'waits_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.waits_mv ON CLUSTER 'main' TO flow.waits_local AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    JSONExtract(r.extra, 'Tuple(name String, messageName String, correlationKey String, dueDate Nullable(Int64))') AS said,
    multiIf(r.intent IN ('CANCELED', 'DELETED', 'EXPIRED'), 3, r.intent IN ('TRIGGERED', 'CORRELATED'), 2, 1) AS step
SELECT r.source AS source, r.value_type AS value_type, r.process_instance_key AS process_instance_key, r.key AS key,
    max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key,
    max(r.element_id) AS element_id, max(r.element_instance_key) AS element_instance_key,
    max(if(said.1 = '', said.2, said.1)) AS name, max(said.3) AS correlation_key,
    max(if(r.value_type = 'TIMER', said.4, r.deadline)) AS due, max(step) AS state,
    min(if(r.intent IN ('CREATED', 'CREATING', 'PUBLISHED'), at, NULL)) AS created_at,
    max(if(step = 2, at, NULL)) AS happened_at, max(if(step = 3, at, NULL)) AS ended_at,
    max(if(r.intent = 'MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.process_definition_key, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM flow.records_local AS r
WHERE r.value_type IN ('TIMER', 'PROCESS_MESSAGE_SUBSCRIPTION', 'MESSAGE') AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, value_type, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_timers ON CLUSTER 'main' AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.process_definition_key, toInt64OrNull(now[3])) AS process_definition_key,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    element_instance_key, transform(w.state, [2, 3], ['TRIGGERED', 'CANCELED'], 'WAITING') AS state,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS due_at,
    created_at, happened_at AS triggered_at, ended_at AS canceled_at
FROM flow.waits AS w FINAL
WHERE value_type = 'TIMER';

CREATE VIEW IF NOT EXISTS flow.v_message_waits ON CLUSTER 'main' AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    element_instance_key, name AS message_name, correlation_key,
    transform(w.state, [2, 3], ['CORRELATED', 'DELETED'], 'WAITING') AS state,
    created_at, happened_at AS correlated_at, ended_at AS deleted_at
FROM flow.waits AS w FINAL
WHERE value_type = 'PROCESS_MESSAGE_SUBSCRIPTION';

CREATE VIEW IF NOT EXISTS flow.v_messages ON CLUSTER 'main' AS
SELECT source, key, tenant_id, name AS message_name, correlation_key,
    if(w.state = 3, 'EXPIRED', 'PUBLISHED') AS state, created_at AS published_at,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS expires_at, ended_at AS expired_at
FROM flow.waits AS w FINAL
WHERE value_type = 'MESSAGE';

CREATE TABLE IF NOT EXISTS flow.process_definitions_local ON CLUSTER 'main'
(
    source          LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    key             Int64 CODEC(ZSTD(1)),                  -- of the record: processDefinitionKey
    tenant_id       SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId
    version         SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- version
    resource_name   SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- resourceName
    xml             SimpleAggregateFunction(max, String) CODEC(ZSTD(3)),                 -- resource, decoded
    deployed_at     SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- first CREATED
    deleted_at      SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1))  -- last DELETED
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/process_definitions', '{replica}')
ORDER BY (source, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.process_definitions ON CLUSTER 'main' AS flow.process_definitions_local
ENGINE = Distributed('main', 'flow', 'process_definitions_local', cityHash64(source, ''));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.process_definitions_mv ON CLUSTER 'main' TO flow.process_definitions_local AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.key AS key, max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version,
    max(JSONExtractString(r.extra, 'resourceName')) AS resource_name,
    max(tryBase64Decode(JSONExtractString(r.extra, 'resource'))) AS xml,
    min(if(r.intent = 'CREATED', at, NULL)) AS deployed_at, max(if(r.intent = 'DELETED', at, NULL)) AS deleted_at
FROM flow.records_local AS r
WHERE r.value_type = 'PROCESS' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, key;

CREATE VIEW IF NOT EXISTS flow.v_process_definitions ON CLUSTER 'main' AS
SELECT source, key AS process_definition_key, tenant_id, bpmn_process_id, version,
    decodeXMLComponent(extract(xml, '<(?:\\w+:)?process\\s[^>]*?\\bname="([^"]*)"')) AS name,
    resource_name, xml, deployed_at, deleted_at
FROM flow.process_definitions AS d FINAL;

CREATE TABLE IF NOT EXISTS flow.changes ON CLUSTER 'main'
(
    stream_seq  UInt64 CODEC(Delta(8), ZSTD(1)),           -- of the message, in lane 0
    changed_at  DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)), -- UTC
    changed_by  LowCardinality(String) CODEC(ZSTD(1)),     -- subject of the token
    kind        LowCardinality(String) CODEC(ZSTD(1)),     -- such as user.patched
    target_kind LowCardinality(String) CODEC(ZSTD(1)),     -- user or field
    target_key  String CODEC(ZSTD(1)),                     -- as in the state store
    members     Array(LowCardinality(String)) CODEC(ZSTD(1)) -- names only
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/changes', '{shard}-{replica}')
ORDER BY (stream_seq, changed_at)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS flow.decisions_local ON CLUSTER 'main'
(
    source                 LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key   String CODEC(ZSTD(1)),                 -- processInstanceKey; -1 when it was asked for alone
    key                    Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id              SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId, as it was then
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- processDefinitionKey, as it was then
    element_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId, as it was then
    element_distance       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- key - elementInstanceKey, which is small
    decision_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionId
    decision_name          SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionName
    decision_version       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- decisionVersion
    decision_key           SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- decisionKey: that version of the decision
    requirements_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionRequirementsId
    output                 SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- decisionOutput, JSON
    failed                 SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)),                  -- 1 of FAILED
    failed_decision_id     SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- failedDecisionId: it, or one that it needs
    failure                SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- evaluationFailureMessage
    evaluated_at           SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- EVALUATED or FAILED
    INDEX ix_evaluated evaluated_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/decisions', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key, key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE TABLE IF NOT EXISTS flow.decisions ON CLUSTER 'main' AS flow.decisions_local
ENGINE = Distributed('main', 'flow', 'decisions_local', cityHash64(source, process_instance_key));

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.decisions_mv ON CLUSTER 'main' TO flow.decisions_local AS
WITH JSONExtract(r.extra, 'Tuple(decisionId String, decisionName String, decisionVersion Nullable(Int64), decisionKey Nullable(Int64), decisionRequirementsId String, decisionOutput String, failedDecisionId String, evaluationFailureMessage String)') AS said
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key, max(r.element_id) AS element_id,
    max(r.key - r.element_instance_key) AS element_distance,
    max(said.1) AS decision_id, max(said.2) AS decision_name, max(said.3) AS decision_version, max(said.4) AS decision_key,
    max(said.5) AS requirements_id, max(said.6) AS output, max(r.intent = 'FAILED') AS failed,
    max(said.7) AS failed_decision_id, max(said.8) AS failure,
    max(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS evaluated_at
FROM flow.records_local AS r
WHERE r.value_type = 'DECISION_EVALUATION' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

CREATE VIEW IF NOT EXISTS flow.v_decisions ON CLUSTER 'main' AS
SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, process_definition_key, element_id,
    nullIf(key - element_distance, -1) AS element_instance_key,
    decision_id, decision_name, decision_version, decision_key, requirements_id,
    if(d.failed, 'FAILED', 'EVALUATED') AS state, output, failed_decision_id, failure, evaluated_at
FROM flow.decisions AS d FINAL;

CREATE VIEW IF NOT EXISTS flow.v_lint ON CLUSTER 'main' AS
SELECT source, 'position_gaps' AS check_name, 'Positions are missing' AS finding, findings, example,
    'look whether the exporter filters records or has lost some; sluice verify says whether Sluice has.' AS what_to_do
FROM
(
SELECT source, toUInt64(sum(missing)) AS findings,
    arrayStringConcat(arrayMap(p -> concat('partition ', toString(p.1), ' lacks ', toString(p.2), ' positions'), arraySort(groupArray((partition_id, missing)))), ', ') AS example
FROM
(
    SELECT source, partition_id, toUInt64(max(position) - min(position) + 1) - uniqExact(position) AS missing
    FROM flow.v_records
    WHERE partition_id > 0 AND position > 0
    GROUP BY source, partition_id
    HAVING countIf(record_type = 'COMMAND') > 0 AND missing > 0
)
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'no_start' AS check_name, 'Instances have no beginning' AS finding, findings, example,
    'nothing, when the engine had instances before it sent records here; else look for a filter in the exporter.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM flow.v_process_instances
WHERE started_at IS NULL
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'no_instance' AS check_name, 'Elements belong to no instance' AS finding, findings, example,
    'export PROCESS_INSTANCE records of every element type.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('element instance ', toString(min(key)), ' of instance ', argMin(process_instance_key, key)) AS example
FROM flow.v_element_instances
WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.v_element_instances WHERE bpmn_element_type = 'PROCESS')
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'rounded_keys' AS check_name, 'Keys look rounded' AS finding, findings, example,
    'send keys as texts, or parse JSON without floating point.' AS what_to_do
FROM
(
SELECT source, uniqExact(key) AS findings, concat('key ', toString(max(key))) AS example
FROM flow.v_records
WHERE key > 9007199254740992
GROUP BY source
HAVING findings >= 20 AND countIf(key % 2 = 1) = 0
ORDER BY source
)
UNION ALL
SELECT source, 'bad_timestamps' AS check_name, 'Timestamps are not milliseconds of our time' AS finding, findings, example,
    'send milliseconds since 1970, and set the clock of the engine.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('record ', min(id), ' with the timestamp ', argMin(coalesce(nullIf(JSONExtractRaw(extra, '_record', 'timestamp'), ''), 'missing'), id)) AS example
FROM flow.v_records
WHERE toYear(ts) < 2000
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'after_end' AS check_name, 'Things happen after the end' AS finding, findings, example,
    'look whether the clocks of the brokers differ, or one engine has the source of another.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM flow.v_process_instances
WHERE last_seen > coalesce(completed_at, terminated_at)
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'doubled_ids' AS check_name, 'Ids are used for different records' AS finding, findings, example,
    'give every engine a source of its own; look whether one was wiped or restored, and numbers anew.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('id ', min(id)) AS example
FROM
(
    SELECT source, id
    FROM flow.v_records
    WHERE id NOT IN ('', '0-0')
    GROUP BY source, id
    HAVING count() > 1
)
GROUP BY source
ORDER BY source
);

CREATE TABLE IF NOT EXISTS flow.forgotten ON CLUSTER 'main'
(
    receipt      String                 CODEC(ZSTD(1)), -- id in receipts
    source       LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    identity     String                 CODEC(ZSTD(1)), -- as in records
    key          Int64                  CODEC(Delta(8), ZSTD(1)), -- of the record
    record_type  LowCardinality(String) CODEC(ZSTD(1)), -- such as EVENT
    value_type   LowCardinality(String) CODEC(ZSTD(1)), -- such as VARIABLE
    intent       LowCardinality(String) CODEC(ZSTD(1)), -- such as CREATED
    ts           DateTime64(3, 'UTC')   CODEC(Delta(8), ZSTD(1)), -- timestamp of the record, UTC
    partition_id Int64                  CODEC(ZSTD(1)), -- partition of the engine
    position     Int64                  CODEC(Delta(8), ZSTD(1)), -- in that partition
    received_at  DateTime64(3, 'UTC')   CODEC(Delta(8), ZSTD(1)), -- when the api took it in, UTC
    lane         UInt16                 CODEC(ZSTD(1)), -- of the stream, that it came in by
    incarnation  UInt64                 CODEC(ZSTD(1)), -- life of that lane, ms since 1970
    stream_seq   UInt64                 CODEC(Delta(8), ZSTD(1)), -- of its message, in that lane
    stream_idx   UInt32                 CODEC(ZSTD(1))  -- of the record, in that message
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/forgotten', '{shard}-{replica}')
ORDER BY (toDate(ts), source, partition_id, position, lane, incarnation, stream_seq, stream_idx)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS flow.receipts ON CLUSTER 'main'
(
    id       String CODEC(ZSTD(1)), -- of the receipt
    begun_at DateTime64(3, 'UTC') CODEC(ZSTD(1)), -- UTC
    done_at  DateTime64(3, 'UTC') CODEC(ZSTD(1)), -- UTC; 1970 until nothing is left
    changed  UInt64 CODEC(ZSTD(1)), -- the greatest counts, ns since 1970
    receipt  String CODEC(ZSTD(1))  -- all of it, JSON
)
ENGINE = ReplicatedReplacingMergeTree('/clickhouse/tables/all/flow/receipts', '{shard}-{replica}')
ORDER BY (id, changed)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE OR REPLACE VIEW flow.v_process_instances ON CLUSTER 'main' AS
SELECT source, process_instance_key, tenant_id,
    bpmn_process_id, version, process_definition_key,                   -- what it belongs to
    first_bpmn_process_id, first_version, first_process_definition_key, -- what it began with
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    processes, started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM
(
    WITH splitByChar('\t', o.migrated) AS now, splitByChar('\t', o.began) AS first
    SELECT source, process_instance_key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        bpmn_process_id AS first_bpmn_process_id,
        if(o.began = '', o.version, toInt64OrNull(first[2])) AS first_version,
        if(o.began = '', o.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        [toString(bpmn_process_id)] AS processes,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM flow.process_instances AS o FINAL
    WHERE o.state > 0 AND (o.source, o.process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.process_instances WHERE migrated != '' AND began = '' OR bpmn_process_id = '')
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now, splitByChar('\t', m.began) AS first
    SELECT source, process_instance_key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        if(m.began = '', m.bpmn_process_id, first[1]) AS first_bpmn_process_id,
        if(m.began = '', m.version, toInt64OrNull(first[2])) AS first_version,
        if(m.began = '', m.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        processes,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM
    (
        SELECT source, process_instance_key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, arraySort(groupUniqArray(toString(p.bpmn_process_id))) AS processes, max(p.version) AS version,
            max(p.process_definition_key) AS process_definition_key, max(p.began) AS began, max(p.migrated) AS migrated,
            max(p.parent_process_instance_key) AS parent_process_instance_key, max(p.parent_element_instance_key) AS parent_element_instance_key,
            max(p.state) AS state, min(p.started_at) AS started_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            min(p.first_seen) AS first_seen, max(p.last_seen) AS last_seen, groupUniqArrayArray(p.incident_keys) AS incident_keys,
            groupUniqArrayArray(p.resolved_incident_keys) AS resolved_incident_keys, groupUniqArrayArray(p.job_failures) AS job_failures
        FROM flow.process_instances AS p
        WHERE (p.source, p.process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.process_instances WHERE migrated != '' AND began = '' OR bpmn_process_id = '')
        GROUP BY source, process_instance_key
    ) AS m
    WHERE m.state > 0
) AS i;

CREATE OR REPLACE VIEW flow.v_element_instances ON CLUSTER 'main' AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    WITH splitByChar('\t', o.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM flow.element_instances AS o FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.process_instances WHERE migrated != '' AND began = '' OR bpmn_process_id = '')
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM
    (
        SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
            min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            max(p.migrated) AS migrated
        FROM flow.element_instances AS p
        WHERE (p.source, p.bpmn_process_id, p.process_instance_key) GLOBAL IN
            (
                SELECT source, bpmn_process_id, process_instance_key FROM flow.process_instances
                WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.process_instances WHERE migrated != '' AND began = '' OR bpmn_process_id = '')
            )
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

CREATE VIEW IF NOT EXISTS flow.v_active_elements ON CLUSTER 'main' AS
WITH splitByChar('\t', a.migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(a.migrated = '', a.bpmn_process_id, now[2]) AS bpmn_process_id, -- what it belongs to
    if(a.migrated = '', a.version, toInt64OrNull(now[3])) AS version,
    if(a.migrated = '', a.element_id, now[4]) AS element_id,
    bpmn_element_type, nullIf(a.flow_scope_key, -1) AS flow_scope_key, entered_at, activated_at,
    if(a.state = 1, 'ACTIVATING', 'ACTIVE') AS state
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
        min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.migrated) AS migrated
    FROM flow.element_instances AS p
    WHERE p.state < 3 AND (p.source, p.key) GLOBAL NOT IN
        (
            SELECT source, key FROM flow.element_instances
            WHERE state > 2 AND key GLOBAL IN (SELECT key FROM flow.element_instances WHERE state < 3)
        )
    GROUP BY source, process_instance_key, key
) AS a;

CREATE OR REPLACE TABLE flow.records ON CLUSTER 'main' AS flow.records_local
ENGINE = Distributed('main', 'flow', 'records_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.counts_1m ON CLUSTER 'main' AS flow.counts_1m_local
ENGINE = Distributed('main', 'flow', 'counts_1m_local', cityHash64(source, bpmn_process_id, minute) % 2);

CREATE OR REPLACE TABLE flow.sources ON CLUSTER 'main' AS flow.sources_local
ENGINE = Distributed('main', 'flow', 'sources_local', cityHash64(source) % 2);

CREATE OR REPLACE TABLE flow.migrated_instances ON CLUSTER 'main' AS flow.migrated_instances_local
ENGINE = Distributed('main', 'flow', 'migrated_instances_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.process_instances ON CLUSTER 'main' AS flow.process_instances_local
ENGINE = Distributed('main', 'flow', 'process_instances_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.element_instances ON CLUSTER 'main' AS flow.element_instances_local
ENGINE = Distributed('main', 'flow', 'element_instances_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.jobs ON CLUSTER 'main' AS flow.jobs_local
ENGINE = Distributed('main', 'flow', 'jobs_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.incidents ON CLUSTER 'main' AS flow.incidents_local
ENGINE = Distributed('main', 'flow', 'incidents_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.variables ON CLUSTER 'main' AS flow.variables_local
ENGINE = Distributed('main', 'flow', 'variables_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.user_tasks ON CLUSTER 'main' AS flow.user_tasks_local
ENGINE = Distributed('main', 'flow', 'user_tasks_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.waits ON CLUSTER 'main' AS flow.waits_local
ENGINE = Distributed('main', 'flow', 'waits_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE TABLE flow.process_definitions ON CLUSTER 'main' AS flow.process_definitions_local
ENGINE = Distributed('main', 'flow', 'process_definitions_local', cityHash64(source, '') % 2);

CREATE OR REPLACE TABLE flow.decisions ON CLUSTER 'main' AS flow.decisions_local
ENGINE = Distributed('main', 'flow', 'decisions_local', cityHash64(source, process_instance_key) % 2);

CREATE OR REPLACE VIEW flow.v_jobs ON CLUSTER 'main' AS
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
    FROM flow.jobs AS p
    GROUP BY source, process_instance_key, key
) AS j;

CREATE TABLE IF NOT EXISTS flow.instances_local ON CLUSTER 'main'
(
    source                      LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key        String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    bpmn_process_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    processes                   SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1)), -- every bpmnProcessId of its events: more than one when it was moved to another process
    tenant_id                   SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    version                     SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- version of the process, or processDefinitionVersion; what it is after a migration stands in migrated
    process_definition_key      SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- processDefinitionKey; likewise
    began                       SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- process, version and definition of its first event (ELEMENT_ACTIVATING of the PROCESS), tab between; empty until that is here
    migrated                    SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and definition of the last ELEMENT_MIGRATED of the PROCESS, tab between; empty when there was none
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentProcessInstanceKey: the instance that called it; -1 when none did
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentElementInstanceKey: the call activity in that; -1
    state                       SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 0 only jobs or incidents seen, 1 events of its elements, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED of the PROCESS
    started_at                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATED of the PROCESS
    completed_at                SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_COMPLETED of the PROCESS
    terminated_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),                       -- ELEMENT_TERMINATED of the PROCESS
    first_seen                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- first event of its elements, jobs and incidents
    last_seen                   SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- last event of these
    incident_keys               SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT CREATED
    resolved_incident_keys      SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT RESOLVED
    job_failures                SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- one number for each JOB FAILED: its position, or a hash of its identity
    INDEX ix_started started_at TYPE minmax GRANULARITY 1
)
ENGINE = ReplicatedAggregatingMergeTree('/clickhouse/tables/{shard}/flow/instances', '{replica}')
PRIMARY KEY (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247))
ORDER BY    (source, bitAnd(toInt64OrZero(process_instance_key), 2251799813685247), process_instance_key)
SETTINGS replicated_deduplication_window = 100000, replicated_deduplication_window_seconds = 604800, fsync_after_insert = 1, fsync_part_directory = 1, merge_selector_base = 10, min_level_for_wide_part = 1, min_parts_to_merge_at_once = 10, auto_statistics_types = '';

CREATE OR REPLACE TABLE flow.instances ON CLUSTER 'main' AS flow.instances_local
ENGINE = Distributed('main', 'flow', 'instances_local', cityHash64(source, process_instance_key) % 2);

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.instances_mv ON CLUSTER 'main' TO flow.instances_local AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
SELECT r.source AS source, r.process_instance_key AS process_instance_key,
    max(r.bpmn_process_id) AS bpmn_process_id, groupUniqArray(toString(r.bpmn_process_id)) AS processes,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.process_definition_key) AS process_definition_key,
    max(if(of_process AND r.intent = 'ELEMENT_ACTIVATING', definition, '')) AS began,
    max(if(of_process AND r.intent = 'ELEMENT_MIGRATED', concat(concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0')), '\t', definition), '')) AS migrated,
    max(r.parent_process_instance_key) AS parent_process_instance_key,
    max(r.parent_element_instance_key) AS parent_element_instance_key,
    max(multiIf(of_process AND r.intent = 'ELEMENT_TERMINATED', 4, of_process AND r.intent = 'ELEMENT_COMPLETED', 3, of_element, 1, 0)) AS state,
    min(if(of_process AND r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS started_at,
    max(if(of_process AND r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(of_process AND r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    min(at) AS first_seen, max(at) AS last_seen,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.value_type = 'JOB' AND r.intent = 'FAILED') AS job_failures
FROM flow.records_local AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT') AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, process_instance_key;

INSERT INTO flow.instances_local (source, process_instance_key, bpmn_process_id, processes, tenant_id, version, process_definition_key, began, migrated,
    parent_process_instance_key, parent_element_instance_key, state, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, job_failures)
SELECT source, process_instance_key, bpmn_process_id, [toString(bpmn_process_id)], tenant_id, version, process_definition_key, began, migrated,
    parent_process_instance_key, parent_element_instance_key, state, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, job_failures
FROM flow.process_instances_local
SETTINGS min_insert_block_size_rows = 200000;

CREATE OR REPLACE VIEW flow.v_process_instances ON CLUSTER 'main' AS
WITH splitByChar('\t', i.migrated) AS now, splitByChar('\t', i.began) AS first
SELECT source, process_instance_key, tenant_id,
    if(i.migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id, -- what it belongs to
    if(i.migrated = '', i.version, toInt64OrNull(now[3])) AS version,
    if(i.migrated = '', i.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
    if(i.began = '', i.bpmn_process_id, first[1]) AS first_bpmn_process_id, -- what it began with
    if(i.began = '', i.version, toInt64OrNull(first[2])) AS first_version,
    if(i.began = '', i.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    arraySort(i.processes) AS processes, started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM flow.instances AS i FINAL
WHERE i.state > 0;

CREATE OR REPLACE VIEW flow.v_element_instances ON CLUSTER 'main' AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    WITH splitByChar('\t', o.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM flow.element_instances AS o FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.instances WHERE length(processes) > 1 OR migrated != '' AND began = '' OR processes = [''])
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM
    (
        SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
            min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            max(p.migrated) AS migrated
        FROM flow.element_instances AS p
        WHERE (p.source, p.bpmn_process_id, p.process_instance_key) GLOBAL IN
            (
                SELECT source, arrayJoin(processes), process_instance_key FROM flow.instances
                WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.instances WHERE length(processes) > 1 OR migrated != '' AND began = '' OR processes = [''])
            )
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

DROP VIEW IF EXISTS flow.process_instances_mv ON CLUSTER 'main';

CREATE OR REPLACE TABLE flow.process_instances_local ON CLUSTER 'main'
(
    source                      LowCardinality(String),
    bpmn_process_id             SimpleAggregateFunction(max, LowCardinality(String)),
    process_instance_key        String,
    tenant_id                   SimpleAggregateFunction(max, LowCardinality(String)),
    version                     SimpleAggregateFunction(max, Nullable(Int64)),
    process_definition_key      SimpleAggregateFunction(max, Nullable(Int64)),
    began                       SimpleAggregateFunction(max, String),
    migrated                    SimpleAggregateFunction(max, String),
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)),
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)),
    state                       SimpleAggregateFunction(max, UInt8),
    started_at                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))),
    completed_at                SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    terminated_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    first_seen                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))),
    last_seen                   SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    incident_keys               SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)),
    resolved_incident_keys      SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)),
    job_failures                SimpleAggregateFunction(groupUniqArrayArray, Array(Int64))
)
ENGINE = Merge('flow', '^instances_local$');

ALTER TABLE flow.records_local ON CLUSTER 'main'
    ADD COLUMN IF NOT EXISTS root_process_instance_key Nullable(Int64) CODEC(ZSTD(1)) AFTER parent_element_instance_key
    SETTINGS alter_sync = 2;

ALTER TABLE flow.records ON CLUSTER 'main'
    ADD COLUMN IF NOT EXISTS root_process_instance_key Nullable(Int64) AFTER parent_element_instance_key;

CREATE OR REPLACE VIEW flow.v_records ON CLUSTER 'main' AS
SELECT source, id, key, record_type, value_type, intent, ts, partition_id, position, source_record_position,
    record_version, broker_version, rejection_type, rejection_reason, operation_reference,
    tenant_id, bpmn_process_id, process_definition_key, version,
    process_instance_key, parent_process_instance_key, parent_element_instance_key,
    ifNull(r.root_process_instance_key, JSONExtract(r.extra, 'rootProcessInstanceKey', 'Nullable(Int64)')) AS root_process_instance_key,
    element_id, element_instance_key, flow_scope_key, scope_key, bpmn_element_type, bpmn_event_type,
    job_type, job_kind, job_key, worker, retries, deadline, deadline_at, error_type, error_code, error_message,
    variables, custom_headers, extra, received_at, lane, incarnation, stream_seq, stream_idx
FROM flow.records AS r FINAL;

ALTER TABLE flow.jobs_local ON CLUSTER 'main'
    ADD COLUMN IF NOT EXISTS activated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)) AFTER created_at, -- the last ACTIVATED of JOB_BATCH
    ADD COLUMN IF NOT EXISTS last_state SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER outcome, -- order, intent, worker, and ms to the deadline or -1, tab between, of the last event but CREATED, RETRIES_UPDATED and MIGRATED; ~ of COMPLETED and CANCELED, which is greater than all others
    ADD COLUMN IF NOT EXISTS retried SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER min_retries, -- order and retries, tab between, of the last event but CREATED, ACTIVATED, COMPLETED and CANCELED; empty when there was none
    ADD COLUMN IF NOT EXISTS migrated SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) AFTER retried, -- order, process, version and element of the last MIGRATED, tab between; empty when there was none
    ADD COLUMN IF NOT EXISTS failed SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER migrated, -- one number for each FAILED: its position, or a hash of its identity
    ADD COLUMN IF NOT EXISTS timed_out SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER failed, -- likewise for each TIMED_OUT
    ADD COLUMN IF NOT EXISTS errors_thrown SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)) AFTER timed_out, -- likewise for each ERROR_THROWN
    COMMENT COLUMN steps 'until migration 0023 a text for each event but CREATED, COMPLETED and CANCELED; nothing reads or fills it since'
    SETTINGS alter_sync = 2;

CREATE OR REPLACE TABLE flow.jobs ON CLUSTER 'main' AS flow.jobs_local
ENGINE = Distributed('main', 'flow', 'jobs_local', cityHash64(source, process_instance_key) % 2);

CREATE MATERIALIZED VIEW IF NOT EXISTS flow.job_events_mv ON CLUSTER 'main' TO flow.jobs_local AS
WITH
    r.value_type = 'JOB' AS of_job,
    if(of_job, r.key, job.1) AS job_key, if(of_job, r.process_instance_key, job.2.1) AS instance,
    if(of_job, r.retries, job.2.2) AS retries, if(of_job, r.deadline, job.2.3) AS deadline,
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    multiIf(r.intent = 'COMPLETED', 2, r.intent = 'CANCELED', 1, 0) AS ended,
    if(ended > 0 OR r.intent = 'CREATED', '', concat(leftPad(toString(toUnixTimestamp64Milli(r.ts)), 15, '0'), leftPad(toString(greatest(r.position, 0)), 20, '0'))) AS order_between
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
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.intent = 'FAILED') AS failed,
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.intent = 'TIMED_OUT') AS timed_out,
    groupUniqArrayIf(if(r.identity = '', r.position, reinterpretAsInt64(cityHash64(r.identity))), r.intent = 'ERROR_THROWN') AS errors_thrown
FROM
(
    SELECT source, process_instance_key, key, retries, deadline, tenant_id, bpmn_process_id, version, element_id, element_instance_key,
        job_type, value_type, intent, ts, position, identity, worker,
        JSONExtract(if(value_type = 'JOB', '', extra), 'Tuple(jobKeys Array(Int64), jobs Array(Tuple(processInstanceKey String, retries Nullable(Int64), deadline Nullable(Int64))))') AS batch,
        arrayZip(batch.1, arrayResize(batch.2, length(batch.1))) AS jobs
    FROM flow.records_local
    WHERE record_type = 'EVENT' AND (value_type = 'JOB' OR value_type = 'JOB_BATCH' AND intent = 'ACTIVATED')
) AS r
LEFT ARRAY JOIN r.jobs AS job
WHERE job_key > 0 AND (of_job OR instance NOT IN ('', '-1', '0'))
GROUP BY source, process_instance_key, key;

INSERT INTO flow.jobs_local (source, process_instance_key, key, activated_at, last_state, retried, migrated, failed, timed_out, errors_thrown)
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
FROM flow.jobs_local
WHERE notEmpty(steps)
SETTINGS min_insert_block_size_rows = 200000;

CREATE OR REPLACE VIEW flow.v_jobs ON CLUSTER 'main' AS
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
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.element_distance) AS element_distance, max(p.job_type) AS job_type,
        min(p.created_at) AS created_at, max(p.activated_at) AS activated_at, max(p.ended_at) AS ended_at, max(p.outcome) AS outcome, max(p.last_state) AS last_state,
        max(p.worker) AS worker, max(p.late_ms) AS late_ms, min(p.min_retries) AS min_retries, max(p.retried) AS retried, max(p.migrated) AS migrated,
        groupUniqArrayArray(p.failed) AS failed, groupUniqArrayArray(p.timed_out) AS timed_out, groupUniqArrayArray(p.errors_thrown) AS errors_thrown
    FROM flow.jobs AS p
    GROUP BY source, process_instance_key, key
) AS j;

DROP VIEW IF EXISTS flow.jobs_mv ON CLUSTER 'main';
