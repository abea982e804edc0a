-- What elements wait for, and the messages that may come: timers, subscriptions
-- to messages (as the partition of the instance knows them) and published
-- messages, one row each. They are one table, because each materialized view
-- costs something at every insert, whatever it finds there.
CREATE TABLE IF NOT EXISTS {{.Table "waits"}}{{.OnCluster}}
(
    source                 LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    value_type             LowCardinality(String) CODEC(ZSTD(1)), -- TIMER, PROCESS_MESSAGE_SUBSCRIPTION or MESSAGE
    process_instance_key   String CODEC(ZSTD(1)),                 -- processInstanceKey; empty of a message
    key                    Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id              SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId, of a subscription; what it is after a migration stands in migrated
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- processDefinitionKey, of a timer; likewise
    element_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId or targetElementId; likewise
    element_instance_key   SimpleAggregateFunction(max, Nullable(Int64)) CODEC(Delta(8), ZSTD(1)), -- elementInstanceKey
    name                   SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- name or messageName
    correlation_key        SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- correlationKey
    due                    SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- dueDate of a timer, deadline of a message: ms since 1970
    state                  SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)), -- 1 waiting, 2 TRIGGERED or CORRELATED, 3 CANCELED, DELETED or EXPIRED
    created_at             SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CREATED, CREATING or PUBLISHED
    happened_at            SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- last TRIGGERED or CORRELATED
    ended_at               SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- CANCELED, DELETED or EXPIRED
    migrated               SimpleAggregateFunction(max, String) CODEC(ZSTD(1)), -- order, process, definition and element of the last MIGRATED, tab between; empty when there was none
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "waits"}}
PRIMARY KEY (source, value_type, {{.Begun}})
ORDER BY    (source, value_type, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "waits" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.waits_mv{{.OnCluster}} TO {{.Table "waits"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    JSONExtract(r.extra, 'Tuple(name String, messageName String, correlationKey String, dueDate Nullable(Int64))') AS said,
    multiIf(r.intent IN ('CANCELED', 'DELETED', 'EXPIRED'), 3, r.intent IN ('TRIGGERED', 'CORRELATED'), 2, 1) AS step
SELECT r.source AS source, r.value_type AS value_type, r.process_instance_key AS process_instance_key, r.key AS key,
    max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key,
    max(r.element_id) AS element_id, max(r.element_instance_key) AS element_instance_key,
    max(if(said.1 = '', said.2, said.1)) AS name, max(said.3) AS correlation_key,
    max(if(r.value_type = 'TIMER', said.4, r.deadline)) AS due, max(step) AS state,
    min(if(r.intent IN ('CREATED', 'CREATING', 'PUBLISHED'), at, NULL)) AS created_at,
    max(if(step = 2, at, NULL)) AS happened_at, max(if(step = 3, at, NULL)) AS ended_at,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.process_definition_key, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type IN ('TIMER', 'PROCESS_MESSAGE_SUBSCRIPTION', 'MESSAGE') AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, value_type, process_instance_key, key;

-- What people query: one row for each timer, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_timers{{.OnCluster}} AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.process_definition_key, toInt64OrNull(now[3])) AS process_definition_key,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    element_instance_key, transform(w.state, [2, 3], ['TRIGGERED', 'CANCELED'], 'WAITING') AS state,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS due_at,
    created_at, happened_at AS triggered_at, ended_at AS canceled_at
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'TIMER';

-- One row for each subscription of an element to a message.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_message_waits{{.OnCluster}} AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    element_instance_key, name AS message_name, correlation_key,
    transform(w.state, [2, 3], ['CORRELATED', 'DELETED'], 'WAITING') AS state,
    created_at, happened_at AS correlated_at, ended_at AS deleted_at
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'PROCESS_MESSAGE_SUBSCRIPTION';

-- One row for each message that was published.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_messages{{.OnCluster}} AS
SELECT source, key, tenant_id, name AS message_name, correlation_key,
    if(w.state = 3, 'EXPIRED', 'PUBLISHED') AS state, created_at AS published_at,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS expires_at, ended_at AS expired_at
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'MESSAGE';
