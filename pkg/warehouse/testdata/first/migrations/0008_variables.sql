-- Variables, one row each: a name in one scope. Most are created and never
-- changed, so the value they were created with is kept once, and the last
-- change beside it. A VARIABLE MIGRATED record has no value.
CREATE TABLE IF NOT EXISTS {{.Table "variables"}}{{.OnCluster}}
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(1)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    scope_distance       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- key - scopeKey, which is small
    name                 SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- name
    created              SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- value of CREATED, JSON
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), T64('bit'), ZSTD(1)), -- CREATED
    updated              SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order and value of the last UPDATED, tab between; empty when there was none
    updates              SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) CODEC(ZSTD(1)), -- one number for each UPDATED: its position, or a hash of its identity
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)) -- order and process of the last MIGRATED, tab between; empty when there was none
)
ENGINE = {{.Engine "AggregatingMergeTree" "variables"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "variables" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.variables_mv{{.OnCluster}} TO {{.Table "variables"}} AS
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

-- What people query: one row for each variable, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_variables{{.OnCluster}} AS
WITH toInt64OrZero(substring(updated, 1, 15)) AS updated_ms
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', v.bpmn_process_id, substring(migrated, 37)) AS bpmn_process_id,
    key - scope_distance AS scope_key, name, created AS first_value,
    if(updated = '', created, substring(updated, 37)) AS value,
    created_at, multiIf(updated = '', created_at, updated_ms > 0, fromUnixTimestamp64Milli(updated_ms, 'UTC'), NULL) AS updated_at,
    length(updates) AS changes
FROM {{.Database}}.variables AS v FINAL;
