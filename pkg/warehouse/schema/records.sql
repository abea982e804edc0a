-- Every record, one row each.
--
-- Identity. Rows whose sorting keys are equal are the same record, and no others are
-- (docs/identity.md), so a merge removes only true duplicates. A record with a position
-- is identified by source, partition and position, and its identity is empty; one with
-- only an id by the hash of its content; one with neither by its place in the stream.
--
-- The primary key ends before ts: with ts in it, a filter on ts binds to that column, of
-- which toDate(ts) is no prefix, and no granule is skipped. Integers are Int64 so that
-- every number a client may send is stored as it was sent. Retention is 400 days behind the
-- UTC day of stored_at: by ts, a back-fill would vanish at its first merge.
--
-- The codecs are measured on sorted rows (docs/decisions/0037). Keys and positions grow
-- with time, as instances do, so minmax indexes skip most granules at none of the 10 bits
-- a row that a bloom filter takes.
{{.CreateTable "records"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    own_id String COMMENT 'empty where it follows from partition and position' CODEC(ZSTD(1)),
    id String ALIAS if(own_id = '', concat(toString(partition_id), '-', toString(position)), own_id) {{about "id"}},
    identity String COMMENT 'empty, 8 bytes of hash, or lane.incarnation.sequence.index' CODEC(ZSTD(1)),
    key Int64 {{about "key"}} CODEC(Delta(8), ZSTD(1)),
    record_type LowCardinality(String) {{about "record_type"}} CODEC(ZSTD(1)),
    value_type LowCardinality(String) {{about "value_type"}} CODEC(ZSTD(1)),
    intent LowCardinality(String) {{about "intent"}} CODEC(ZSTD(1)),
    ts DateTime64(3, 'UTC') {{about "ts"}} CODEC(Delta(8), ZSTD(3)),
    partition_id Int64 {{about "partition_id"}} CODEC(ZSTD(3)),
    position Int64 {{about "position"}} CODEC(Delta(8), ZSTD(1)),
    source_record_offset Nullable(Int64) COMMENT 'sourceRecordPosition - position' CODEC(ZSTD(1)),
    source_record_position Nullable(Int64) ALIAS position + source_record_offset {{about "source_record_position"}},
    record_version Nullable(Int64) {{about "record_version"}} CODEC(ZSTD(3)),
    broker_version LowCardinality(String) {{about "broker_version"}} CODEC(ZSTD(1)),
    rejection_type LowCardinality(String) {{about "rejection_type"}} CODEC(ZSTD(1)),
    rejection_reason String {{about "rejection_reason"}} CODEC(ZSTD(1)),
    operation_reference Nullable(Int64) {{about "operation_reference"}} CODEC(ZSTD(1)),
    tenant_id LowCardinality(String) {{about "tenant_id"}} CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) COMMENT 'as the record says (bpmnProcessId)' CODEC(ZSTD(1)),
    process_definition_key Nullable(Int64) {{about "process_definition_key"}} CODEC(ZSTD(1)),
    version Nullable(Int64) COMMENT 'as the record says (version, or processDefinitionVersion)' CODEC(ZSTD(3)),
    process_instance_key String COMMENT 'text by contract; Zeebe sends an int64' CODEC(ZSTD(3)),
    parent_process_instance_key Nullable(Int64) COMMENT 'instance that called it (parentProcessInstanceKey)' CODEC(ZSTD(1)),
    parent_element_instance_key Nullable(Int64) {{about "parent_element_instance_key"}} CODEC(ZSTD(1)),
    root_process_instance_key Nullable(Int64) COMMENT 'instance at the root of all calls, itself when nothing called it; sent since Camunda 8.9, -1 for what began before (rootProcessInstanceKey)' CODEC(ZSTD(1)),
    business_key String COMMENT 'business id of the instance; sent since Camunda 8.9 (businessId)' CODEC(ZSTD(1)),
    element_id LowCardinality(String) COMMENT 'as the record says (elementId)' CODEC(ZSTD(1)),
    element_instance_key Nullable(Int64) {{about "element_instance_key"}} CODEC(Delta(8), ZSTD(1)),
    flow_scope_key Nullable(Int64) {{about "flow_scope_key"}} CODEC(Delta(8), ZSTD(1)),
    scope_key Nullable(Int64) COMMENT 'element instance that a variable belongs to (scopeKey)' CODEC(Delta(8), ZSTD(1)),
    bpmn_element_type LowCardinality(String) {{about "bpmn_element_type"}} CODEC(ZSTD(1)),
    bpmn_event_type LowCardinality(String) {{about "bpmn_event_type"}} CODEC(ZSTD(1)),
    job_type LowCardinality(String) {{about "job_type"}} CODEC(ZSTD(1)),
    job_kind LowCardinality(String) {{about "job_kind"}} CODEC(ZSTD(1)),
    job_key Nullable(Int64) COMMENT 'job that an incident is about (jobKey)' CODEC(Delta(8), ZSTD(1)),
    worker LowCardinality(String) {{about "worker"}} CODEC(ZSTD(1)),
    retries Nullable(Int64) {{about "retries"}} CODEC(ZSTD(3)),
    deadline Nullable(Int64) COMMENT 'ms since 1970; -1 is "not set"' CODEC(ZSTD(1)),
    deadline_at Nullable(DateTime64(3, 'UTC')) ALIAS if(deadline > 0, fromUnixTimestamp64Milli(assumeNotNull(deadline), 'UTC'), NULL) COMMENT 'deadline, UTC; NULL when not set',
    error_type LowCardinality(String) {{about "error_type"}} CODEC(ZSTD(1)),
    error_code LowCardinality(String) {{about "error_code"}} CODEC(ZSTD(1)),
    error_message String {{about "error_message"}} CODEC(ZSTD(1)),
    variables String COMMENT 'JSON' CODEC(ZSTD(3)),
    custom_headers LowCardinality(String) COMMENT 'JSON, static per element' CODEC(ZSTD(1)),
    extra String COMMENT 'JSON of every other member' CODEC(ZSTD(1)),
    received_at DateTime64(3, 'UTC') {{about "received_at"}} CODEC(Delta(8), T64('bit'), ZSTD(1)),
    stored_at DateTime64(3, 'UTC') {{about "stored_at"}} CODEC(Delta(8), ZSTD(1)),
    lane UInt16 COMMENT 'lane of the stream it came in by' CODEC(ZSTD(1)),
    incarnation UInt64 COMMENT 'incarnation of the lane, ms since 1970' CODEC(ZSTD(1)),
    stream_seq UInt64 COMMENT 'of the message, in its lane' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    stream_idx UInt32 COMMENT 'of the record, in its message' CODEC(T64, ZSTD(1)),
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
TTL toStartOfDay(stored_at) + INTERVAL 401 DAY DELETE
SETTINGS {{.TableSettings}}, ttl_only_drop_parts = 1;
{{.Distributed "records" "cityHash64(source, process_instance_key)"}}

-- One row for each stored record, without duplicates. All else is made of these.
{{.CreateView "v_records"}}
(
    {{columns "source" "id" "key" "record_type" "value_type" "intent" "ts" "partition_id" "position" "source_record_position"}},
    {{columns "record_version" "broker_version" "rejection_type" "rejection_reason" "operation_reference" "tenant_id"}},
    bpmn_process_id LowCardinality(String) COMMENT 'as the record says (bpmnProcessId)',
    {{columns "process_definition_key"}},
    version Nullable(Int64) COMMENT 'as the record says (version, or processDefinitionVersion)',
    {{columns "process_instance_key"}},
    parent_process_instance_key String COMMENT 'instance that called it, as the record says (parentProcessInstanceKey), text as process_instance_key; -1 when none did',
    {{columns "parent_element_instance_key"}},
    root_process_instance_key String COMMENT 'instance at the root of all calls, itself when nothing called it (rootProcessInstanceKey); sent since Camunda 8.9, -1 for what began before',
    business_key String COMMENT 'business id of the instance; sent since Camunda 8.9 (businessId)',
    element_id LowCardinality(String) COMMENT 'as the record says (elementId)',
    {{columns "element_instance_key" "flow_scope_key"}},
    scope_key Nullable(Int64) COMMENT 'element instance that a variable belongs to (scopeKey)',
    {{columns "bpmn_element_type" "bpmn_event_type" "job_type" "job_kind"}},
    job_key Nullable(Int64) COMMENT 'job that an incident is about (jobKey)',
    {{columns "worker" "retries" "deadline"}},
    deadline_at Nullable(DateTime64(3, 'UTC')) COMMENT 'deadline, UTC; NULL when not set',
    {{columns "error_type" "error_code" "error_message" "variables" "custom_headers" "extra" "received_at" "stored_at"}},
    lane UInt16 COMMENT 'lane of the stream it came in by',
    incarnation UInt64 COMMENT 'incarnation of the lane, ms since 1970',
    stream_seq UInt64 COMMENT 'message in that lane',
    stream_idx UInt32 COMMENT 'record in that message'
) AS
SELECT source, id, key, record_type, value_type, intent, ts, partition_id, position, source_record_position,
    record_version, broker_version, rejection_type, rejection_reason, operation_reference,
    tenant_id, bpmn_process_id, process_definition_key, version,
    process_instance_key, ifNull(toString(r.parent_process_instance_key), '') AS parent_process_instance_key, parent_element_instance_key,
    ifNull(toString(r.root_process_instance_key), '') AS root_process_instance_key, business_key,
    element_id, element_instance_key, flow_scope_key, scope_key, bpmn_element_type, bpmn_event_type,
    job_type, job_kind, job_key, worker, retries, deadline, deadline_at, error_type, error_code, error_message,
    variables, custom_headers, extra, received_at, stored_at, lane, incarnation, stream_seq, stream_idx
FROM {{.Database}}.records AS r FINAL;

-- Begin and end of every element, with the column names of XES (IEEE 1849).
{{.CreateView "v_event_log"}}
(
    {{columns "source"}},
    "case:concept:name" String COMMENT 'process instance',
    "concept:name" LowCardinality(String) COMMENT 'element',
    "time:timestamp" DateTime64(3, 'UTC') COMMENT 'UTC',
    "lifecycle:transition" LowCardinality(String) COMMENT 'start, complete or ate_abort',
    "bpmn:type" LowCardinality(String) COMMENT 'bpmnElementType',
    "case:process" LowCardinality(String) COMMENT 'bpmnProcessId, as the record says',
    "case:version" Nullable(Int64) COMMENT 'version, as the record says',
    "case:tenant" LowCardinality(String) COMMENT 'tenantId',
    "concept:instance" String COMMENT 'element instance',
    {{columns "position"}}
) AS
SELECT source, process_instance_key AS "case:concept:name", element_id AS "concept:name", ts AS "time:timestamp",
    transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') AS "lifecycle:transition",
    bpmn_element_type AS "bpmn:type", bpmn_process_id AS "case:process", version AS "case:version", tenant_id AS "case:tenant",
    toString(key) AS "concept:instance", position
FROM {{.Database}}.records FINAL
WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS';
