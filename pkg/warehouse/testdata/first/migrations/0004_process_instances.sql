-- Instances whose events may name more than one process: they were migrated, or
-- an event of theirs names none. Views whose key begins with the process read
-- them apart.
CREATE TABLE IF NOT EXISTS {{.Table "migrated_instances"}}{{.OnCluster}}
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    migrated_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)) -- last ELEMENT_MIGRATED of the PROCESS; NULL when there was none
)
ENGINE = {{.Engine "AggregatingMergeTree" "migrated_instances"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key)
SETTINGS {{.TableSettings}};
{{.Distributed "migrated_instances" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.migrated_instances_mv{{.OnCluster}} TO {{.Table "migrated_instances"}} AS
SELECT r.source AS source, r.process_instance_key AS process_instance_key,
    max(if(r.intent = 'ELEMENT_MIGRATED' AND r.bpmn_element_type = 'PROCESS' AND toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS migrated_at
FROM {{.Table "records"}} AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT') AND (r.intent IN ('ELEMENT_MIGRATED', 'MIGRATED') OR r.bpmn_process_id = '')
    AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, process_instance_key;

-- Process instances, one row each.
--
-- A fold takes every record for what it says by itself, with min, max and sets
-- only: a record that comes twice, late or in any order changes nothing. Where
-- the last word counts it is the greatest of texts that begin with time and
-- position; times that a record lacks are NULL and never 1970.
--
-- What tells of an instance are its PROCESS_INSTANCE events; jobs and incidents
-- add to it. TIMER, PROCESS_EVENT, MESSAGE_SUBSCRIPTION and others make no row:
-- they come with events of elements, many lack bpmnProcessId, and some outlive
-- their instance.
--
-- Most questions are about one process, so its id leads the key. Events of a
-- migrated instance name one process after the other and are rows of each: those
-- in migrated_instances are put together by the view.
CREATE TABLE IF NOT EXISTS {{.Table "process_instances"}}{{.OnCluster}}
(
    source                      LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    bpmn_process_id             LowCardinality(String) CODEC(ZSTD(1)), -- bpmnProcessId of the event
    process_instance_key        String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    tenant_id                   SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    version                     SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- version of the process, or processDefinitionVersion; what it is after a migration stands in migrated
    process_definition_key      SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- processDefinitionKey; likewise
    began                       SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- process, version and definition of its first event (ELEMENT_ACTIVATING of the PROCESS), tab between; empty until that is here
    migrated                    SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and definition of the last ELEMENT_MIGRATED of the PROCESS, tab between; empty when there was none
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentProcessInstanceKey: the instance that called it; -1 when none did
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- parentElementInstanceKey: the call activity in that; -1
    state                       SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 0 only jobs or incidents seen, 1 events of its elements, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED of the PROCESS
    started_at                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATED of the PROCESS
    completed_at                SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_COMPLETED of the PROCESS
    terminated_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),                       -- ELEMENT_TERMINATED of the PROCESS
    first_seen                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- first event of its elements, jobs and incidents
    last_seen                   SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- last event of these
    incident_keys               SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT CREATED
    resolved_incident_keys      SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- keys of INCIDENT RESOLVED
    job_failures                SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- one number for each JOB FAILED: its position, or a hash of its identity
    INDEX ix_started started_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "process_instances"}}
PRIMARY KEY (source, bpmn_process_id, {{.Begun}})
ORDER BY    (source, bpmn_process_id, {{.Begun}}, process_instance_key)
SETTINGS {{.TableSettings}};
{{.Distributed "process_instances" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.process_instances_mv{{.OnCluster}} TO {{.Table "process_instances"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
SELECT r.source AS source, r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.process_definition_key) AS process_definition_key,
    max(if(of_process AND r.intent = 'ELEMENT_ACTIVATING', definition, '')) AS began,
    max(if(of_process AND r.intent = 'ELEMENT_MIGRATED', concat({{.Order}}, '\t', definition), '')) AS migrated,
    max(r.parent_process_instance_key) AS parent_process_instance_key,
    max(r.parent_element_instance_key) AS parent_element_instance_key,
    max(multiIf(of_process AND r.intent = 'ELEMENT_TERMINATED', 4, of_process AND r.intent = 'ELEMENT_COMPLETED', 3, of_element, 1, 0)) AS state,
    min(if(of_process AND r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS started_at,
    max(if(of_process AND r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(of_process AND r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    min(at) AS first_seen, max(at) AS last_seen,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf({{.Mark}}, r.value_type = 'JOB' AND r.intent = 'FAILED') AS job_failures
FROM {{.Table "records"}} AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT') AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, bpmn_process_id, process_instance_key;

-- What people query: one row for each instance, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_process_instances{{.OnCluster}} AS
SELECT source, process_instance_key, tenant_id,
    bpmn_process_id, version, process_definition_key,                   -- what it belongs to
    first_bpmn_process_id, first_version, first_process_definition_key, -- what it began with
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM
(
    SELECT source, process_instance_key, tenant_id, bpmn_process_id, version, process_definition_key,
        bpmn_process_id AS first_bpmn_process_id, version AS first_version, process_definition_key AS first_process_definition_key,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM {{.Database}}.process_instances FINAL
    WHERE state > 0 AND (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM {{.Database}}.migrated_instances)
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now, splitByChar('\t', m.began) AS first
    SELECT source, process_instance_key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        if(m.began = '', m.bpmn_process_id, first[1]) AS first_bpmn_process_id,
        if(m.began = '', m.version, toInt64OrNull(first[2])) AS first_version,
        if(m.began = '', m.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM
    (
        SELECT source, process_instance_key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.process_definition_key) AS process_definition_key, max(p.began) AS began, max(p.migrated) AS migrated,
            max(p.parent_process_instance_key) AS parent_process_instance_key, max(p.parent_element_instance_key) AS parent_element_instance_key,
            max(p.state) AS state, min(p.started_at) AS started_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            min(p.first_seen) AS first_seen, max(p.last_seen) AS last_seen, groupUniqArrayArray(p.incident_keys) AS incident_keys,
            groupUniqArrayArray(p.resolved_incident_keys) AS resolved_incident_keys, groupUniqArrayArray(p.job_failures) AS job_failures
        FROM {{.Database}}.process_instances AS p
        WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM {{.Database}}.migrated_instances)
        GROUP BY source, process_instance_key
    ) AS m
    WHERE m.state > 0
) AS i;
