-- Signals that were broadcast, and the subscriptions of elements and start events to them,
-- one row each. Every partition writes a broadcast, with the same key. A signal names no
-- instance; its variables are in flow.records alone.
{{.CreateTable "signals"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    value_type LowCardinality(String) COMMENT 'SIGNAL or SIGNAL_SUBSCRIPTION' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    name SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'signalName' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId, of a subscription; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionKey; likewise' CODEC(ZSTD(1)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'catchEventId; likewise' CODEC(ZSTD(1)),
    element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'catchEventInstanceKey; -1 of a start event' CODEC(Delta(8), ZSTD(1)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '1 BROADCASTED or CREATED, 2 DELETED' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'first BROADCASTED, or CREATED' CODEC(Delta(8), ZSTD(1)),
    deleted_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'DELETED' CODEC(Delta(8), ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, definition and element of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "signals"}}
ORDER BY (source, value_type, key)
SETTINGS {{.TableSettings}};
{{.Distributed "signals" "cityHash64(source, '')"}}

{{.CreateFeed "signals"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    JSONExtract(r.extra, 'Tuple(signalName String, catchEventId String, catchEventInstanceKey Nullable(Int64))') AS said
SELECT r.source AS source, r.value_type AS value_type, r.key AS key, max(r.tenant_id) AS tenant_id, max(said.1) AS name,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key,
    max(said.2) AS element_id, max(said.3) AS element_instance_key,
    max(if(r.intent = 'DELETED', 2, 1)) AS state,
    min(if(r.intent IN ('BROADCASTED', 'CREATED'), at, NULL)) AS created_at, max(if(r.intent = 'DELETED', at, NULL)) AS deleted_at,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.process_definition_key, 0)), '\t', said.2), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type IN ('SIGNAL', 'SIGNAL_SUBSCRIPTION') AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, value_type, key;

-- One row for each signal that was broadcast, and for each subscription to a signal.
{{.CreateView "v_signals"}}
(
    {{columns "source" "key" "tenant_id"}},
    signal_name LowCardinality(String) COMMENT 'signalName',
    kind String COMMENT 'BROADCAST or SUBSCRIPTION',
    {{columns "bpmn_process_id" "process_definition_key" "element_id" "element_instance_key"}},
    state String COMMENT 'BROADCASTED; WAITING, DELETED of a subscription',
    broadcast_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (first BROADCASTED)',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    deleted_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (DELETED)'
) AS
WITH splitByChar('\t', s.migrated) AS now, s.value_type = 'SIGNAL' AS broadcast
SELECT source, key, tenant_id, name AS signal_name, if(broadcast, 'BROADCAST', 'SUBSCRIPTION') AS kind,
    if(s.migrated = '', s.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(s.migrated = '', s.process_definition_key, toInt64OrNull(now[3])) AS process_definition_key,
    if(s.migrated = '', s.element_id, now[4]) AS element_id, nullIf(s.element_instance_key, -1) AS element_instance_key,
    multiIf(broadcast, 'BROADCASTED', s.state = 2, 'DELETED', 'WAITING') AS state,
    if(broadcast, s.created_at, NULL) AS broadcast_at, if(broadcast, NULL, s.created_at) AS created_at, deleted_at
FROM {{.Database}}.signals AS s FINAL;
