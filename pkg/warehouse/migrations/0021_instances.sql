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
-- Rows lie by when instances began, whatever process they belong to: one that was
-- moved to another process is one row, and a question about a time reads what began
-- in it. Until migration 0021 the fold was process_instances, whose key began with
-- the process; that name still reads these rows.
CREATE TABLE IF NOT EXISTS {{.Table "instances"}}{{.OnCluster}}
(
    source                      LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key        String CODEC(ZSTD(3)),                 -- processInstanceKey, text by contract
    bpmn_process_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    processes                   SimpleAggregateFunction(groupUniqArrayArray, Array(String)) CODEC(ZSTD(1)), -- every bpmnProcessId of its events: more than one when it was moved to another process
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
ENGINE = {{.Engine "AggregatingMergeTree" "instances"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key)
SETTINGS {{.TableSettings}};
{{if .Cluster}}
{{.Divided "instances" "cityHash64(source, process_instance_key)"}}
{{end}}
CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.instances_mv{{.OnCluster}} TO {{.Table "instances"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
SELECT r.source AS source, r.process_instance_key AS process_instance_key,
    max(r.bpmn_process_id) AS bpmn_process_id, groupUniqArray(toString(r.bpmn_process_id)) AS processes,
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
GROUP BY source, process_instance_key;

-- What the old fold holds. From here on both have heard of every insert: those that
-- began before the view above was made have ended when this statement begins
-- (DB.run). It may run again, also on rows that it has put there itself.
INSERT INTO {{.Table "instances"}} (source, process_instance_key, bpmn_process_id, processes, tenant_id, version, process_definition_key, began, migrated,
    parent_process_instance_key, parent_element_instance_key, state, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, job_failures)
SELECT source, process_instance_key, bpmn_process_id, [toString(bpmn_process_id)], tenant_id, version, process_definition_key, began, migrated,
    parent_process_instance_key, parent_element_instance_key, state, started_at, completed_at, terminated_at, first_seen, last_seen,
    incident_keys, resolved_incident_keys, job_failures
FROM {{.Table "process_instances"}}
SETTINGS min_insert_block_size_rows = 200000;

-- What people query: one row for each instance, whatever has been merged so far.
CREATE OR REPLACE VIEW {{.Database}}.v_process_instances{{.OnCluster}} AS
WITH splitByChar('\t', i.migrated) AS now, splitByChar('\t', i.began) AS first
SELECT source, process_instance_key, tenant_id,
    if(i.migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id, -- what it belongs to
    if(i.migrated = '', i.version, toInt64OrNull(now[3])) AS version,
    if(i.migrated = '', i.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
    if(i.began = '', i.bpmn_process_id, first[1]) AS first_bpmn_process_id, -- what it began with
    if(i.began = '', i.version, toInt64OrNull(first[2])) AS first_version,
    if(i.began = '', i.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    arraySort(i.processes) AS processes, started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM {{.Database}}.instances AS i FINAL
WHERE i.state > 0;

-- Elements lie by process. Those of the few instances that were moved to another one
-- have rows of each: they are read apart, and put together.
CREATE OR REPLACE VIEW {{.Database}}.v_element_instances{{.OnCluster}} AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    WITH splitByChar('\t', o.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM {{.Database}}.element_instances AS o FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN ({{.MovedInstances}})
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM
    (
        SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
            min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            max(p.migrated) AS migrated
        FROM {{.Database}}.element_instances AS p
        WHERE (p.source, p.bpmn_process_id, p.process_instance_key) GLOBAL IN
            (
                SELECT source, arrayJoin(processes), process_instance_key FROM {{.Database}}.instances
                WHERE (source, process_instance_key) GLOBAL IN ({{.MovedInstances}})
            )
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

-- The old fold. Its name reads the new one, for consoles of the version before and for
-- whoever has it in a statement; merged by FINAL its rows are one for each instance now.
DROP VIEW IF EXISTS {{.Database}}.process_instances_mv{{.OnCluster}};

CREATE OR REPLACE TABLE {{.Table "process_instances"}}{{.OnCluster}}
(
    source                      LowCardinality(String),
    bpmn_process_id             SimpleAggregateFunction(max, LowCardinality(String)),
    process_instance_key        String,
    tenant_id                   SimpleAggregateFunction(max, LowCardinality(String)),
    version                     SimpleAggregateFunction(max, Nullable(Int64)),
    process_definition_key      SimpleAggregateFunction(max, Nullable(Int64)),
    began                       SimpleAggregateFunction(max, String),
    migrated                    SimpleAggregateFunction(max, String),
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)),
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)),
    state                       SimpleAggregateFunction(max, UInt8),
    started_at                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))),
    completed_at                SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    terminated_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    first_seen                  SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))),
    last_seen                   SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))),
    incident_keys               SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)),
    resolved_incident_keys      SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)),
    job_failures                SimpleAggregateFunction(groupUniqArrayArray, Array(Int64))
)
ENGINE = Merge('{{.Database}}', '^instances{{if .Cluster}}_local{{end}}$');
