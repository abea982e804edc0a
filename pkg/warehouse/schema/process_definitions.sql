-- Deployed versions of processes with their BPMN XML, one row each. Every
-- partition writes them, with the same key; DELETING and DELETED have keys of
-- their own on each, and name the version as processDefinitionKey. Nothing
-- expires here: an instance that is asked about in years has a model then.
{{.CreateTable "process_definitions"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    key Int64 COMMENT 'processDefinitionKey, or key of the record where that is missing' CODEC(ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId' CODEC(ZSTD(1)),
    version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'version' CODEC(ZSTD(1)),
    resource_name SimpleAggregateFunction(max, String) COMMENT 'resourceName' CODEC(ZSTD(1)),
    xml SimpleAggregateFunction(max, String) COMMENT 'resource, decoded' CODEC(ZSTD(3)),
    deployed_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'first CREATED' CODEC(ZSTD(1)),
    deleted_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'last DELETED' CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "process_definitions"}}
ORDER BY (source, key)
SETTINGS {{.TableSettings}};
{{.Distributed "process_definitions" "cityHash64(source, '')"}}

{{.CreateFeed "process_definitions"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    if(r.process_definition_key > 0, assumeNotNull(r.process_definition_key), r.key) AS definition
SELECT r.source AS source, definition AS key, max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version,
    max(JSONExtractString(r.extra, 'resourceName')) AS resource_name,
    max(tryBase64Decode(JSONExtractString(r.extra, 'resource'))) AS xml,
    min(if(r.intent = 'CREATED', at, NULL)) AS deployed_at, max(if(r.intent = 'DELETED', at, NULL)) AS deleted_at
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'PROCESS' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, key;

-- One row for each deployed version of a process.
{{.CreateView "v_process_definitions"}}
(
    {{columns "source"}},
    process_definition_key Int64 COMMENT 'definition (processDefinitionKey)',
    {{columns "tenant_id"}},
    bpmn_process_id LowCardinality(String) COMMENT 'process (bpmnProcessId)',
    version Nullable(Int64) COMMENT 'version',
    name String COMMENT 'of the process, from its XML',
    resource_name String COMMENT 'file it came in (resourceName)',
    xml String COMMENT 'BPMN (resource)',
    deployed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (first CREATED)',
    deleted_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last partition (DELETED); NULL while it is deployed'
) AS
SELECT source, key AS process_definition_key, tenant_id, bpmn_process_id, version,
    decodeXMLComponent(extract(xml, '<(?:\\w+:)?process\\s[^>]*?\\bname="([^"]*)"')) AS name,
    resource_name, xml, deployed_at, deleted_at
FROM {{.Database}}.process_definitions AS d FINAL;
