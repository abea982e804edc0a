-- Timers, subscriptions to messages (as recorded by the partition of the instance), and
-- published messages, one row each. They share a table because every materialized view
-- adds a cost to every insert.
--
-- A timer of a start event belongs to no instance: its CREATED names -1, or the instance
-- that the previous timer started, and its TRIGGERED names the instance that it starts.
-- Only its key stays the same.
TABLE waits
source
value_type key(Text) -- TIMER, PROCESS_MESSAGE_SUBSCRIPTION or MESSAGE
process_instance_key key(String) = instance -- processInstanceKey; empty of a message, and of a timer of a start event
key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId, of a subscription; what it is after a migration is in migrated
process_definition_key max(Int64?) -- processDefinitionKey, of a timer; likewise
element_id max(Text) -- elementId or targetElementId; likewise
element_instance_key
name max(Text) = if(said.1 = '', said.2, said.1) -- name or messageName
correlation_key max(String) = said.3 -- correlationKey
due max(Int64?) = if(r.value_type = 'TIMER', said.4, r.deadline) -- dueDate of a timer, deadline of a message: ms since 1970
state max(UInt8) = step -- 1 waiting, 2 TRIGGERED or CORRELATED, 3 CANCELED, DELETED or EXPIRED
created_at min(Time?) = if(r.intent IN ('CREATED', 'CREATING', 'PUBLISHED'), at, NULL) -- UTC (CREATED)
happened_at max(Time?) = if(step = 2, at, NULL) -- last TRIGGERED or CORRELATED
first_at min(Time?) = if(step = 2, at, NULL) -- first TRIGGERED or CORRELATED
happened set(Int64) = groupUniqArrayIf({{.Mark}}, r.intent = 'CORRELATED') -- one number for each CORRELATED: its position, or a hash of its identity
stays max(UInt8) = ifNull(NOT said.5, 0) -- 1 of a subscription that is not interrupting: a message does not end it
started max(String) = if(of_start AND step = 2, r.process_instance_key, '') -- processInstanceKey of TRIGGERED, of a timer of a start event
ended_at max(Time?) = if(step = 3, at, NULL) -- CANCELED, DELETED or EXPIRED
migrated max(String) = {{.Last "MIGRATED" "bpmn_process_id" "process_definition_key" "element_id"}}
INDEX ix_created created_at TYPE minmax GRANULARITY 1
WITH
    {{.At}} AS at,
    JSONExtract(r.extra, 'Tuple(name String, messageName String, correlationKey String, dueDate Nullable(Int64), interrupting Nullable(Bool))') AS said,
    r.value_type = 'TIMER' AND ifNull(r.element_instance_key = -1, 0) AS of_start,
    if(of_start, '', r.process_instance_key) AS instance,
    multiIf(r.intent IN ('CANCELED', 'DELETED', 'EXPIRED'), 3, r.intent IN ('TRIGGERED', 'CORRELATED'), 2, 1) AS step
FEED flow.records AS r
    WHERE r.value_type IN ('TIMER', 'PROCESS_MESSAGE_SUBSCRIPTION', 'MESSAGE') AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each timer. A timer of a start event belongs to no instance: process_instance_key is empty, and started_process_instance_key is the instance that it started.
--- The records of a timer of a start event name several instances and may be on several
--- shards, where FINAL does not merge them.
VIEW v_timers
source
process_instance_key String -- process instance that waits for it (processInstanceKey), text by contract; empty of a start event
key Int64 -- timer (key)
tenant_id
process_definition_key Int64? = if(migrated = '', w.process_definition_key, toInt64OrNull(now[3])) -- definition it belongs to now (processDefinitionKey)
bpmn_process_id = transform(concat(source, '\t', toString(process_definition_key)), definitions.1, definitions.2, '') -- process of that definition, empty where it is not here: records of timers have no bpmnProcessId
element_id String = if(migrated = '', w.element_id, now[4]) -- element that it triggers (targetElementId)
process_name element_name
element_instance_key = nullIf(w.element_instance_key, -1)
state String = transform(w.state, [2, 3], ['TRIGGERED', 'CANCELED'], 'WAITING') -- WAITING, TRIGGERED, CANCELED
due_at Time? = if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) -- UTC (dueDate)
created_at
triggered_at Time? = happened_at -- UTC, last time (TRIGGERED)
canceled_at Time? = ended_at -- UTC (CANCELED)
started_process_instance_key String = started -- process instance that a timer of a start event started (processInstanceKey of TRIGGERED); else empty
WITH splitByChar('\t', migrated) AS now,
    (SELECT (groupArray(concat(source, '\t', toString(key))), groupArray(toString(bpmn_process_id))) FROM flow.process_definitions) AS definitions
FROM {{merged "waits AS w" "value_type = 'TIMER'"}}

-- One row for each subscription of an element to a message, as recorded by the partition of the instance.
VIEW v_message_waits
source process_instance_key
key Int64 -- subscription (key of PROCESS_MESSAGE_SUBSCRIPTION)
tenant_id
bpmn_process_id = if(migrated = '', w.bpmn_process_id, now[2])
element_id = if(migrated = '', w.element_id, now[4])
process_name element_name element_instance_key
message_name Text = name -- messageName
correlation_key
state String = multiIf(w.state = 1 OR w.state = 2 AND stays, 'WAITING', notEmpty(happened), 'CORRELATED', 'DELETED') -- WAITING; CORRELATED: ended, and correlated at least once; DELETED: ended, and never correlated
interrupting UInt8 = NOT stays -- 1 when the first message ends it; 0 of one that waits for more (interrupting)
correlations UInt64 = length(happened) -- number of messages (CORRELATED)
created_at Time? -- UTC (CREATING)
first_correlated_at Time? = first_at -- UTC, first time (CORRELATED)
correlated_at Time? = happened_at -- UTC, last time (CORRELATED)
deleted_at Time? = ended_at -- UTC (DELETED): given up, or closed after its last message
WITH splitByChar('\t', migrated) AS now
FROM flow.waits AS w FINAL
    WHERE value_type = 'PROCESS_MESSAGE_SUBSCRIPTION'

-- One row for each published message.
VIEW v_messages
source
key Int64 -- message (key)
tenant_id
message_name Text = name -- name
correlation_key
state String = if(w.state = 3, 'EXPIRED', 'PUBLISHED') -- PUBLISHED, EXPIRED
published_at Time? = created_at -- UTC (PUBLISHED)
expires_at Time? = if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) -- UTC (deadline)
expired_at Time? = ended_at -- UTC (EXPIRED)
FROM flow.waits AS w FINAL
    WHERE value_type = 'MESSAGE'
