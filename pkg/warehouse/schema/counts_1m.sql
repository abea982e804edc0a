-- Records per minute. The sums are exact because a repeated insert carries its token,
-- which this table and flow.records both recognize. Counters expire by the day on which
-- their records were stored, as the records do.
{{.CreateTable "counts_1m"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    minute DateTime('UTC') COMMENT 'that the timestamps are in, UTC' CODEC(Delta(4), ZSTD(1)),
    tenant_id LowCardinality(String) {{about "tenant_id"}} CODEC(ZSTD(1)),
    value_type LowCardinality(String) {{about "value_type"}} CODEC(ZSTD(1)),
    record_type LowCardinality(String) {{about "record_type"}} CODEC(ZSTD(1)),
    intent LowCardinality(String) {{about "intent"}} CODEC(ZSTD(1)),
    bpmn_process_id LowCardinality(String) {{about "bpmn_process_id"}} CODEC(ZSTD(1)),
    stored_day Date COMMENT 'day on which they were stored, UTC' CODEC(ZSTD(1)),
    version Int64 COMMENT '0 when the record has none' CODEC(ZSTD(1)),
    records SimpleAggregateFunction(sum, Int64) COMMENT 'how many; sum it, as a recount inserts differences' CODEC(T64, ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "counts_1m"}}
PARTITION BY toYYYYMM(minute)
ORDER BY (minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id, source, stored_day)
TTL toDateTime(stored_day, 'UTC') + INTERVAL 401 DAY DELETE
SETTINGS {{.TableSettings}}, ttl_only_drop_parts = 1;
{{.Distributed "counts_1m" "cityHash64(source, bpmn_process_id, minute)"}}

{{.CreateFeed "counts_1m"}} AS
SELECT r.source AS source, toStartOfMinute(r.ts) AS minute, r.tenant_id AS tenant_id, r.value_type AS value_type,
    r.record_type AS record_type, r.intent AS intent, r.bpmn_process_id AS bpmn_process_id,
    ifNull(r.version, 0) AS version, toDate(r.stored_at) AS stored_day, toInt64(count()) AS records
FROM {{.Table "records"}} AS r
GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version, stored_day;
