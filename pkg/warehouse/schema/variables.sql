-- Variables, one row each: a name in one scope. Most never change, so the first value is
-- stored once, and the last change beside it. A VARIABLE MIGRATED record has no value.
TABLE variables
source process_instance_key key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
scope_distance max(Int64?) = r.key - r.scope_key -- key - scopeKey, which is small
name key(Text) = said.1 -- name
created max(String) = if(r.intent = 'CREATED', said.2, '') -- value of CREATED, JSON
created_at min(Time?) = if(r.intent = 'CREATED' AND toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) -- UTC (CREATED)
updated max(String) = if(r.intent = 'UPDATED', concat({{.Order}}, '\t', said.2), '') -- order and value of the last UPDATED, tab between; empty when there was none
updates set(Int64) = groupUniqArrayIf({{.Mark}}, r.intent = 'UPDATED') -- one number for each UPDATED: its position, or a hash of its identity
migrated max(String) = {{.Last "MIGRATED" "bpmn_process_id"}} -- order and process of the last MIGRATED, tab between; empty when there was none
WITH JSONExtract(r.extra, 'Tuple(name String, value String)') AS said
FEED flow.records AS r
    WHERE r.value_type = 'VARIABLE' AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each variable: a name in one scope. Values are JSON: texts are quoted.
VIEW v_variables
source process_instance_key
key Int64 -- variable (key)
tenant_id
bpmn_process_id = if(migrated = '', v.bpmn_process_id, substring(migrated, 37))
process_name
scope_key Int64? = key - scope_distance -- element instance it belongs to; that of the process instance for a variable of the instance (scopeKey)
name
first_value String = created -- JSON it was created with (value of CREATED)
value String = if(updated = '', created, substring(updated, 37)) -- JSON it has now (value of the last CREATED or UPDATED)
created_at
updated_at Time? = multiIf(updated = '', created_at, updated_ms > 0, fromUnixTimestamp64Milli(updated_ms, 'UTC'), NULL) -- UTC, last change; its creation when there was none
changes UInt64 = length(updates) -- number of UPDATED
WITH toInt64OrZero(substring(updated, 1, 15)) AS updated_ms
FROM flow.variables AS v FINAL
