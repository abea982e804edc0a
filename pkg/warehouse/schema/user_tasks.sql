-- User tasks of the engine, one row each. Tasks that job workers offer to
-- people are jobs.
{{.CreateTable "user_tasks"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record: userTaskKey' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId; what it is after a migration is in migrated' CODEC(ZSTD(1)),
    version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionVersion; likewise' CODEC(ZSTD(3)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId; likewise' CODEC(ZSTD(1)),
    element_distance SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'key - elementInstanceKey, which is small' CODEC(ZSTD(1)),
    assigned SimpleAggregateFunction(max, String) COMMENT 'order and assignee of the last CREATED, ASSIGNED or UPDATED, tab between' CODEC(ZSTD(1)),
    offered SimpleAggregateFunction(max, String) COMMENT 'order, dueDate and candidateGroupsList of the last CREATED or UPDATED, tab between' CODEC(ZSTD(1)),
    state SimpleAggregateFunction(max, UInt8) COMMENT '1 any event seen, 2 CANCELED, 3 COMPLETED' CODEC(ZSTD(1)),
    created_at SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'CREATED' CODEC(Delta(8), ZSTD(1)),
    assigned_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'last CREATED or ASSIGNED with an assignee' CODEC(Delta(8), ZSTD(1)),
    ended_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'COMPLETED or CANCELED' CODEC(Delta(8), ZSTD(1)),
    migrated SimpleAggregateFunction(max, String) COMMENT 'order, process, version and element of the last MIGRATED, tab between; empty when there was none' CODEC(ZSTD(1)),
    INDEX ix_created created_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "user_tasks"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "user_tasks" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "user_tasks"}} AS
WITH
    if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL) AS at,
    if(r.intent IN ('CREATED', 'ASSIGNED', 'UPDATED'), JSONExtractString(r.extra, 'assignee'), '') AS assignee
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.version) AS version, max(r.element_id) AS element_id,
    max(r.key - r.element_instance_key) AS element_distance,
    max(if(r.intent IN ('CREATED', 'ASSIGNED', 'UPDATED'), concat({{.Order}}, '\t', assignee), '')) AS assigned,
    max(if(r.intent IN ('CREATED', 'UPDATED'), concat({{.Order}}, '\t', JSONExtractString(r.extra, 'dueDate'), '\t', JSONExtractRaw(r.extra, 'candidateGroupsList')), '')) AS offered,
    max(multiIf(r.intent = 'COMPLETED', 3, r.intent = 'CANCELED', 2, 1)) AS state,
    min(if(r.intent = 'CREATED', at, NULL)) AS created_at,
    max(if(r.intent IN ('CREATED', 'ASSIGNED') AND assignee != '', at, NULL)) AS assigned_at,
    max(if(r.intent IN ('COMPLETED', 'CANCELED'), at, NULL)) AS ended_at,
    max(if(r.intent = 'MIGRATED', concat({{.Order}}, '\t', toString(r.bpmn_process_id), '\t', toString(ifNull(r.version, 0)), '\t', toString(r.element_id)), '')) AS migrated
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'USER_TASK' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

-- One row for each user task of the engine. Those that job workers offer to people are jobs.
{{.CreateView "v_user_tasks"}}
(
    {{columns "source" "process_instance_key"}},
    key Int64 COMMENT 'user task (key, userTaskKey)',
    {{columns "tenant_id" "bpmn_process_id" "version" "element_id" "element_instance_key"}},
    assignee String COMMENT 'who has it, or had it at its end (assignee); empty when nobody has, also after an unassignment',
    candidate_groups Array(String) COMMENT 'groups it is offered to (candidateGroupsList)',
    due_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (dueDate)',
    state String COMMENT 'CREATED, COMPLETED, CANCELED',
    created_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CREATED)',
    assigned_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, when a person got it last: at its creation (CREATED), or later (ASSIGNED); NULL when none ever has',
    completed_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (COMPLETED)',
    canceled_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (CANCELED)',
    waiting_ms Nullable(Int64) COMMENT 'ms from created_at to assigned_at',
    handling_ms Nullable(Int64) COMMENT 'ms from assigned_at to completed_at; NULL unless completed',
    duration_ms Nullable(Int64) COMMENT 'ms from created_at to completed_at; NULL unless completed'
) AS
WITH splitByChar('\t', migrated) AS now, splitByChar('\t', offered) AS offer
SELECT source, process_instance_key, key, tenant_id,
    if(migrated = '', u.bpmn_process_id, now[2]) AS bpmn_process_id,
    if(migrated = '', u.version, toInt64OrNull(now[3])) AS version,
    if(migrated = '', u.element_id, now[4]) AS element_id,
    key - element_distance AS element_instance_key,
    substring(assigned, 37) AS assignee,
    JSONExtract(offer[3], 'Array(String)') AS candidate_groups,
    parseDateTime64BestEffortOrNull(offer[2], 3, 'UTC') AS due_at,
    transform(u.state, [2, 3], ['CANCELED', 'COMPLETED'], 'CREATED') AS state,
    created_at, assigned_at,
    if(u.state = 3, ended_at, NULL) AS completed_at,
    if(u.state = 2, ended_at, NULL) AS canceled_at,
    dateDiff('millisecond', created_at, assigned_at) AS waiting_ms,
    dateDiff('millisecond', assigned_at, if(u.state = 3, ended_at, NULL)) AS handling_ms,
    dateDiff('millisecond', created_at, if(u.state = 3, ended_at, NULL)) AS duration_ms
FROM {{.Database}}.user_tasks AS u FINAL;
