-- Process instances, one row each.
--
-- Aggregate tables use min, max, and sets only, and each record by itself: the order of
-- records does not matter, nor does a record that arrives late or twice. A last value is
-- the greatest of texts that begin with time and position (order). A missing time is NULL,
-- never 1970.
--
-- Instances come from their PROCESS_INSTANCE events; jobs and incidents add to them, and
-- PROCESS_INSTANCE_CREATION adds the business key alone, and so does the variable that the
-- ingester's --business-key names.
-- TIMER, PROCESS_EVENT, MESSAGE_SUBSCRIPTION and others make no row: events of elements
-- accompany them, many lack bpmnProcessId, and some outlive their instance.
--
-- Rows are sorted by the start of their instance, not by process: an instance that was
-- migrated to another process stays one row, and a query about a period reads only the
-- instances that started in it.
TABLE process_instances
source process_instance_key
bpmn_process_id max(Text) -- bpmnProcessId; what it is after a migration is in migrated
processes set(String) = groupUniqArrayIf(toString(r.bpmn_process_id), NOT of_key) -- every bpmnProcessId of its events: more than one when it was moved to another process
tenant_id
version max(Int64?) -- version of the process, or processDefinitionVersion; what it is after a migration is in migrated
process_definition_key max(Int64?) -- processDefinitionKey; likewise
began max(String) = if(of_process AND r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED'), concat(if(r.intent = 'ELEMENT_ACTIVATING', '2\t', '1\t'), definition), '') -- process, version and definition that it began with, tab between: 2 and those of ELEMENT_ACTIVATING of the PROCESS, or 1 and those of its ELEMENT_ACTIVATED; empty until one of them is here
migrated max(String) = if(of_process AND r.intent = 'ELEMENT_MIGRATED', concat({{.Order}}, '\t', definition), '')
parent_process_instance_key max(Int64?) -- parentProcessInstanceKey: the instance that called it; -1 when none did
parent_element_instance_key max(Int64?) -- parentElementInstanceKey: the call activity in that; -1
business_key max(String) = multiIf(r.business_key != '', concat('~', r.business_key), of_variable, concat({{.Order}}, '\t', if(JSONType(said) = 'String', JSONExtractString(said), if(said = 'null', '', said))), '') -- ~ and the businessId, which is greater than all else; order and value, tab between, of the variable that --business-key names; or empty
state max(UInt8) = multiIf(of_process AND r.intent = 'ELEMENT_TERMINATED', 4, of_process AND r.intent = 'ELEMENT_COMPLETED', 3, of_element, 1, 0) -- 0 only jobs or incidents seen, 1 events of its elements, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED of the PROCESS
started_at min(Time?) = if(of_process AND r.intent = 'ELEMENT_ACTIVATED', at, NULL) -- UTC (ELEMENT_ACTIVATED of the PROCESS)
completed_at max(Time?) = if(of_process AND r.intent = 'ELEMENT_COMPLETED', at, NULL) -- UTC (ELEMENT_COMPLETED of the PROCESS)
terminated_at max(Time?) = if(of_process AND r.intent = 'ELEMENT_TERMINATED', at, NULL) -- UTC (ELEMENT_TERMINATED of the PROCESS)
first_seen min(Time?) = at -- UTC, first event of its elements, jobs and incidents
last_seen max(Time?) = at -- UTC, last event of these
incident_keys set(Int64) = groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'CREATED') -- keys of INCIDENT CREATED
resolved_incident_keys set(Int64) = groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'RESOLVED') -- keys of INCIDENT RESOLVED
job_failures set(Int64) = groupUniqArrayIf({{.Mark}}, r.value_type = 'JOB' AND r.intent = 'FAILED') -- one number for each JOB FAILED: its position, or a hash of its identity
INDEX ix_started started_at TYPE minmax GRANULARITY 1
WITH
    {{.OfBusinessKey}} AS of_variable, if(of_variable, JSONExtractString(r.extra, 'value'), '') AS said,
    r.value_type = 'PROCESS_INSTANCE_CREATION' OR of_variable AS of_key,
    if(toUnixTimestamp64Milli(r.ts) > 0 AND NOT of_key, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
FEED flow.records AS r
    WHERE r.record_type = 'EVENT' AND (r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT', 'PROCESS_INSTANCE_CREATION') OR of_variable) AND r.process_instance_key NOT IN ('', '-1', '0')

-- One row for each process instance with open incidents in itself or in an instance that it called, directly or not.
--
-- A record names only its direct caller, so callers are looked up level by level, and only for open incidents.
VIEW v_incidents_below
source process_instance_key
own UInt64 = sumIf(open, depth = 0) -- number of its own incidents that are open
below UInt64 = sumIf(open, depth > 0) -- number of open incidents in the instances below it
WITH RECURSIVE
    {{.Callers}},
    up AS
    (
        SELECT source, process_instance_key, count() AS open, 0 AS depth
        FROM (SELECT source, process_instance_key, key FROM flow.incidents GROUP BY source, process_instance_key, key HAVING max(state) < 2)
        GROUP BY source, process_instance_key
        UNION ALL
        SELECT u.source AS source, c.caller AS process_instance_key, u.open AS open, u.depth + 1 AS depth
        FROM callers AS c
        INNER JOIN up AS u ON u.source = c.source AND u.process_instance_key = c.process_instance_key
    )
FROM up
    GROUP BY source, process_instance_key

-- One row for each called process instance: the root of its call tree, and its depth below the root.
VIEW v_called_instances
source process_instance_key
root_process_instance_key = argMax(u.caller, u.depth)
parent_process_instance_key = any(u.parent)
depth UInt64 = toUInt64(max(u.depth)) -- number of calls between the root and it, 1 or more
WITH RECURSIVE
    {{.Callers}},
    up AS
    (
        SELECT source, process_instance_key, caller AS parent, caller, 1 AS depth FROM callers
        UNION ALL
        SELECT u.source AS source, u.process_instance_key AS process_instance_key, u.parent AS parent, c.caller AS caller, u.depth + 1 AS depth
        FROM callers AS c
        INNER JOIN up AS u ON u.source = c.source AND u.caller = c.process_instance_key
    )
FROM up AS u
    GROUP BY source, process_instance_key

-- One row for each process instance.
--- Columns about the call tree are looked up by IN: ClickHouse builds the set of an IN only for a statement that reads its
--- column, whereas a join would cost every statement.
VIEW v_process_instances
source process_instance_key tenant_id
bpmn_process_id = if(i.migrated = '', i.bpmn_process_id, now[2])
version = if(i.migrated = '', i.version, toInt64OrNull(now[3]))
process_definition_key = if(i.migrated = '', i.process_definition_key, toInt64OrNull(now[4]))
process_name
first_bpmn_process_id String = multiIf(i.began != '', first[2], i.migrated = '', i.bpmn_process_id, '') -- process it began with; empty when it was migrated and its beginning is not known
first_version Int64? = multiIf(i.began != '', toInt64OrNull(first[3]), i.migrated = '', i.version, NULL) -- version it began with; NULL likewise
first_process_definition_key Int64? = multiIf(i.began != '', toInt64OrNull(first[4]), i.migrated = '', i.process_definition_key, NULL) -- definition it began with; NULL likewise
parent_process_instance_key = if(i.parent_process_instance_key > 0, toString(assumeNotNull(i.parent_process_instance_key)), '')
parent_element_instance_key = nullIf(i.parent_element_instance_key, -1)
root_process_instance_key = if(parent_process_instance_key = '', process_instance_key, toString(bitXor(toUInt64OrZero(process_instance_key), {{.Bits .Roots}}))) -- instance at the root of all calls, itself when nothing called it; text as process_instance_key
business_key = substring(i.business_key, if(startsWith(i.business_key, '~'), 2, 37)) -- business key: the businessId, or the last value of the instance's variable that the ingester's --business-key names; empty when it has none
processes Array(String) = arraySort(i.processes) -- every process that its events name, more than one when it was migrated to another
started_at completed_at terminated_at first_seen last_seen
state String = multiIf(i.state = 4, 'CANCELED', i.state = 3, 'COMPLETED', {{.Late "i.started_at" "i.last_seen"}}, 'EXPIRED', 'ACTIVE') -- ACTIVE, COMPLETED, CANCELED; EXPIRED: a late record of an instance that has left the tables, so that its start is missing
duration_ms Int64? = dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) -- ms from started_at to its end; NULL before that
incident_keys Array(Int64) -- incidents created
resolved_incident_keys Array(Int64) -- incidents resolved
incidents UInt64 = length(incident_keys) -- number of incidents created
open_incidents UInt64 = length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) -- number of its own incidents that are not resolved
incidents_below UInt64 = if(has_incident, {{.Bits .Below}}, 0) -- number of open incidents in the instances below it: those that it called, and those that these called
has_incident UInt8 = (source, process_instance_key, 64) GLOBAL IN {{.Below}} -- 1 while an incident is open in it, or in an instance below it
job_failures UInt64 = length(i.job_failures) -- number of JOB FAILED
WITH splitByChar('\t', i.migrated) AS now, splitByChar('\t', i.began) AS first
FROM flow.process_instances AS i FINAL
    WHERE i.state > 0
