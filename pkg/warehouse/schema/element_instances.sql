-- Element instances, one row each; a process is one too, with the key of its
-- instance. A multi-instance body has the type MULTI_INSTANCE_BODY, and is the
-- flow scope of its children, which have its element_id and the type of the
-- activity. An element that is entered and not activated is stuck, usually with
-- an incident.
TABLE element_instances
source
process_instance_key key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
version max(Int64?) -- version of the process; what it is after a migration is in migrated
element_id max(Text) -- elementId; likewise
bpmn_element_type flow_scope_key
state max(UInt8) = multiIf(r.intent = 'ELEMENT_TERMINATED', 4, r.intent = 'ELEMENT_COMPLETED', 3, r.intent = 'ELEMENT_ACTIVATED', 2, r.intent = 'ELEMENT_ACTIVATING', 1, 0) -- 0 ELEMENT_MIGRATED alone seen, 1 ELEMENT_ACTIVATING, 2 ELEMENT_ACTIVATED, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED
entered_at min(Time?) = if(r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED'), at, NULL) -- UTC (ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing)
activated_at min(Time?) = if(r.intent = 'ELEMENT_ACTIVATED', at, NULL) -- UTC (ELEMENT_ACTIVATED)
completed_at max(Time?) = if(r.intent = 'ELEMENT_COMPLETED', at, NULL) -- UTC (ELEMENT_COMPLETED)
terminated_at max(Time?) = if(r.intent = 'ELEMENT_TERMINATED', at, NULL) -- UTC (ELEMENT_TERMINATED)
migrated max(String) = {{.Last "ELEMENT_MIGRATED" "bpmn_process_id" "version" "element_id"}}
INDEX ix_entered entered_at TYPE minmax GRANULARITY 1
WITH {{.At}} AS at
FEED flow.records AS r
    WHERE r.value_type = 'PROCESS_INSTANCE' AND r.record_type = 'EVENT' AND r.key > 0
    AND r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED', 'ELEMENT_MIGRATED')

-- One row for each element instance; a process is one too. A multi-instance body is one, with the type MULTI_INSTANCE_BODY, and is the flow scope of its iterations.
VIEW v_element_instances
source process_instance_key
key Int64 -- element instance (key, elementInstanceKey in other records)
tenant_id
bpmn_process_id = if(e.migrated = '', e.bpmn_process_id, now[2])
process_name
version = if(e.migrated = '', e.version, toInt64OrNull(now[3]))
element_id = if(e.migrated = '', e.element_id, now[4])
element_name bpmn_element_type
flow_scope_key = nullIf(e.flow_scope_key, -1)
entered_at activated_at completed_at terminated_at
state String = multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') -- ACTIVATING (entered, and stuck there when it stays so), ACTIVE, COMPLETED, TERMINATED
duration_ms Int64? = dateDiff('millisecond', coalesce(activated_at, entered_at), coalesce(completed_at, terminated_at)) -- ms from activated_at, or from entered_at when it was never activated, to its end: completed_at or terminated_at; NULL before that
WITH splitByChar('\t', e.migrated) AS now
FROM flow.element_instances AS e FINAL

-- The element instances of v_element_instances that are active now. A query costs far less than on v_element_instances.
--- Such an element has a row with a state below 3; so have the few ended ones that are not merged yet. Only rows of these keys
--- are merged.
VIEW v_active_elements
source process_instance_key
key Int64 -- element instance (key, elementInstanceKey in other records)
tenant_id
bpmn_process_id = if(a.migrated = '', a.bpmn_process_id, now[2])
version = if(a.migrated = '', a.version, toInt64OrNull(now[3]))
element_id = if(a.migrated = '', a.element_id, now[4])
process_name element_name
bpmn_element_type
flow_scope_key = nullIf(a.flow_scope_key, -1)
entered_at activated_at
state String = if(a.state = 1, 'ACTIVATING', 'ACTIVE') -- ACTIVATING (entered, and stuck there when it stays so), ACTIVE
WITH splitByChar('\t', a.migrated) AS now
FROM {{merged "element_instances AS a" "p.key GLOBAL IN (SELECT key FROM flow.element_instances WHERE state < 3)"}}
    WHERE a.state < 3
