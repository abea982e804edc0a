-- Incidents, one row each.
{{.CreateTable "incidents"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId; likewise' CODEC(ZSTD(1)),
    element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'elementInstanceKey' CODEC(Delta(8), ZSTD(1)),
    job_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'jobKey; -1 when it is about no job' CODEC(Delta(8), ZSTD(1)),
    error_type SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'errorType' CODEC(ZSTD(1)),
    error_message SimpleAggregateFunction(max, String) COMMENT 'errorMessage' CODEC(ZSTD(1)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '1 CREATED or MIGRATED, 2 RESOLVED' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CREATED' CODEC(Delta(8), ZSTD(1)),
    resolved_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'RESOLVED, by a person or by the end of its element' CODEC(Delta(8), ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process and element of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "incidents"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "incidents" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "incidents"}} AS
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

-- One row for each incident.
{{.CreateView "v_incidents"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'incident (key)',
    {{columns "tenant_id" "bpmn_process_id" "element_id" "element_instance_key"}},
    job_key Nullable(Int64) COMMENT 'job it is about (jobKey); NULL when about none',
    {{columns "error_type" "error_message"}},
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    resolved_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (RESOLVED: by an operator, or by the end of its element)',
    open UInt8 COMMENT '1 until it is resolved',
    resolution_ms Nullable(Int64) COMMENT 'ms from created_at to resolved_at; NULL while open'
) AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', i.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', i.element_id, now[3]) AS element_id,
    element_instance_key, nullIf(i.job_key, -1) AS job_key, error_type, error_message, created_at, resolved_at,
    state < 2 AS open, dateDiff('millisecond', created_at, resolved_at) AS resolution_ms
FROM {{.Database}}.incidents AS i FINAL;
