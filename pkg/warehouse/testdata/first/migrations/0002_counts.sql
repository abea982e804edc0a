-- Records per minute. Sums are exact only because an insert that is repeated
-- carries its token, and both this table and the one it is fed from know it.
CREATE TABLE IF NOT EXISTS {{.Table "counts_1m"}}{{.OnCluster}}
(
    source          LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    minute          DateTime('UTC')        CODEC(Delta(4), ZSTD(1)), -- that the timestamps are in, UTC
    tenant_id       LowCardinality(String) CODEC(ZSTD(1)),
    value_type      LowCardinality(String) CODEC(ZSTD(1)),
    record_type     LowCardinality(String) CODEC(ZSTD(1)),
    intent          LowCardinality(String) CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) CODEC(ZSTD(1)),
    version         Int64                  CODEC(ZSTD(1)), -- 0 when the record has none
    records         SimpleAggregateFunction(sum, Int64)  CODEC(T64, ZSTD(1)), -- how many; sum it, as a recount inserts differences
    received_at     SimpleAggregateFunction(max, DateTime('UTC')) CODEC(Delta(4), ZSTD(1)) -- when the api took the last of them in, UTC
)
ENGINE = {{.Engine "AggregatingMergeTree" "counts_1m"}}
PARTITION BY toYYYYMM(minute)
ORDER BY (minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id, source)
TTL received_at + INTERVAL 400 DAY DELETE
SETTINGS {{.TableSettings}}, ttl_only_drop_parts = 1;
{{.Distributed "counts_1m" "rand()"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.counts_1m_mv{{.OnCluster}} TO {{.Table "counts_1m"}} AS
SELECT r.source AS source, toStartOfMinute(r.ts) AS minute, r.tenant_id AS tenant_id, r.value_type AS value_type,
    r.record_type AS record_type, r.intent AS intent, r.bpmn_process_id AS bpmn_process_id,
    ifNull(r.version, 0) AS version, toInt64(count()) AS records, toDateTime(max(r.received_at), 'UTC') AS received_at
FROM {{.Table "records"}} AS r
GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version;
