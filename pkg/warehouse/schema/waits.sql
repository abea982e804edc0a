-- What elements wait for, and the messages that may come: timers, subscriptions to
-- messages (as the partition of the instance has them) and published messages, one row
-- each. They share one table because each materialized view costs something at every
-- insert, whatever it finds there.
--
-- A timer of a start event belongs to no instance: its CREATED names -1, or the instance
-- that the timer before it started, and its TRIGGERED the instance that it starts. Only
-- its key is the same.
{{.CreateTable "waits"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    value_type LowCardinality(String) COMMENT 'TIMER, PROCESS_MESSAGE_SUBSCRIPTION or MESSAGE' CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey; empty of a message, and of a timer of a start event' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId, of a subscription; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionKey, of a timer; likewise' CODEC(ZSTD(1)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId or targetElementId; likewise' CODEC(ZSTD(1)),
    element_instance_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'elementInstanceKey' CODEC(Delta(8), ZSTD(1)),
    name SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'name or messageName' CODEC(ZSTD(1)),
    correlation_key SimpleAggregateFunction(max, String) COMMENT 'correlationKey' CODEC(ZSTD(1)),
    due SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'dueDate of a timer, deadline of a message: ms since 1970' CODEC(ZSTD(1)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '1 waiting, 2 TRIGGERED or CORRELATED, 3 CANCELED, DELETED or EXPIRED' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CREATED, CREATING or PUBLISHED' CODEC(Delta(8), ZSTD(1)),
    happened_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'last TRIGGERED or CORRELATED' CODEC(Delta(8), ZSTD(1)),
    first_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'first TRIGGERED or CORRELATED' CODEC(Delta(8), ZSTD(1)),
    happened SimpleAggregateFunction(groupUniqArrayArray, Array(Int64)) COMMENT 'one number for each CORRELATED: its position, or a hash of its identity' CODEC(ZSTD(1)),
    stays SimpleAggregateFunction(max, UInt8) COMMENT '1 of a subscription that is not interrupting: a message does not end it' CODEC(ZSTD(1)),
    started SimpleAggregateFunction(max, String) COMMENT 'processInstanceKey of TRIGGERED, of a timer of a start event' CODEC(ZSTD(1)),
    ended_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CANCELED, DELETED or EXPIRED' CODEC(Delta(8), ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, definition and element of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "waits"}}
PRIMARY KEY (source, value_type, {{.Begun}})
ORDER BY    (source, value_type, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "waits" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "waits"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    JSONExtract(r.extra, 'Tuple(name String, messageName String, correlationKey String, dueDate Nullable(Int64), interrupting Nullable(Bool))') AS said,
    r.value_type = 'TIMER' AND ifNull(r.element_instance_key = -1, 0) AS of_start,
    if(of_start, '', r.process_instance_key) AS instance,
    multiIf(r.intent IN ('CANCELED', 'DELETED', 'EXPIRED'), 3, r.intent IN ('TRIGGERED', 'CORRELATED'), 2, 1) AS step
SELECT r.source AS source, r.value_type AS value_type, instance AS process_instance_key, r.key AS key,
    max(r.tenant_id) AS tenant_id, max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key,
    max(r.element_id) AS element_id, max(r.element_instance_key) AS element_instance_key,
    max(if(said.1 = '', said.2, said.1)) AS name, max(said.3) AS correlation_key,
    max(if(r.value_type = 'TIMER', said.4, r.deadline)) AS due, max(step) AS state,
    min(if(r.intent IN ('CREATED', 'CREATING', 'PUBLISHED'), at, NULL)) AS created_at,
    max(if(step = 2, at, NULL)) AS happened_at, min(if(step = 2, at, NULL)) AS first_at,
    groupUniqArrayIf({{.Mark}}, r.intent = 'CORRELATED') AS happened, max(ifNull(NOT said.5, 0)) AS stays,
    max(if(of_start AND step = 2, r.process_instance_key, '')) AS started, max(if(step = 3, at, NULL)) AS ended_at,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.process_definition_key, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type IN ('TIMER', 'PROCESS_MESSAGE_SUBSCRIPTION', 'MESSAGE') AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, value_type, process_instance_key, key;

-- One row for each timer. A timer of a start event belongs to no instance: process_instance_key is empty, and started_process_instance_key is the instance that it started.
--
-- On a cluster the records of a timer of a start event name several instances, so that they
-- may be on several shards, where FINAL does not find them.
{{.CreateView "v_timers"}}
(
    {{columns "source"}},
    process_instance_key String COMMENT 'process instance that waits for it (processInstanceKey), text by contract; empty of a start event',
    key Int64 COMMENT 'timer (key)',
    {{columns "tenant_id"}},
    process_definition_key Nullable(Int64) COMMENT 'definition it belongs to now (processDefinitionKey); records of timers have no bpmnProcessId',
    element_id String COMMENT 'element that it triggers (targetElementId)',
    {{columns "element_instance_key"}},
    state String COMMENT 'WAITING, TRIGGERED, CANCELED',
    due_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (dueDate)',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    triggered_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last time (TRIGGERED)',
    canceled_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CANCELED)',
    started_process_instance_key String COMMENT 'process instance that a timer of a start event started (processInstanceKey of TRIGGERED); else empty'
) AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.process_definition_key, toInt64OrNull(now[3])) AS process_definition_key,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    nullIf(w.element_instance_key, -1) AS element_instance_key, transform(w.state, [2, 3], ['TRIGGERED', 'CANCELED'], 'WAITING') AS state,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS due_at,
    created_at, happened_at AS triggered_at, ended_at AS canceled_at, started AS started_process_instance_key
{{- if .Cluster}}
FROM
(
    SELECT source, value_type, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.process_definition_key) AS process_definition_key,
        max(p.element_id) AS element_id, max(p.element_instance_key) AS element_instance_key, max(p.due) AS due, max(p.state) AS state,
        min(p.created_at) AS created_at, max(p.happened_at) AS happened_at, max(p.ended_at) AS ended_at, max(p.started) AS started, max(p.migrated) AS migrated
    FROM {{.Database}}.waits AS p
    WHERE value_type = 'TIMER'
    GROUP BY source, value_type, process_instance_key, key
) AS w
{{- else}}
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'TIMER'
{{- end}};

-- One row for each subscription of an element to a message, as the partition of the instance knows it.
{{.CreateView "v_message_waits"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'subscription (key of PROCESS_MESSAGE_SUBSCRIPTION)',
    {{columns "tenant_id" "bpmn_process_id" "element_id" "element_instance_key"}},
    message_name LowCardinality(String) COMMENT 'messageName',
    correlation_key String COMMENT 'correlationKey',
    state String COMMENT 'WAITING; CORRELATED: ended, and correlated at least once; DELETED: ended, and never correlated',
    interrupting UInt8 COMMENT '1 when the first message ends it; 0 of one that waits for more (interrupting)',
    correlations UInt64 COMMENT 'number of messages (CORRELATED)',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATING)',
    first_correlated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, first time (CORRELATED)',
    correlated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, last time (CORRELATED)',
    deleted_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (DELETED): given up, or closed after its last message'
) AS
WITH splitByChar('\t', migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', w.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', w.element_id, now[4]) AS element_id,
    element_instance_key, name AS message_name, correlation_key,
    multiIf(w.state = 1 OR w.state = 2 AND stays, 'WAITING', notEmpty(happened), 'CORRELATED', 'DELETED') AS state,
    NOT stays AS interrupting, length(happened) AS correlations,
    created_at, first_at AS first_correlated_at, happened_at AS correlated_at, ended_at AS deleted_at
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'PROCESS_MESSAGE_SUBSCRIPTION';

-- One row for each published message.
{{.CreateView "v_messages"}}
(
    {{columns "source"}},
    key Int64 COMMENT 'message (key)',
    {{columns "tenant_id"}},
    message_name LowCardinality(String) COMMENT 'name',
    correlation_key String COMMENT 'correlationKey',
    state String COMMENT 'PUBLISHED, EXPIRED',
    published_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (PUBLISHED)',
    expires_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (deadline)',
    expired_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (EXPIRED)'
) AS
SELECT source, key, tenant_id, name AS message_name, correlation_key,
    if(w.state = 3, 'EXPIRED', 'PUBLISHED') AS state, created_at AS published_at,
    if(due > 0, fromUnixTimestamp64Milli(assumeNotNull(due), 'UTC'), NULL) AS expires_at, ended_at AS expired_at
FROM {{.Database}}.waits AS w FINAL
WHERE value_type = 'MESSAGE';
