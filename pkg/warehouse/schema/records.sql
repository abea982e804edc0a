-- Every record, one row each.
--
-- Identity. Rows whose sorting keys are equal are the same record, and no others are
-- (docs/identity.md), so a merge removes only true duplicates. A record with a position
-- is identified by source, partition and position, and its identity is empty; one with
-- only an id by the hash of its content; one with neither by its place in the stream.
--
-- The primary key ends before ts: with ts in it, a filter on ts binds to that column
-- instead of toDate(ts), and no granule is skipped. Integers are Int64 so that
-- every number a client may send is stored unchanged. Retention is 400 days after the UTC
-- day of stored_at: by ts, a backfill would expire at its first merge.
--
-- The codecs are measured on sorted rows (docs/decisions/0014). Keys and positions grow
-- with time, as instances do, so minmax indexes skip most granules at none of the 10 bits
-- a row that a bloom filter takes.
TABLE records
source
own_id String -- empty where it follows from partition and position
id String = if(own_id = '', concat(toString(partition_id), '-', toString(position)), own_id)
identity String -- empty, 8 bytes of hash, or lane.incarnation.sequence.index
key Int64 CODEC(Delta(8), ZSTD(1))
record_type value_type intent
ts Time CODEC(Delta(8), ZSTD(3))
partition_id Int64 CODEC(ZSTD(3))
position Int64 CODEC(Delta(8), ZSTD(1))
source_record_offset Int64? -- sourceRecordPosition - position
source_record_position Int64? = position + source_record_offset
record_version Int64? CODEC(ZSTD(3))
broker_version rejection_type rejection_reason operation_reference tenant_id
bpmn_process_id Text -- as the record says (bpmnProcessId)
process_definition_key
version Int64? CODEC(ZSTD(3)) -- as the record says (version, or processDefinitionVersion)
process_instance_key String CODEC(ZSTD(3)) -- text by contract; Zeebe sends an int64
parent_process_instance_key Int64? -- instance that called it (parentProcessInstanceKey)
parent_element_instance_key
root_process_instance_key Int64? -- instance at the root of all calls, itself when nothing called it; sent since Camunda 8.9, -1 for what began before (rootProcessInstanceKey)
business_key String -- business id of the instance; sent since Camunda 8.9 (businessId)
element_id Text -- as the record says (elementId)
element_instance_key Int64? CODEC(Delta(8), ZSTD(1))
flow_scope_key Int64? CODEC(Delta(8), ZSTD(1))
scope_key Int64? CODEC(Delta(8), ZSTD(1)) -- element instance that a variable belongs to (scopeKey)
bpmn_element_type bpmn_event_type job_type job_kind
job_key Int64? CODEC(Delta(8), ZSTD(1)) -- job that an incident is about (jobKey)
worker
retries Int64? CODEC(ZSTD(3))
deadline Int64? -- ms since 1970; -1 is "not set"
deadline_at Time? = if(deadline > 0, fromUnixTimestamp64Milli(assumeNotNull(deadline), 'UTC'), NULL) -- deadline, UTC; NULL when not set
error_type error_code error_message
variables String CODEC(ZSTD(3)) -- JSON
custom_headers Text -- JSON, static per element
extra String -- JSON of every other member
received_at
stored_at Time CODEC(Delta(8), ZSTD(1))
lane UInt16 -- lane of the stream it came in by
incarnation UInt64 -- incarnation of the lane, ms since 1970
stream_seq UInt64 CODEC(Delta(8), T64('bit'), ZSTD(1)) -- of the message, in its lane
stream_idx UInt32 CODEC(T64, ZSTD(1)) -- of the record, in its message
INDEX ix_pik process_instance_key TYPE bloom_filter(0.01) GRANULARITY 1
INDEX ix_key key                  TYPE minmax GRANULARITY 1
INDEX ix_pos position             TYPE minmax GRANULARITY 1
INDEX ix_own own_id               TYPE bloom_filter(0.01) GRANULARITY 1
INDEX ix_err error_message        TYPE {{.TextIndex}}
ENGINE ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
PRIMARY KEY toDate(ts), value_type, bpmn_process_id, process_instance_key
ORDER BY toDate(ts), value_type, bpmn_process_id, process_instance_key,
    ts, source, partition_id, position, key, record_type, intent, own_id, identity
TTL toStartOfDay(stored_at) + INTERVAL 401 DAY DELETE
SETTINGS ttl_only_drop_parts = 1

-- One row for each stored record, without duplicates. All other tables are computed from it.
VIEW v_records
source id key record_type value_type intent ts partition_id position source_record_position record_version broker_version rejection_type rejection_reason operation_reference tenant_id
bpmn_process_id Text -- as the record says (bpmnProcessId)
process_definition_key
version Int64? -- as the record says (version, or processDefinitionVersion)
process_instance_key
parent_process_instance_key String = ifNull(toString(r.parent_process_instance_key), '') -- instance that called it, as the record says (parentProcessInstanceKey), text as process_instance_key; -1 when none did
parent_element_instance_key
root_process_instance_key String = ifNull(toString(r.root_process_instance_key), '') -- instance at the root of all calls, itself when nothing called it (rootProcessInstanceKey); sent since Camunda 8.9, -1 for what began before
business_key String -- business id of the instance; sent since Camunda 8.9 (businessId)
element_id Text -- as the record says (elementId)
element_instance_key flow_scope_key
scope_key Int64? -- element instance that a variable belongs to (scopeKey)
bpmn_element_type bpmn_event_type job_type job_kind
job_key Int64? -- job that an incident is about (jobKey)
worker retries deadline
deadline_at Time? -- deadline, UTC; NULL when not set
error_type error_code error_message variables custom_headers extra process_name element_name received_at stored_at
lane UInt16 -- lane of the stream it came in by
incarnation UInt64 -- incarnation of the lane, ms since 1970
stream_seq UInt64 -- message in that lane
stream_idx UInt32 -- record in that message
FROM flow.records AS r FINAL

-- Begin and end of every element, with the column names of XES (IEEE 1849).
VIEW v_event_log
source
"case:concept:name" String = process_instance_key -- process instance
"concept:name" Text = element_id -- element
"bpmn:name" String = transform(concat(source, '\t', bpmn_process_id, '\t', element_id), named.1, named.2, '') -- its name in the BPMN of the latest version
"time:timestamp" Time = ts -- UTC
"lifecycle:transition" Text = transform(intent, ['ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED'], ['start', 'complete', 'ate_abort'], '') -- start, complete or ate_abort
"bpmn:type" Text = bpmn_element_type -- bpmnElementType
"case:process" Text = bpmn_process_id -- bpmnProcessId, as the record says
"case:version" Int64? = version -- version, as the record says
"case:tenant" Text = tenant_id -- tenantId
"concept:instance" String = toString(key) -- element instance
position
FROM flow.records FINAL
    WHERE value_type = 'PROCESS_INSTANCE' AND record_type = 'EVENT'
    AND intent IN ('ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED') AND bpmn_element_type != 'PROCESS'
