-- Variables, one row each: a name in one scope. Most are created and never changed, so
-- the value they were created with is kept once, and the last change beside it. A VARIABLE
-- MIGRATED record has no value.
{{.CreateTable "variables"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    scope_distance SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'key - scopeKey, which is small' CODEC(ZSTD(1)),
    name SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'name' CODEC(ZSTD(1)),
    created SimpleAggregateFunction(max, String) COMMENT 'value of CREATED, JSON' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CREATED' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    updated SimpleAggregateFunction(max, String) COMMENT 'order and value of the last UPDATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    updates SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'one number for each UPDATED: its position, or a hash of its identity' CODEC(ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order and process of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "variables"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "variables" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "variables"}} AS
WITH JSONExtract(r.extra, 'Tuple(name String, value String)') AS said
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.key - r.scope_key) AS scope_distance, max(said.1) AS name,
    max(if(r.intent = 'CREATED', said.2, '')) AS created,
    min(if(r.intent = 'CREATED' AND toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS created_at,
    max(if(r.intent = 'UPDATED', concat({{.Order}}, '\t', said.2), '')) AS updated,
    groupUniqArrayIf({{.Mark}}, r.intent = 'UPDATED') AS updates,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'VARIABLE' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

-- One row for each variable: a name in one scope. Values are JSON, so a text has its quotes.
{{.CreateView "v_variables"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'variable (key)',
    {{columns "tenant_id"}},
    bpmn_process_id String COMMENT 'process it belongs to now, after migrations (bpmnProcessId)',
    scope_key Nullable(Int64) COMMENT 'element instance it belongs to; that of the process instance for a variable of the instance (scopeKey)',
    name LowCardinality(String) COMMENT 'name',
    first_value String COMMENT 'JSON it was created with (value of CREATED)',
    value String COMMENT 'JSON it has now (value of the last CREATED or UPDATED)',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    updated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last change; its creation when there was none',
    changes UInt64 COMMENT 'number of UPDATED'
) AS
WITH toInt64OrZero(substring(updated, 1, 15)) AS updated_ms
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', v.bpmn_process_id, substring(migrated, 37)) AS bpmn_process_id,
    key - scope_distance AS scope_key, name, created AS first_value,
    if(updated = '', created, substring(updated, 37)) AS value,
    created_at, multiIf(updated = '', created_at, updated_ms > 0, fromUnixTimestamp64Milli(updated_ms, 'UTC'), NULL) AS updated_at,
    length(updates) AS changes
FROM {{.Database}}.variables AS v FINAL;
