-- Evaluations of DMN decisions, one row each: by business rule tasks, or asked
-- for alone, which have no instance. A record says all there is to say of one,
-- EVALUATED or FAILED, and migrations do not change it: it tells what was so
-- then. The decisions that it needed, their inputs and the rules that matched
-- stand in the extra of the record, under evaluatedDecisions.
CREATE TABLE IF NOT EXISTS {{.Table "decisions"}}{{.OnCluster}}
(
    source                 LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    process_instance_key   String CODEC(ZSTD(1)),                 -- processInstanceKey; -1 when it was asked for alone
    key                    Int64  CODEC(Delta(8), T64('bit'), ZSTD(1)), -- of the record
    tenant_id              SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- tenantId
    bpmn_process_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- bpmnProcessId, as it was then
    process_definition_key SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- processDefinitionKey, as it was then
    element_id             SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- elementId, as it was then
    element_distance       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- key - elementInstanceKey, which is small
    decision_id            SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionId
    decision_name          SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionName
    decision_version       SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- decisionVersion
    decision_key           SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)),        -- decisionKey: that version of the decision
    requirements_id        SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- decisionRequirementsId
    output                 SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- decisionOutput, JSON
    failed                 SimpleAggregateFunction(max, UInt8) CODEC(ZSTD(1)),                  -- 1 of FAILED
    failed_decision_id     SimpleAggregateFunction(max, LowCardinality(String)) CODEC(ZSTD(1)), -- failedDecisionId: it, or one that it needs
    failure                SimpleAggregateFunction(max, String) CODEC(ZSTD(1)),                 -- evaluationFailureMessage
    evaluated_at           SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(Delta(8), ZSTD(1)), -- EVALUATED or FAILED
    INDEX ix_evaluated evaluated_at TYPE minmax GRANULARITY 1
)
ENGINE = {{.Engine "AggregatingMergeTree" "decisions"}}
PRIMARY KEY (source, {{.Begun}})
ORDER BY    (source, {{.Begun}}, process_instance_key, key)
SETTINGS {{.TableSettings}};
{{.Distributed "decisions" "cityHash64(source, process_instance_key)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.decisions_mv{{.OnCluster}} TO {{.Table "decisions"}} AS
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

-- What people query: one row for each evaluation, whatever has been merged so far.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_decisions{{.OnCluster}} AS
SELECT source, process_instance_key, key, tenant_id, bpmn_process_id, process_definition_key, element_id,
    nullIf(key - element_distance, -1) AS element_instance_key,
    decision_id, decision_name, decision_version, decision_key, requirements_id,
    if(d.failed, 'FAILED', 'EVALUATED') AS state, output, failed_decision_id, failure, evaluated_at
FROM {{.Database}}.decisions AS d FINAL;
