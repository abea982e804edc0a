-- Element instances, one row each; a process is one too, with the key of its
-- instance. A multi-instance body has the type MULTI_INSTANCE_BODY, and is the
-- flow scope of its children, which have its element_id and the type of the
-- activity. An element that is entered and not activated is stuck there, as a
-- rule with an incident.
CREATE TABLE IF NOT EXISTS {{.Table "element_instances"}}{{.OnCluster}}
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    bpmn_process_id      LowCardinality(String) CODEC(ZSTD(1)), -- bpmnProcessId of the event
    process_instance_key String CODEC(ZSTD(3)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record: elementInstanceKey elsewhere
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    version              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- version of the process; what it is after a migration stands in migrated
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise
    bpmn_element_type    SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnElementType
    flow_scope_key       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(3)),        -- flowScopeKey: the element instance around it; -1 of a process
    state                SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 0 ELEMENT_MIGRATED alone seen, 1 ELEMENT_ACTIVATING, 2 ELEMENT_ACTIVATED, 3 ELEMENT_COMPLETED, 4 ELEMENT_TERMINATED
    entered_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATING, or ELEMENT_ACTIVATED where that is missing
    activated_at         SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_ACTIVATED
    completed_at         SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- ELEMENT_COMPLETED
    terminated_at        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)),                       -- ELEMENT_TERMINATED
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, version and element of the last ELEMENT_MIGRATED, tab between; empty when there was none
    INDEX ix_entered entered_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "element_instances"}}
PRIMARY KEY (source, bpmn_process_id, {{.Begun}})
ORDER BY    (source, bpmn_process_id, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "element_instances" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.element_instances_mv{{.OnCluster}} TO {{.Table "element_instances"}} AS
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

-- What people query: one row for each element instance, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_element_instances{{.OnCluster}} AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, version, element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM {{.Database}}.element_instances FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM {{.Database}}.migrated_instances)
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
        WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM {{.Database}}.migrated_instances)
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;
