-- User tasks of the engine, one row each. User tasks implemented by job workers
-- are jobs.
TABLE user_tasks
source process_instance_key key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
version max(Int64?) -- processDefinitionVersion; likewise
element_id max(Text) -- elementId; likewise
element_distance max(Int64?) = r.key - r.element_instance_key -- key - elementInstanceKey, which is small
assigned max(String) = if(r.intent IN ('CREATED', 'ASSIGNED', 'UPDATED'), concat({{.Order}}, '\t', assignee), '') -- order and assignee of the last CREATED, ASSIGNED or UPDATED, tab between
offered max(String) = if(r.intent IN ('CREATED', 'UPDATED'), concat({{.Order}}, '\t', JSONExtractString(r.extra, 'dueDate'), '\t', JSONExtractRaw(r.extra, 'candidateGroupsList')), '') -- order, dueDate and candidateGroupsList of the last CREATED or UPDATED, tab between
state max(UInt8) = multiIf(r.intent = 'COMPLETED', 3, r.intent = 'CANCELED', 2, 1) -- 1 any event seen, 2 CANCELED, 3 COMPLETED
created_at min(Time?) = if(r.intent = 'CREATED', at, NULL) -- UTC (CREATED)
assigned_at max(Time?) = if(r.intent IN ('CREATED', 'ASSIGNED') AND assignee != '', at, NULL) -- UTC, when a person got it last: at its creation (CREATED), or later (ASSIGNED); NULL when none ever has
ended_at max(Time?) = if(r.intent IN ('COMPLETED', 'CANCELED'), at, NULL) -- COMPLETED or CANCELED
migrated max(String) = {{.Last "MIGRATED" "bpmn_process_id" "version" "element_id"}}
INDEX ix_created created_at TYPE minmax GRANULARITY 1
WITH
    {{.At}} AS at,
    if(r.intent IN ('CREATED', 'ASSIGNED', 'UPDATED'), JSONExtractString(r.extra, 'assignee'), '') AS assignee
FEED flow.records AS r
    WHERE r.value_type = 'USER_TASK' AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each user task of the engine. User tasks implemented by job workers are jobs.
VIEW v_user_tasks
source process_instance_key
key Int64 -- user task (key, userTaskKey)
tenant_id
bpmn_process_id = if(migrated = '', u.bpmn_process_id, now[2])
version = if(migrated = '', u.version, toInt64OrNull(now[3]))
element_id = if(migrated = '', u.element_id, now[4])
process_name element_name
element_instance_key = key - element_distance
assignee String = substring(assigned, 37) -- who has it, or had it at its end (assignee); empty when nobody has, also after an unassignment
candidate_groups Array(String) = JSONExtract(offer[3], 'Array(String)') -- groups it is offered to (candidateGroupsList)
due_at Time? = parseDateTime64BestEffortOrNull(offer[2], 3, 'UTC') -- UTC (dueDate)
state String = transform(u.state, [2, 3], ['CANCELED', 'COMPLETED'], 'CREATED') -- CREATED, COMPLETED, CANCELED
created_at assigned_at
completed_at Time? = if(u.state = 3, ended_at, NULL) -- UTC (COMPLETED)
canceled_at Time? = if(u.state = 2, ended_at, NULL) -- UTC (CANCELED)
waiting_ms Int64? = dateDiff('millisecond', created_at, assigned_at) -- ms from created_at to assigned_at
handling_ms Int64? = dateDiff('millisecond', assigned_at, if(u.state = 3, ended_at, NULL)) -- ms from assigned_at to completed_at; NULL unless completed
duration_ms Int64? = dateDiff('millisecond', created_at, if(u.state = 3, ended_at, NULL)) -- ms from created_at to completed_at; NULL unless completed
WITH splitByChar('\t', migrated) AS now, splitByChar('\t', offered) AS offer
FROM flow.user_tasks AS u FINAL
