-- Element instances, one row each; a process is one too, with the key of its
-- instance. A multi-instance body has the type MULTI_INSTANCE_BODY, and is the
-- flow scope of its children, which have its element_id and the type of the
-- activity. An element that is entered and not activated is stuck there, as a
-- rule with an incident.
{{.CreateTable "element_instances"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) COMMENT 'bpmnProcessId of the event' CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey' CODEC(ZSTD(3)),
    key Int64 COMMENT 'of the record: elementInstanceKey elsewhere' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'version of the process; what it is after a migration is in migrated' CODEC(ZSTD(3)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId; likewise' CODEC(ZSTD(1)),
    bpmn_element_type SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnElementType' CODEC(ZSTD(1)),
    flow_scope_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'flowScopeKey: the element instance around it; -1 of a process' CODEC(ZSTD(3)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '0 ELEMENT_MIGRATED alone seen, 1 ELEMENT_ACTIVATING, 2 ELEMENT_ACTIVATED, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED' CODEC(ZSTD(1)),
    entered_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    activated_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_ACTIVATED' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    completed_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_COMPLETED' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    terminated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'ELEMENT_TERMINATED' CODEC(ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, version and element of the last ELEMENT_MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    INDEX ix_entered entered_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "element_instances"}}
PRIMARY KEY (source, bpmn_process_id, {{.Begun}})
ORDER BY    (source, bpmn_process_id, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "element_instances" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "element_instances"}} AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.bpmn_process_id AS bpmn_process_id, r.process_instance_key AS process_instance_key, r.key AS key,
    max(r.tenant_id) AS tenant_id, max(r.version) AS version, max(r.element_id) AS element_id,
    max(r.bpmn_element_type) AS bpmn_element_type, max(r.flow_scope_key) AS flow_scope_key,
    max(multiIf(r.intent = 'ELEMENT_TERMINATED', 4, r.intent = 'ELEMENT_COMPLETED', 3, r.intent = 'ELEMENT_ACTIVATED', 2, r.intent = 'ELEMENT_ACTIVATING', 1, 0)) AS state,
    min(if(r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED'), at, NULL)) AS entered_at,
    min(if(r.intent = 'ELEMENT_ACTIVATED', at, NULL)) AS activated_at,
    max(if(r.intent = 'ELEMENT_COMPLETED', at, NULL)) AS completed_at,
    max(if(r.intent = 'ELEMENT_TERMINATED', at, NULL)) AS terminated_at,
    max(if(r.intent = 'ELEMENT_MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'PROCESS_INSTANCE' AND r.record_type = 'EVENT' AND r.key > 0
    AND r.intent IN ('ELEMENT_ACTIVATING', 'ELEMENT_ACTIVATED', 'ELEMENT_COMPLETED', 'ELEMENT_TERMINATED', 'ELEMENT_MIGRATED')
GROUP BY source, bpmn_process_id, process_instance_key, key;

-- One row for each element instance; a process is one too. A multi-instance body is one, with the type MULTI_INSTANCE_BODY, and the flow scope of its turns.
--
-- Elements are sorted by process. Those of the few instances whose events name more than
-- one process have rows of each: they are read apart, and aggregated. A row of such an
-- instance names the processes or, while it is not merged, a migration and no beginning.
{{- define "moved"}}SELECT source, process_instance_key FROM {{.Database}}.process_instances WHERE length(processes) > 1 OR migrated != '' AND began = '' OR processes = ['']{{end}}
{{.CreateView "v_element_instances"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'element instance (key, elementInstanceKey in other records)',
    tenant_id String {{about "tenant_id"}},
    {{columns "bpmn_process_id" "version" "element_id"}},
    bpmn_element_type String {{about "bpmn_element_type"}},
    {{columns "flow_scope_key"}},
    entered_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing)',
    activated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_ACTIVATED)',
    completed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_COMPLETED)',
    terminated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_TERMINATED)',
    state String COMMENT 'ACTIVATING (entered, and stuck there when it stays so), ACTIVE, COMPLETED, TERMINATED',
    duration_ms Nullable(Int64) COMMENT 'ms from activated_at, or from entered_at when it was never activated, to its end: completed_at or terminated_at; NULL before that'
) AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id,
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', coalesce(activated_at, entered_at), coalesce(completed_at, terminated_at)) AS duration_ms
FROM
(
    WITH splitByChar('\t', o.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM {{.Database}}.element_instances AS o FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN ({{template "moved" .}})
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
                SELECT source, arrayJoin(processes), process_instance_key FROM {{.Database}}.process_instances
                WHERE (source, process_instance_key) GLOBAL IN ({{template "moved" .}})
            )
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

-- The element instances of v_element_instances that are entered and not left: a question about these alone costs far less.
--
-- All rows of such an element are of a state below 3; of the few others that have such a
-- row, another one says that they were left.
{{.CreateView "v_active_elements"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'element instance (key, elementInstanceKey in other records)',
    tenant_id String {{about "tenant_id"}},
    {{columns "bpmn_process_id" "version" "element_id"}},
    bpmn_element_type String {{about "bpmn_element_type"}},
    {{columns "flow_scope_key"}},
    entered_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing)',
    activated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (ELEMENT_ACTIVATED)',
    state String COMMENT 'ACTIVATING (entered, and stuck there when it stays so), ACTIVE'
) AS
WITH splitByChar('\t', a.migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(a.migrated = '', a.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(a.migrated = '', a.version, toInt64OrNull(now[3])) AS version,
    if(a.migrated = '', a.element_id, now[4]) AS element_id,
    bpmn_element_type, nullIf(a.flow_scope_key, -1) AS flow_scope_key, entered_at, activated_at,
    if(a.state = 1, 'ACTIVATING', 'ACTIVE') AS state
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
        min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.migrated) AS migrated
    FROM {{.Database}}.element_instances AS p
    WHERE p.state < 3 AND (p.source, p.key) GLOBAL NOT IN
        (
            SELECT source, key FROM {{.Database}}.element_instances
            WHERE state > 2 AND key GLOBAL IN (SELECT key FROM {{.Database}}.element_instances WHERE state < 3)
        )
    GROUP BY source, process_instance_key, key
) AS a;
