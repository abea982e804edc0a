-- Incidents, one row each.
CREATE TABLE IF NOT EXISTS {{.Table "incidents"}}{{.OnCluster}}
(
    source               LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key String CODEC(ZSTD(1)),                 -- processInstanceKey
    key                  Int64  CODEC(Delta(8), ZSTD(1)),       -- of the record
    tenant_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id      SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId; what it is after a migration stands in migrated
    element_id           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId; likewise
    element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- elementInstanceKey
    job_key              SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- jobKey; -1 when it is about no job
    error_type           SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- errorType
    error_message        SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- errorMessage
    state                SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 1 CREATED or MIGRATED, 2 RESOLVED
    created_at           SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CREATED
    resolved_at          SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- RESOLVED, by somebody or by the end of its element
    migrated             SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process and element of the last MIGRATED, tab between; empty when there was none
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "incidents"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "incidents" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.incidents_mv{{.OnCluster}} TO {{.Table "incidents"}} AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.element_id) AS element_id,
    max(r.element_instance_key) AS element_instance_key, max(r.job_key) AS job_key,
    max(r.error_type) AS error_type, max(r.error_message) AS error_message,
    max(if(r.intent = 'RESOLVED', 2, 1)) AS state,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(r.intent = 'RESOLVED', at, NULL)) AS resolved_at,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(r.element_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'INCIDENT' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

-- What people query: one row for each incident, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_incidents{{.OnCluster}} AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id, -- the process it belongs to
    if(migrated = '', i.element_id, now[3]) AS element_id,
    element_instance_key, nullIf(i.job_key, -1) AS job_key, error_type, error_message, created_at, resolved_at,
    state < 2 AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM {{.Database}}.incidents AS i FINAL;
