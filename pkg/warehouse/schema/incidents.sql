-- Incidents, one row each.
TABLE incidents
source process_instance_key key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
element_id max(Text) -- elementId; likewise
element_instance_key
job_key max(Int64?) -- jobKey; -1 when it is about no job
error_type error_message
state max(UInt8) = if(r.intent = 'RESOLVED', 2, 1) -- 1 CREATED or MIGRATED, 2 RESOLVED
created_at min(Time?) = if(r.intent = 'CREATED', at, NULL) -- UTC (CREATED)
resolved_at max(Time?) = if(r.intent = 'RESOLVED', at, NULL) -- UTC (RESOLVED: by an operator, or by the end of its element)
migrated max(String) = {{.Last "MIGRATED" "bpmn_process_id" "element_id"}}
INDEX ix_created created_at TYPE minmax GRANULARITY 1
WITH {{.At}} AS at
FEED flow.records AS r
    WHERE r.value_type = 'INCIDENT' AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each incident.
VIEW v_incidents
source process_instance_key
key Int64 -- incident (key)
tenant_id
bpmn_process_id = if(migrated = '', i.bpmn_process_id, now[2])
element_id = if(migrated = '', i.element_id, now[3])
process_name element_name
element_instance_key
job_key Int64? = nullIf(i.job_key, -1) -- job it is about (jobKey); NULL when about none
error_type error_message created_at resolved_at
open UInt8 = state < 2 -- 1 until it is resolved
resolution_ms Int64? = dateDiff('millisecond', created_at, resolved_at) -- ms from created_at to resolved_at; NULL while open
WITH splitByChar('\t', migrated) AS now
FROM flow.incidents AS i FINAL
