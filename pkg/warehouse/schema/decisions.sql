-- Evaluations of DMN decisions, one row each: by business rule tasks, or without an
-- instance. A single record, EVALUATED or FAILED, describes an evaluation, and migrations do
-- not change it. Required decisions, their inputs, and the matched rules are in extra of the
-- record, under evaluatedDecisions.
TABLE decisions
source
process_instance_key key(String) -- processInstanceKey; -1 when it was asked for alone
key tenant_id
bpmn_process_id max(Text) -- bpmnProcessId, as it was then
process_definition_key max(Int64?) -- processDefinitionKey, as it was then
element_id max(Text) -- elementId, as it was then
element_distance max(Int64?) = r.key - r.element_instance_key -- key - elementInstanceKey, which is small
decision_id max(Text) = said.1 -- decision in the DMN model (decisionId)
decision_name max(Text) = said.2 -- its name (decisionName)
decision_version max(Int64?) = said.3 -- its version (decisionVersion)
decision_key max(Int64?) = said.4 -- of that version (decisionKey)
requirements_id max(Text) = said.5 -- file that holds it (decisionRequirementsId)
output max(String) = said.6 -- JSON of the result (decisionOutput), a text with its quotes; null when it failed
failed max(UInt8) = r.intent = 'FAILED' -- 1 of FAILED
failed_decision_id max(Text) = said.7 -- decision that failed (failedDecisionId): this one, or one that it needs
failure max(String) = said.8 -- why it failed (evaluationFailureMessage)
evaluated_at max(Time?) = {{.At}} -- UTC (EVALUATED or FAILED)
INDEX ix_evaluated evaluated_at TYPE minmax GRANULARITY 1
WITH JSONExtract(r.extra, 'Tuple(decisionId String, decisionName String, decisionVersion Nullable(Int64), decisionKey Nullable(Int64), decisionRequirementsId String, decisionOutput String, failedDecisionId String, evaluationFailureMessage String)') AS said
FEED flow.records AS r
    WHERE r.value_type = 'DECISION_EVALUATION' AND r.record_type = 'EVENT' AND r.key > 0

-- One row for each evaluation of a DMN decision. Its inputs and the matched rules are in v_records, in extra under evaluatedDecisions.
VIEW v_decisions
source
process_instance_key String -- process instance (processInstanceKey), text by contract; -1 of a decision that was asked for alone
key Int64 -- evaluation (key)
tenant_id
bpmn_process_id Text -- process it belonged to then (bpmnProcessId)
process_definition_key Int64? -- version of that process (processDefinitionKey)
element_id Text -- business rule task in the BPMN model, as it was then (elementId)
process_name element_name
element_instance_key Int64? = nullIf(key - element_distance, -1) -- element instance (elementInstanceKey); NULL of a decision that was asked for alone
decision_id decision_name decision_version decision_key requirements_id
state String = if(d.failed, 'FAILED', 'EVALUATED') -- EVALUATED, FAILED
output failed_decision_id failure evaluated_at
FROM flow.decisions AS d FINAL
