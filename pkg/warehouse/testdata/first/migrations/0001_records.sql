-- Every record, one row each.
--
-- Identity. Rows whose sorting keys are equal are the same record, and nothing
-- else is (docs/identity.md): a merge can only remove true repeats. A record
-- with a position is known by source, partition and position, and its identity
-- is empty; one with only an id by the hash of all it says; one with neither by
-- the place it came in at.
--
-- The primary key stops before ts: with ts in it a filter on ts binds to that
-- column, of which toDate(ts) is no prefix, and no granule is skipped. Integers
-- are Int64 so that every number a client may send is stored as it was sent.
-- The retention counts from received_at: by ts, a back-fill would vanish at its
-- first merge.
--
-- The codecs are measured on sorted rows (docs/decisions/0037). Keys and
-- positions grow with time, as instances do, so the least and the greatest of a
-- granule let most of them be passed over, for none of the 10 bits a row that a
-- bloom filter takes.
CREATE TABLE IF NOT EXISTS {{.Table "records"}}{{.OnCluster}}
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
    INDEX ix_err error_message        TYPE {{.TextIndex}}
)
ENGINE = {{.Engine "ReplacingMergeTree" "records"}}
PARTITION BY toYYYYMM(ts)
PRIMARY KEY (toDate(ts), value_type, bpmn_process_id, process_instance_key)
ORDER BY    (toDate(ts), value_type, bpmn_process_id, process_instance_key,
             ts, source, partition_id, position, key, record_type, intent, own_id, identity)
TTL toDateTime(received_at) + INTERVAL 400 DAY DELETE
SETTINGS {{.TableSettings}}, ttl_only_drop_parts = 1;
{{.Distributed "records" "cityHash64(source, process_instance_key)"}}

-- What people query: one row for each record, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_records{{.OnCluster}} AS
SELECT source, id, key, record_type, value_type, intent, ts, partition_id, position, source_record_position,
    record_version, broker_version, rejection_type, rejection_reason, operation_reference,
    tenant_id, bpmn_process_id, process_definition_key, version,
    process_instance_key, parent_process_instance_key, parent_element_instance_key,
    element_id, element_instance_key, flow_scope_key, scope_key, bpmn_element_type, bpmn_event_type,
    job_type, job_kind, job_key, worker, retries, deadline, deadline_at, error_type, error_code, error_message,
    variables, custom_headers, extra, received_at, lane, incarnation, stream_seq, stream_idx
FROM {{.Database}}.records FINAL;

-- An event log with the column names of XES.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_event_log{{.OnCluster}} AS
SELECT source, process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", tenant_id AS "case:tenant",
    toString(key) AS "concept:instance", position
FROM {{.Database}}.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';
