-- Process instances, one row each.
--
-- An aggregate table takes every record for what it says by itself, with min, max and
-- sets only: a record that comes twice, late or in any order changes nothing. Where the
-- last word counts it is the greatest of texts that begin with time and position (order);
-- times that a record lacks are NULL and never 1970.
--
-- Instances come from their PROCESS_INSTANCE events; jobs and incidents add to them, and
-- PROCESS_INSTANCE_CREATION adds the business key alone.
-- TIMER, PROCESS_EVENT, MESSAGE_SUBSCRIPTION and others make no row: they come with events
-- of elements, many lack bpmnProcessId, and some outlive their instance.
--
-- Rows are sorted by when instances began, whatever process they belong to: an instance
-- that was migrated to another process is one row, and a question about a time reads
-- what began in it.
{{.CreateTable "process_instances"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey, text by contract' CODEC(ZSTD(3)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    processes SimpleAggregateFunction(groupUniqArrayArray, Array(String)) COMMENT 'every bpmnProcessId of its events: more than one when it was moved to another process' CODEC(ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'version of the process, or processDefinitionVersion; what it is after a migration is in migrated' CODEC(ZSTD(3)),
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionKey; likewise' CODEC(ZSTD(3)),
    began SimpleAggregateFunction(max, String) COMMENT 'process, version and definition that it began with, tab between: 2 and those of ELEMENT_ACTIVATING of the PROCESS, or 1 and those of its ELEMENT_ACTIVATED; empty until one of them is here' CODEC(ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, version and definition of the last ELEMENT_MIGRATED of the PROCESS, tab between; empty when there was none' CODEC(ZSTD(1)),
    parent_process_instance_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'parentProcessInstanceKey: the instance that called it; -1 when none did' CODEC(ZSTD(1)),
    parent_element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'parentElementInstanceKey: the call activity in that; -1' CODEC(ZSTD(1)),
    business_key SimpleAggregateFunction(max, String) COMMENT 'businessId; empty when it has none' CODEC(ZSTD(1)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '0 only jobs or incidents seen, 1 events of its elements, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED of the PROCESS' CODEC(ZSTD(1)),
    started_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_ACTIVATED of the PROCESS' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    completed_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_COMPLETED of the PROCESS' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    terminated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_TERMINATED of the PROCESS' CODEC(ZSTD(1)),
    first_seen SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'first event of its elements, jobs and incidents' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    last_seen SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'last event of these' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    incident_keys SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'keys of INCIDENT CREATED' CODEC(ZSTD(1)),
    resolved_incident_keys SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'keys of INCIDENT RESOLVED' CODEC(ZSTD(1)),
    job_failures SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'one number for each JOB FAILED: its position, or a hash of its identity' CODEC(ZSTD(1)),
    INDEX ix_started started_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "process_instances"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key)
SETTINGS {{.TableSettings}};
{{.Distributed "process_instances" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "process_instances"}} AS
WITH
    r.value_type = 'PROCESS_INSTANCE_CREATION' AS of_creation,
    if(toUnixTimestamp64Milli(r.ts) > 0 AND NOT of_creation, toNullable(r.ts), NULL) AS at,
    r.value_type = 'PROCESS_INSTANCE' AS of_element,
    of_element AND r.bpmn_element_type = 'PROCESS' AS of_process,
    concat(toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(ifNull(r.process_definition_key, 0))) AS definition
SELECT r.source AS source, r.process_instance_key AS process_instance_key,
    max(r.bpmn_process_id) AS bpmn_process_id, groupUniqArrayIf(toString(r.bpmn_process_id), NOT of_creation) AS processes,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.process_definition_key) AS process_definition_key,
    max(if(of_process AND r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED'), concat(if(r.intent = 'ELEMENT_ACTIVATING', '2\t', '1\t'), definition), '')) AS began,
    max(if(of_process AND r.intent = 'ELEMENT_MIGRATED', concat({{.Order}}, '\t', definition), '')) AS migrated,
    max(r.parent_process_instance_key) AS parent_process_instance_key,
    max(r.parent_element_instance_key) AS parent_element_instance_key,
    max(r.business_key) AS business_key,
    max(multiIf(of_process AND r.intent = 'ELEMENT_TERMINATED', 4, of_process AND r.intent = 'ELEMENT_COMPLETED', 3, of_element, 1, 0)) AS state,
    min(if(of_process AND r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS started_at,
    max(if(of_process AND r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(of_process AND r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    min(at) AS first_seen, max(at) AS last_seen,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'CREATED') AS incident_keys,
    groupUniqArrayIf(r.key, r.value_type = 'INCIDENT' AND r.intent = 'RESOLVED') AS resolved_incident_keys,
    groupUniqArrayIf({{.Mark}}, r.value_type = 'JOB' AND r.intent = 'FAILED') AS job_failures
FROM {{.Table "records"}} AS r
WHERE r.record_type = 'EVENT' AND r.value_type IN ('PROCESS_INSTANCE', 'JOB', 'INCIDENT', 'PROCESS_INSTANCE_CREATION') AND r.process_instance_key NOT IN ('', '-1', '0')
GROUP BY source, process_instance_key;

-- One row for each process instance that has open incidents itself, or in an instance below it: one that it called, or that such a one called.
--
-- A record names its caller alone, so callers are looked up one after the other, and only those of open incidents.
{{.CreateView "v_incidents_below"}}
(
    {{columns "source" "process_instance_key"}},
    own UInt64 COMMENT 'number of its own incidents that are open',
    below UInt64 COMMENT 'number of open incidents in the instances below it'
) AS
WITH RECURSIVE
    callers AS
    (
        SELECT source, process_instance_key, toString(assumeNotNull(max(c.parent_process_instance_key))) AS caller
        FROM {{.Database}}.process_instances AS c
        WHERE c.parent_process_instance_key > 0
        GROUP BY source, process_instance_key
    ),
    up AS
    (
        SELECT source, process_instance_key, count() AS open, 0 AS depth
        FROM (SELECT source, process_instance_key, key FROM {{.Database}}.incidents GROUP BY source, process_instance_key, key HAVING max(state) < 2)
        GROUP BY source, process_instance_key
        UNION ALL
        SELECT u.source AS source, c.caller AS process_instance_key, u.open AS open, u.depth + 1 AS depth
        FROM callers AS c
        INNER JOIN up AS u ON u.source = c.source AND u.process_instance_key = c.process_instance_key
    )
SELECT source, process_instance_key, sumIf(open, depth = 0) AS own, sumIf(open, depth > 0) AS below
FROM up
GROUP BY source, process_instance_key;

-- One row for each process instance that another one called: the root of its calls, and how far below that it is.
{{.CreateView "v_called_instances"}}
(
    {{columns "source" "process_instance_key" "root_process_instance_key"}},
    {{columns "parent_process_instance_key"}},
    depth UInt64 COMMENT 'number of calls between the root and it, 1 or more'
) AS
WITH RECURSIVE
    callers AS
    (
        SELECT source, process_instance_key, toString(assumeNotNull(max(c.parent_process_instance_key))) AS caller
        FROM {{.Database}}.process_instances AS c
        WHERE c.parent_process_instance_key > 0
        GROUP BY source, process_instance_key
    ),
    up AS
    (
        SELECT source, process_instance_key, caller AS parent, caller, 1 AS depth FROM callers
        UNION ALL
        SELECT u.source AS source, u.process_instance_key AS process_instance_key, u.parent AS parent, c.caller AS caller, u.depth + 1 AS depth
        FROM callers AS c
        INNER JOIN up AS u ON u.source = c.source AND u.caller = c.process_instance_key
    )
SELECT source, process_instance_key, argMax(u.caller, u.depth) AS root_process_instance_key, any(u.parent) AS parent_process_instance_key, toUInt64(max(u.depth)) AS depth
FROM up AS u
GROUP BY source, process_instance_key;

-- One row for each process instance.
{{.CreateView "v_process_instances"}}
(
    {{columns "source" "process_instance_key" "tenant_id" "bpmn_process_id" "version" "process_definition_key"}},
    first_bpmn_process_id String COMMENT 'process it began with; empty when it was migrated and its beginning is not known',
    first_version Nullable(Int64) COMMENT 'version it began with; NULL likewise',
    first_process_definition_key Nullable(Int64) COMMENT 'definition it began with; NULL likewise',
    {{columns "parent_process_instance_key" "parent_element_instance_key"}},
    business_key String COMMENT 'business id; empty when it has none (businessId)',
    processes Array(String) COMMENT 'every process that its events name, more than one when it was migrated to another',
    started_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_ACTIVATED of the PROCESS)',
    completed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_COMPLETED of the PROCESS)',
    terminated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_TERMINATED of the PROCESS)',
    first_seen Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, first event of its elements, jobs and incidents',
    last_seen Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last event of these',
    state String COMMENT 'ACTIVE, COMPLETED, CANCELED',
    duration_ms Nullable(Int64) COMMENT 'ms from started_at to its end; NULL before that',
    incident_keys Array(Int64) COMMENT 'incidents created',
    resolved_incident_keys Array(Int64) COMMENT 'incidents resolved',
    incidents UInt64 COMMENT 'number of incidents created',
    open_incidents UInt64 COMMENT 'number of its own incidents that are not resolved; v_incidents_below has those below it',
    has_incident UInt8 COMMENT '1 while an incident is open in it, or in an instance below it: one that it called, or that such a one called',
    job_failures UInt64 COMMENT 'number of JOB FAILED'
) AS
WITH splitByChar('\t', i.migrated) AS now, splitByChar('\t', i.began) AS first
SELECT source, process_instance_key, tenant_id,
    if(i.migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(i.migrated = '', i.version, toInt64OrNull(now[3])) AS version,
    if(i.migrated = '', i.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
    multiIf(i.began != '', first[2], i.migrated = '', i.bpmn_process_id, '') AS first_bpmn_process_id,
    multiIf(i.began != '', toInt64OrNull(first[3]), i.migrated = '', i.version, NULL) AS first_version,
    multiIf(i.began != '', toInt64OrNull(first[4]), i.migrated = '', i.process_definition_key, NULL) AS first_process_definition_key,
    if(i.parent_process_instance_key > 0, toString(assumeNotNull(i.parent_process_instance_key)), '') AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    business_key, arraySort(i.processes) AS processes, started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'CANCELED', i.state = 3, 'COMPLETED', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM {{.Database}}.v_incidents_below) AS has_incident,
    length(i.job_failures) AS job_failures
FROM {{.Database}}.process_instances AS i FINAL
WHERE i.state > 0;
