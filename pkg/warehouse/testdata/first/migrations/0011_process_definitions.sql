-- Deployed versions of processes with their BPMN XML, one row each. Every
-- partition writes them, with the same key. Nothing expires here: an instance
-- that is asked about in years has a model then.
CREATE TABLE IF NOT EXISTS {{.Table "process_definitions"}}{{.OnCluster}}
(
    source          LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    key             Int64 CODEC(ZSTD(1)),                  -- of the record: processDefinitionKey
    tenant_id       SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId
    version         SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- version
    resource_name   SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- resourceName
    xml             SimpleAggregateFunction(max, String) CODEC(ZSTD(3)),                 -- resource, decoded
    deployed_at     SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- first CREATED
    deleted_at      SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1))  -- last DELETED
)
ENGINE = {{.Engine "AggregatingMergeTree" "process_definitions"}}
ORDER BY (source, key)
SETTINGS {{.TableSettings}};
{{.Distributed "process_definitions" "cityHash64(source, '')"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.process_definitions_mv{{.OnCluster}} TO {{.Table "process_definitions"}} AS
WITH if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at
SELECT r.source AS source, r.key AS key, max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version,
    max(JSONExtractString(r.extra, 'resourceName')) AS resource_name,
    max(tryBase64Decode(JSONExtractString(r.extra, 'resource'))) AS xml,
    min(if(r.intent = 'CREATED', at, NULL)) AS deployed_at, max(if(r.intent = 'DELETED', at, NULL)) AS deleted_at
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'PROCESS' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, key;

-- What people query: one row for each version, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_process_definitions{{.OnCluster}} AS
SELECT source, key AS process_definition_key, tenant_id, bpmn_process_id, version,
    decodeXMLComponent(extract(xml, '<(?:\\w+:)?process\\s[^>]*?\\bname="([^"]*)"')) AS name,
    resource_name, xml, deployed_at, deleted_at
FROM {{.Database}}.process_definitions AS d FINAL;
