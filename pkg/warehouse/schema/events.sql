-- One row for each subscription of a start event to a message, as each partition has them.
VIEW v_message_starts
source
key Int64 -- subscription (key of MESSAGE_START_EVENT_SUBSCRIPTION)
tenant_id = any(r.tenant_id)
bpmn_process_id = any(r.bpmn_process_id)
process_definition_key = any(r.process_definition_key)
element_id String = any(JSONExtractString(r.extra, 'startEventId')) -- start event (startEventId)
process_name element_name
message_name String = any(JSONExtractString(r.extra, 'messageName')) -- messageName
state String = if(deleted_at IS NULL, 'WAITING', 'DELETED') -- WAITING, DELETED
instances UInt64 = countIf(r.intent = 'CORRELATED') -- number of instances that it started (CORRELATED)
created_at Time? = minIf(toNullable(r.ts), r.intent = 'CREATED') -- UTC (CREATED)
correlated_at Time? = maxIf(toNullable(r.ts), r.intent = 'CORRELATED') -- UTC, last time (CORRELATED)
deleted_at Time? = maxIf(toNullable(r.ts), r.intent = 'DELETED') -- UTC (DELETED)
FROM flow.records AS r FINAL
    WHERE r.value_type = 'MESSAGE_START_EVENT_SUBSCRIPTION' AND r.record_type = 'EVENT'
    GROUP BY source, key

-- One row for each escalation that was thrown.
VIEW v_escalations
source process_instance_key
key Int64 -- escalation (key)
tenant_id
escalation_code String = JSONExtractString(r.extra, 'escalationCode') -- escalationCode
throw_element_id String = JSONExtractString(r.extra, 'throwElementId') -- element that threw it (throwElementId)
catch_element_id String = JSONExtractString(r.extra, 'catchElementId') -- event that caught it (catchElementId); empty when none did
caught UInt8 = notEmpty(catch_element_id) -- 1 when an event caught it (ESCALATED), 0 when none did (NOT_ESCALATED)
thrown_at Time = r.ts -- UTC (ESCALATED or NOT_ESCALATED)
FROM flow.records AS r FINAL
    WHERE r.value_type = 'ESCALATION' AND r.record_type = 'EVENT'

-- One row for each modification of an instance: elements that an operator activated and terminated.
VIEW v_modifications
source process_instance_key tenant_id
activated Array(String) = JSONExtract(r.extra, 'activateInstructions', 'Array(Tuple(elementId String))').elementId -- elements that were to be activated (elementId of activateInstructions)
terminated Array(Int64) = JSONExtract(r.extra, 'terminateInstructions', 'Array(Tuple(elementInstanceKey Int64))').elementInstanceKey -- element instances that were to be terminated (elementInstanceKey of terminateInstructions)
operation_reference
modified_at Time = r.ts -- UTC (MODIFIED)
FROM flow.records AS r FINAL
    WHERE r.value_type = 'PROCESS_INSTANCE_MODIFICATION' AND r.record_type = 'EVENT' AND r.intent = 'MODIFIED'

-- One row for each migration of an instance to another definition.
VIEW v_migrations
source process_instance_key tenant_id
target_process_definition_key Int64? = JSONExtract(r.extra, 'targetProcessDefinitionKey', 'Nullable(Int64)') -- definition that it was moved to (targetProcessDefinitionKey)
source_element_ids Array(String) = JSONExtract(r.extra, 'mappingInstructions', 'Array(Tuple(sourceElementId String))').sourceElementId -- elements before (sourceElementId of mappingInstructions)
target_element_ids Array(String) = JSONExtract(r.extra, 'mappingInstructions', 'Array(Tuple(targetElementId String))').targetElementId -- and after (targetElementId), in the same order
operation_reference
migrated_at Time = r.ts -- UTC (MIGRATED)
FROM flow.records AS r FINAL
    WHERE r.value_type = 'PROCESS_INSTANCE_MIGRATION' AND r.record_type = 'EVENT' AND r.intent = 'MIGRATED'

-- One row for each message of errors at an element: of jobs that failed or threw an error, and of incidents. Numbers in a message are replaced by #, so that messages that differ only in a key share a row.
VIEW v_errors
source
bpmn_process_id = toString(r.bpmn_process_id)
element_id = toString(r.element_id)
process_name element_name
job_type = toString(r.job_type)
kind String = multiIf(r.value_type = 'INCIDENT', 'INCIDENT', r.intent = 'FAILED', 'JOB_FAILED', 'ERROR_THROWN') -- JOB_FAILED, ERROR_THROWN, INCIDENT
error String = toString(if(kind = 'INCIDENT', r.error_type, r.error_code)) -- type of the incident (errorType), or code of the job's error (errorCode)
message String = replaceRegexpAll(r.error_message, '[0-9]+', '#') -- errorMessage
errors UInt64 = count() -- how many there were
instances UInt64 = uniqExact(r.process_instance_key) -- number of process instances
first_at Time = min(r.ts) -- UTC, first one
last_at Time = max(r.ts) -- UTC, last one
FROM flow.records AS r FINAL
    WHERE r.record_type = 'EVENT' AND (r.value_type = 'JOB' AND r.intent IN ('FAILED', 'ERROR_THROWN') OR r.value_type = 'INCIDENT' AND r.intent = 'CREATED')
    GROUP BY source, bpmn_process_id, element_id, job_type, kind, error, message
