-- Evaluations of DMN decisions, one row each: by business rule tasks, or evaluated
-- without an instance. One record, EVALUATED or FAILED, has all of it, and migrations do
-- not change it. The decisions that it needed, their inputs and the matched rules are in
-- extra of the record, under evaluatedDecisions.
{{.CreateTable "decisions"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    process_instance_key String COMMENT 'processInstanceKey; -1 when it was asked for alone' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), T64('bit'), ZSTD(1)),
    tenant_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'tenantId' CODEC(ZSTD(1)),
    bpmn_process_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'bpmnProcessId, as it was then' CODEC(ZSTD(1)),
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'processDefinitionKey, as it was then' CODEC(ZSTD(1)),
    element_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'elementId, as it was then' CODEC(ZSTD(1)),
    element_distance SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'key - elementInstanceKey, which is small' CODEC(ZSTD(1)),
    decision_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'decisionId' CODEC(ZSTD(1)),
    decision_name SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'decisionName' CODEC(ZSTD(1)),
    decision_version SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'decisionVersion' CODEC(ZSTD(1)),
    decision_key SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'decisionKey: that version of the decision' CODEC(ZSTD(1)),
    requirements_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'decisionRequirementsId' CODEC(ZSTD(1)),
    output SimpleAggregateFunction(max, String) COMMENT 'decisionOutput, JSON' CODEC(ZSTD(1)),
    failed SimpleAggregateFunction(max, UInt8) COMMENT '1 of FAILED' CODEC(ZSTD(1)),
    failed_decision_id SimpleAggregateFunction(max, LowCardinality(String)) COMMENT 'failedDecisionId: it, or one that it needs' CODEC(ZSTD(1)),
    failure SimpleAggregateFunction(max, String) COMMENT 'evaluationFailureMessage' CODEC(ZSTD(1)),
    evaluated_at SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'EVALUATED or FAILED' CODEC(Delta(8), ZSTD(1)),
    INDEX ix_evaluated evaluated_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "decisions"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "decisions" "cityHash64(source, process_instance_key)"}}

{{.CreateFeed "decisions"}} AS
WITH JSONExtract(r.extra, 'Tuple(decisionId String, decisionName String, decisionVersion Nullable(Int64), decisionKey Nullable(Int64), decisionRequirementsId String, decisionOutput String, failedDecisionId String, evaluationFailureMessage String)') AS said
SELECT r.source AS source, r.process_instance_key AS process_instance_key, r.key AS key, max(r.tenant_id) AS tenant_id,
    max(r.bpmn_process_id) AS bpmn_process_id, max(r.process_definition_key) AS process_definition_key, max(r.element_id) AS element_id,
    max(r.key - r.element_instance_key) AS element_distance,
    max(said.1) AS decision_id, max(said.2) AS decision_name, max(said.3) AS decision_version, max(said.4) AS decision_key,
    max(said.5) AS requirements_id, max(said.6) AS output, max(r.intent = 'FAILED') AS failed,
    max(said.7) AS failed_decision_id, max(said.8) AS failure,
    max(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS evaluated_at
FROM {{.Table "records"}} AS r
WHERE r.value_type = 'DECISION_EVALUATION' AND r.record_type = 'EVENT' AND r.key > 0
GROUP BY source, process_instance_key, key;

-- One row for each evaluation of a DMN decision. Its inputs and the rules that matched stand in v_records, in extra under evaluatedDecisions.
{{.CreateView "v_decisions"}}
(
    {{columns "source"}},
    process_instance_key String COMMENT 'process instance (processInstanceKey), text by contract; -1 of a decision that was asked for alone',
    key Int64 COMMENT 'evaluation (key)',
    {{columns "tenant_id"}},
    bpmn_process_id LowCardinality(String) COMMENT 'process it belonged to then (bpmnProcessId)',
    process_definition_key Nullable(Int64) COMMENT 'version of that process (processDefinitionKey)',
    element_id LowCardinality(String) COMMENT 'business rule task in the BPMN model, as it was then (elementId)',
    element_instance_key Nullable(Int64) COMMENT 'element instance (elementInstanceKey); NULL of a decision that was asked for alone',
    decision_id LowCardinality(String) COMMENT 'decision in the DMN model (decisionId)',
    decision_name LowCardinality(String) COMMENT 'its name (decisionName)',
    decision_version Nullable(Int64) COMMENT 'its version (decisionVersion)',
    decision_key Nullable(Int64) COMMENT 'of that version (decisionKey)',
    requirements_id LowCardinality(String) COMMENT 'file that holds it (decisionRequirementsId)',
    state String COMMENT 'EVALUATED, FAILED',
    output String COMMENT 'JSON of the result (decisionOutput), a text with its quotes; null when it failed',
    failed_decision_id LowCardinality(String) COMMENT 'decision that failed (failedDecisionId): this one, or one that it needs',
    failure String COMMENT 'why it failed (evaluationFailureMessage)',
    evaluated_at Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC (EVALUATED or FAILED)'
) AS
SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, process_definition_key, element_id,
    nullIf(key - element_distance, -1) AS element_instance_key,
    decision_id, decision_name, decision_version, decision_key, requirements_id,
    if(d.failed, 'FAILED', 'EVALUATED') AS state, output, failed_decision_id, failure, evaluated_at
FROM {{.Database}}.decisions AS d FINAL;
