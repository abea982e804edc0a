package warehouse_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func elementEvent(intent, key, elementType, more string) string {
	return `{"key":` + key + `,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"` + intent + `"` + more +
		`,"value":{"bpmnProcessId":"p","version":1,"processInstanceKey":"7","elementId":"e","bpmnElementType":"` + elementType + `"}}`
}

func jobEvent(intent, worker string, retries, more string) string {
	if !strings.Contains(more, `"id"`) {
		more += `,"id":"` + intent + worker + `"`
	}
	return `{"key":9,"recordType":"EVENT","valueType":"JOB","intent":"` + intent + `"` + more +
		`,"value":{"bpmnProcessId":"p","processDefinitionVersion":1,"processInstanceKey":"7","elementId":"e","type":"t","worker":"` + worker + `","retries":` + retries + `,"deadline":-1}}`
}

func subscription(intent, key, interrupting, more string) string {
	return `{"key":` + key + `,"recordType":"EVENT","valueType":"PROCESS_MESSAGE_SUBSCRIPTION","intent":"` + intent + `"` + more +
		`,"value":{"bpmnProcessId":"p","processInstanceKey":7,"elementId":"e","elementInstanceKey":8,"messageName":"poke","interrupting":` + interrupting + `}}`
}

func taskEvent(intent, key, assignee, more string) string {
	return `{"key":` + key + `,"recordType":"EVENT","valueType":"USER_TASK","intent":"` + intent + `"` + more +
		`,"value":{"bpmnProcessId":"p","processInstanceKey":7,"elementId":"e","elementInstanceKey":8,"assignee":"` + assignee + `"}}`
}

// recordOf is a record of a value type that only a view reads.
func recordOf(valueType, intent string, key int, second int, value string) string {
	return fmt.Sprintf(`{"id":"%s-%s-%d-%d","key":%[3]d,"recordType":"EVENT","valueType":"%[1]s","intent":"%[2]s","timestamp":%[5]d,"value":{%[6]s}}`,
		valueType, intent, key, second, 1763700000000+int64(second)*1000, value)
}

// definitionOf is a version of process p with these names.
func definitionOf(version int, process, element string) string {
	xml := `<bpmn:definitions name="all"><bpmn:message id="m" name=""/><bpmn:process isExecutable="true" name="` + process + `" id="p"><bpmn:userTask id="e"
		name="` + element + `"><zeebe:header key="k" name="no element"/></bpmn:userTask></bpmn:process></bpmn:definitions>`
	return recordOf("PROCESS", "CREATED", version, version, fmt.Sprintf(`"bpmnProcessId":"p","version":%d,"processDefinitionKey":%[1]d,"resource":"%s"`, version, base64.StdEncoding.EncodeToString([]byte(xml))))
}

// TestAggregatesOfOddRecords gives the aggregate tables the rarer records of engines and clients,
// in both orders and twice.
func TestAggregatesOfOddRecords(t *testing.T) {
	t.Parallel()
	const at = `,"timestamp":1763700000000`
	cases := []struct {
		name    string
		records []string
		query   string
		want    string
	}{
		{
			"names are those of the latest version",
			[]string{definitionOf(10, "Order &amp; ship", "Check &lt;it&gt;"), definitionOf(9, "Orders", "Look"), elementEvent("ELEMENT_ACTIVATED", "7", "PROCESS", at), elementEvent("ELEMENT_ACTIVATED", "8", "USER_TASK", at),
				recordOf("TIMER", "CREATED", 3, 1, `"processDefinitionKey":9,"processInstanceKey":7,"targetElementId":"e","elementInstanceKey":8,"dueDate":1763700000000`)},
			"SELECT p.process_name, e.process_name, e.element_name, t.bpmn_process_id, t.process_name, t.element_name FROM {db}.v_process_instances AS p, {db}.v_active_elements AS e, {db}.v_timers AS t WHERE p.source = {case} AND e.source = {case} AND e.key = 8 AND t.source = {case}",
			"Order & ship	Order & ship	Check <it>	p	Order & ship	Check <it>",
		},
		{
			"a start event waits for messages, on every partition",
			[]string{recordOf("MESSAGE_START_EVENT_SUBSCRIPTION", "CREATED", 5, 1, `"bpmnProcessId":"p","processDefinitionKey":2,"startEventId":"s","messageName":"order"`),
				recordOf("MESSAGE_START_EVENT_SUBSCRIPTION", "CORRELATED", 5, 2, `"bpmnProcessId":"p","processDefinitionKey":2,"startEventId":"s","messageName":"order","processInstanceKey":7`),
				recordOf("MESSAGE_START_EVENT_SUBSCRIPTION", "CORRELATED", 5, 3, `"bpmnProcessId":"p","processDefinitionKey":2,"startEventId":"s","messageName":"order","processInstanceKey":8`),
				recordOf("MESSAGE_START_EVENT_SUBSCRIPTION", "CREATED", 6, 1, `"bpmnProcessId":"p","processDefinitionKey":1,"startEventId":"s","messageName":"order"`),
				recordOf("MESSAGE_START_EVENT_SUBSCRIPTION", "DELETED", 6, 4, `"bpmnProcessId":"p","processDefinitionKey":1,"startEventId":"s","messageName":"order"`)},
			"SELECT groupArray((key, bpmn_process_id, process_definition_key, element_id, message_name, state, instances, toString(created_at), toString(correlated_at), toString(deleted_at))) FROM (SELECT * FROM {db}.v_message_starts WHERE source = {case} ORDER BY key)",
			"[(5,'p',2,'s','order','WAITING',2,'2025-11-21 04:40:01.000','2025-11-21 04:40:03.000',NULL),(6,'p',1,'s','order','DELETED',0,'2025-11-21 04:40:01.000',NULL,'2025-11-21 04:40:04.000')]",
		},
		{
			"an escalation that nothing caught",
			[]string{recordOf("ESCALATION", "NOT_ESCALATED", 5, 1, `"processInstanceKey":7,"escalationCode":"E","throwElementId":"up","catchElementId":""`)},
			"SELECT process_instance_key, escalation_code, throw_element_id, catch_element_id, caught, thrown_at FROM {db}.v_escalations WHERE source = {case}",
			"7	E	up		0	2025-11-21 04:40:01.000",
		},
		{
			"a modification",
			[]string{recordOf("PROCESS_INSTANCE_MODIFICATION", "MODIFIED", 7, 1, `"processInstanceKey":7,"activateInstructions":[{"elementId":"a","variableInstructions":[]},{"elementId":"b"}],"terminateInstructions":[{"elementInstanceKey":9}]`)},
			"SELECT process_instance_key, activated, terminated, modified_at FROM {db}.v_modifications WHERE source = {case}",
			"7	['a','b']	[9]	2025-11-21 04:40:01.000",
		},
		{
			"errors whose messages differ in numbers are one",
			[]string{recordOf("JOB", "FAILED", 5, 1, `"bpmnProcessId":"p","processInstanceKey":7,"elementId":"e","type":"t","errorMessage":"order 17 failed"`),
				recordOf("JOB", "FAILED", 5, 2, `"bpmnProcessId":"p","processInstanceKey":8,"elementId":"e","type":"t","errorMessage":"order 18 failed"`),
				recordOf("INCIDENT", "CREATED", 6, 3, `"bpmnProcessId":"p","processInstanceKey":8,"elementId":"e","errorType":"JOB_NO_RETRIES","errorMessage":"order 18 failed"`)},
			"SELECT groupArray((kind, job_type, error, message, errors, instances, toString(first_at), toString(last_at))) FROM (SELECT * FROM {db}.v_errors WHERE source = {case} ORDER BY kind)",
			"[('INCIDENT','','JOB_NO_RETRIES','order # failed',1,1,'2025-11-21 04:40:03.000','2025-11-21 04:40:03.000'),('JOB_FAILED','t','','order # failed',2,2,'2025-11-21 04:40:01.000','2025-11-21 04:40:02.000')]",
		},
		{
			"an element without the time of its activation does not last 56 years",
			[]string{elementEvent("ELEMENT_ACTIVATED", "8", "USER_TASK", ""), elementEvent("ELEMENT_COMPLETED", "8", "USER_TASK", at)},
			"SELECT state, activated_at, completed_at, duration_ms FROM {db}.v_element_instances WHERE source = {case}",
			`COMPLETED	\N	2025-11-21 04:40:00.000	\N`,
		},
		{
			"an element that has completed at an unknown time is not active",
			[]string{elementEvent("ELEMENT_ACTIVATED", "8", "USER_TASK", at), elementEvent("ELEMENT_COMPLETED", "8", "USER_TASK", "")},
			"SELECT state, completed_at, duration_ms FROM {db}.v_element_instances WHERE source = {case}",
			`COMPLETED	\N	\N`,
		},
		{
			"an instance that has completed at an unknown time is not active",
			[]string{elementEvent("ELEMENT_ACTIVATED", "7", "PROCESS", at), elementEvent("ELEMENT_COMPLETED", "7", "PROCESS", "")},
			"SELECT state, started_at, completed_at, first_seen, last_seen FROM {db}.v_process_instances WHERE source = {case}",
			`COMPLETED	2025-11-21 04:40:00.000	\N	2025-11-21 04:40:00.000	2025-11-21 04:40:00.000`,
		},
		{
			"an instance of which nothing has a time",
			[]string{elementEvent("ELEMENT_ACTIVATED", "7", "PROCESS", "")},
			"SELECT state, started_at, first_seen, last_seen FROM {db}.v_process_instances WHERE source = {case}",
			`ACTIVE	\N	\N	\N`,
		},
		{
			"the business key of an instance, also when its creation alone names it",
			[]string{
				`{"key":5,"recordType":"EVENT","valueType":"PROCESS_INSTANCE_CREATION","intent":"CREATED","timestamp":1763600000000,"value":{"processInstanceKey":7,"businessId":"order-17"}}`,
				elementEvent("ELEMENT_ACTIVATED", "7", "PROCESS", at),
				`{"key":6,"recordType":"EVENT","valueType":"PROCESS_INSTANCE_CREATION","intent":"CREATED"` + at + `,"value":{"processInstanceKey":8,"businessId":"nothing more is known"}}`,
				strings.Replace(elementEvent("ELEMENT_ACTIVATED", "9", "PROCESS", at), `"processInstanceKey":"7"`, `"businessId":"order-18","processInstanceKey":"9"`, 1),
			},
			"SELECT process_instance_key, business_key, processes, first_seen FROM {db}.v_process_instances WHERE source = {case} ORDER BY process_instance_key",
			"7	order-17	['p']	2025-11-21 04:40:00.000\n9	order-18	['p']	2025-11-21 04:40:00.000",
		},
		{
			"signals and the subscriptions to them",
			[]string{
				`{"key":41,"recordType":"EVENT","valueType":"SIGNAL","intent":"BROADCASTED","timestamp":1763700000000,"partitionId":1,"position":7,"value":{"signalName":"stop","tenantId":"acme","variables":{"secret":1}}}`,
				`{"key":41,"recordType":"EVENT","valueType":"SIGNAL","intent":"BROADCASTED","timestamp":1763700009000,"partitionId":2,"position":9,"value":{"signalName":"stop","tenantId":"acme","variables":{"secret":1}}}`,
				`{"key":42,"recordType":"COMMAND","valueType":"SIGNAL","intent":"BROADCAST","value":{"signalName":"asked for"}}`,
				`{"key":43,"recordType":"EVENT","valueType":"SIGNAL_SUBSCRIPTION","intent":"CREATED"` + at + `,"value":{"signalName":"stop","bpmnProcessId":"p","processDefinitionKey":5,"catchEventId":"e","catchEventInstanceKey":8}}`,
				`{"key":43,"recordType":"EVENT","valueType":"SIGNAL_SUBSCRIPTION","intent":"MIGRATED","timestamp":1763700001000,"value":{"signalName":"stop","bpmnProcessId":"a","processDefinitionKey":6,"catchEventId":"a","catchEventInstanceKey":8}}`,
				`{"key":44,"recordType":"EVENT","valueType":"SIGNAL_SUBSCRIPTION","intent":"CREATED","value":{"signalName":"go","bpmnProcessId":"p","processDefinitionKey":5,"catchEventId":"s","catchEventInstanceKey":-1}}`,
				`{"key":44,"recordType":"EVENT","valueType":"SIGNAL_SUBSCRIPTION","intent":"DELETED"` + at + `,"value":{"signalName":"go","bpmnProcessId":"p","processDefinitionKey":5,"catchEventId":"s","catchEventInstanceKey":-1}}`,
			},
			"SELECT key, signal_name, tenant_id, kind, bpmn_process_id, process_definition_key, element_id, element_instance_key, state, broadcast_at, created_at, deleted_at FROM {db}.v_signals WHERE source = {case} ORDER BY key",
			"41	stop	acme	BROADCAST		\\N		\\N	BROADCASTED	2025-11-21 04:40:00.000	\\N	\\N\n" +
				"43	stop		SUBSCRIPTION	a	6	a	8	WAITING	\\N	2025-11-21 04:40:00.000	\\N\n" +
				"44	go		SUBSCRIPTION	p	5	s	\\N	DELETED	\\N	\\N	2025-11-21 04:40:00.000",
		},
		{
			"an element stuck in its input mapping",
			[]string{elementEvent("ELEMENT_ACTIVATING", "8", "SERVICE_TASK", at)},
			"SELECT state, entered_at, activated_at FROM {db}.v_element_instances WHERE source = {case}",
			`ACTIVATING	2025-11-21 04:40:00.000	\N`,
		},
		{
			"timers, events and subscriptions make no instance, and neither do commands, rejections and placeholders",
			[]string{
				`{"key":1,"recordType":"EVENT","valueType":"TIMER","intent":"CREATED","value":{"processInstanceKey":7}}`,
				`{"key":2,"recordType":"EVENT","valueType":"PROCESS_EVENT","intent":"TRIGGERED","value":{"processInstanceKey":7}}`,
				`{"key":3,"recordType":"EVENT","valueType":"MESSAGE_SUBSCRIPTION","intent":"DELETED","value":{"processInstanceKey":7}}`,
				`{"key":7,"recordType":"COMMAND","valueType":"PROCESS_INSTANCE","intent":"CANCEL","value":{"processInstanceKey":7}}`,
				`{"key":-1,"recordType":"COMMAND_REJECTION","valueType":"JOB","intent":"COMPLETE","value":{"processInstanceKey":7}}`,
				`{"key":-1,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":"ELEMENT_ACTIVATED","value":{"processInstanceKey":-1}}`,
				`{"key":0,"recordType":"EVENT","valueType":"JOB","intent":"CREATED","value":{"processInstanceKey":"string"}}`,
			},
			"SELECT (SELECT count() FROM {db}.v_process_instances WHERE source = {case}), (SELECT count() FROM {db}.v_element_instances WHERE source = {case}), (SELECT count() FROM {db}.v_jobs WHERE source = {case}), (SELECT count() FROM {db}.v_incidents WHERE source = {case})",
			"0	0	0	0",
		},
		{
			"TIMED_OUT by zeta, COMPLETED by alpha",
			[]string{
				jobEvent("CREATED", "", "3", `,"timestamp":1763700000000`), jobEvent("TIMED_OUT", "zeta", "3", `,"timestamp":1763700000005`),
				jobEvent("COMPLETED", "alpha", "3", `,"timestamp":1763700000007`),
			},
			"SELECT state, worker, retries, timeouts, duration_ms FROM {db}.v_jobs WHERE source = {case}", "COMPLETED	alpha	3	1	7",
		},
		{
			"an error that was thrown",
			[]string{jobEvent("CREATED", "", "3", `,"timestamp":1763700000000`), jobEvent("ERROR_THROWN", "mu", "3", `,"timestamp":1763700000005`)},
			"SELECT state, worker, errors_thrown, completed_at FROM {db}.v_jobs WHERE source = {case}", `ERROR_THROWN	mu	1	\N`,
		},
		{
			"retries that were given again",
			[]string{
				jobEvent("CREATED", "", "3", `,"timestamp":1763700000000`), jobEvent("FAILED", "mu", "0", `,"timestamp":1763700000005`),
				jobEvent("RETRIES_UPDATED", "mu", "5", `,"timestamp":1763700000009`),
			},
			"SELECT state, retries, min_retries, failures FROM {db}.v_jobs WHERE source = {case}", "FAILED	5	0	1",
		},
		{
			"of events of one millisecond the greatest position is the last",
			[]string{
				jobEvent("CREATED", "", "3", `,"partitionId":1,"position":10`+at), jobEvent("TIMED_OUT", "zeta", "3", `,"partitionId":1,"position":20`+at),
				jobEvent("FAILED", "alpha", "2", `,"partitionId":1,"position":30`+at), jobEvent("TIMED_OUT", "beta", "2", `,"partitionId":1,"position":40`+at),
			},
			"SELECT state, worker, retries, min_retries, failures, timeouts FROM {db}.v_jobs WHERE source = {case}", "TIMED_OUT	beta	2	2	1	2",
		},
		{
			"a job that was completed stays so, whatever the clocks say",
			[]string{jobEvent("COMPLETED", "mu", "3", `,"timestamp":1763700000000`), jobEvent("TIMED_OUT", "zeta", "3", `,"timestamp":1763700000005`)},
			"SELECT state, worker FROM {db}.v_jobs WHERE source = {case}", "COMPLETED	mu",
		},
		{
			"two failures in one millisecond, of records without positions",
			[]string{jobEvent("FAILED", "mu", "2", `,"id":"a"`+at), jobEvent("FAILED", "mu", "2", `,"id":"b"`+at)},
			"SELECT failures FROM {db}.v_jobs WHERE source = {case}", "2",
		},
		{
			"a batch whose lists are not as long as each other, and one that is not a batch",
			[]string{
				`{"key":5,"recordType":"EVENT","valueType":"JOB_BATCH","intent":"ACTIVATED"` + at + `,"value":{"worker":"mu","jobKeys":[9,10],"jobs":[{"processInstanceKey":7,"retries":3,"deadline":1763700300000}]}}`,
				`{"key":6,"recordType":"EVENT","valueType":"JOB_BATCH","intent":"ACTIVATED"` + at + `,"value":{"worker":"mu","jobKeys":"none","jobs":{"a":[]}}}`,
			},
			"SELECT key, process_instance_key, state, worker, retries, deadline_at FROM {db}.v_jobs WHERE source = {case}", "9	7	ACTIVATED	mu	3	2025-11-21 04:45:00.000",
		},
		{
			"a variable of which only changes have come, the last one without a time",
			[]string{
				`{"key":5,"id":"a","recordType":"EVENT","valueType":"VARIABLE","intent":"UPDATED"` + at + `,"value":{"processInstanceKey":7,"scopeKey":7,"name":"x","value":"1"}}`,
				`{"key":5,"id":"b","recordType":"EVENT","valueType":"VARIABLE","intent":"UPDATED","value":{"processInstanceKey":7,"scopeKey":7,"name":"x","value":"2"}}`,
			},
			"SELECT name, first_value, value, created_at, updated_at, changes FROM {db}.v_variables WHERE source = {case}", `x		1	\N	2025-11-21 04:40:00.000	2`,
		},
		{
			"a user task whose creation has not come, with an invalid due date",
			[]string{`{"key":5,"recordType":"EVENT","valueType":"USER_TASK","intent":"UPDATED"` + at + `,"value":{"processInstanceKey":7,"assignee":"anna","dueDate":"soon","candidateGroupsList":"none"}}`},
			"SELECT assignee, candidate_groups, due_at, state, created_at, waiting_ms FROM {db}.v_user_tasks WHERE source = {case}", `anna	[]	\N	CREATED	\N	\N`,
		},
		{
			"a timer without a due date",
			[]string{`{"key":5,"recordType":"EVENT","valueType":"TIMER","intent":"CREATED"` + at + `,"value":{"processInstanceKey":7,"dueDate":-1,"targetElementId":"e"}}`},
			"SELECT element_id, state, due_at, created_at FROM {db}.v_timers WHERE source = {case}", `e	WAITING	\N	2025-11-21 04:40:00.000`,
		},
		{
			"a model that is not base64",
			[]string{`{"key":5,"recordType":"EVENT","valueType":"PROCESS","intent":"CREATED"` + at + `,"value":{"bpmnProcessId":"p","version":1,"resource":"?"}}`},
			"SELECT bpmn_process_id, name, xml, deployed_at FROM {db}.v_process_definitions WHERE source = {case}", `p			2025-11-21 04:40:00.000`,
		},
		{
			"a decision that was asked for alone, by a client that writes keys as texts",
			[]string{`{"key":"5","recordType":"EVENT","valueType":"DECISION_EVALUATION","intent":"EVALUATED"` + at + `,"value":{"processInstanceKey":"-1","elementInstanceKey":"-1","decisionId":"d","decisionKey":"9007199254740993","decisionVersion":2,"decisionOutput":"[1]"}}`},
			"SELECT process_instance_key, element_instance_key, decision_id, decision_key, decision_version, state, output, evaluated_at FROM {db}.v_decisions WHERE source = {case}", `-1	\N	d	9007199254740993	2	EVALUATED	[1]	2025-11-21 04:40:00.000`,
		},
		{
			"a decision that failed at an unknown time, without what it is about",
			[]string{`{"key":5,"recordType":"EVENT","valueType":"DECISION_EVALUATION","intent":"FAILED","value":{"processInstanceKey":7,"evaluationFailureMessage":"no \u00e4nswer"}}`},
			"SELECT state, decision_id, decision_key, decision_version, output, failure, evaluated_at FROM {db}.v_decisions WHERE source = {case}", `FAILED		\N	\N		no änswer	\N`,
		},
		{
			"an incident that was resolved at an unknown time is not open",
			[]string{
				`{"key":5,"recordType":"EVENT","valueType":"INCIDENT","intent":"CREATED"` + at + `,"value":{"processInstanceKey":7,"errorType":"X"}}`,
				`{"key":5,"recordType":"EVENT","valueType":"INCIDENT","intent":"RESOLVED","value":{"processInstanceKey":7,"errorType":"X"}}`,
			},
			"SELECT open, resolved_at, resolution_ms FROM {db}.v_incidents WHERE source = {case}", `0	\N	\N`,
		},
		{
			"the timer of a start event is one, whichever instances its records name",
			[]string{
				`{"key":5,"recordType":"EVENT","valueType":"TIMER","intent":"CREATED"` + at + `,"value":{"processInstanceKey":-1,"elementInstanceKey":-1,"processDefinitionKey":3,"dueDate":1763700001000,"targetElementId":"start"}}`,
				`{"key":5,"recordType":"EVENT","valueType":"TIMER","intent":"TRIGGERED","timestamp":1763700001000,"value":{"processInstanceKey":70,"elementInstanceKey":-1,"processDefinitionKey":3,"dueDate":1763700001000,"targetElementId":"start"}}`,
				`{"key":6,"recordType":"EVENT","valueType":"TIMER","intent":"CREATED","timestamp":1763700001000,"value":{"processInstanceKey":70,"elementInstanceKey":-1,"processDefinitionKey":3,"dueDate":1763700002000,"targetElementId":"start"}}`,
			},
			"SELECT key, process_instance_key, element_instance_key, started_process_instance_key, state, triggered_at FROM {db}.v_timers WHERE source = {case} ORDER BY key",
			"5\t\t\\N\t70\tTRIGGERED\t2025-11-21 04:40:01.000\n6\t\t\\N\t\tWAITING\t\\N",
		},
		{
			"a definition that was deleted is one, whatever the keys of DELETING and DELETED on each partition",
			[]string{
				`{"key":5,"recordType":"EVENT","valueType":"PROCESS","intent":"CREATED"` + at + `,"value":{"bpmnProcessId":"p","version":1,"processDefinitionKey":5,"resourceName":"p.bpmn","resource":"PGE+"}}`,
				`{"key":4503599627371211,"partitionId":2,"position":1,"recordType":"EVENT","valueType":"PROCESS","intent":"DELETING","timestamp":1763700008000,"value":{"bpmnProcessId":"p","version":1,"processDefinitionKey":5,"resourceName":"p.bpmn","resource":""}}`,
				`{"key":4503599627371212,"partitionId":2,"position":2,"recordType":"EVENT","valueType":"PROCESS","intent":"DELETED","timestamp":1763700009000,"value":{"bpmnProcessId":"p","version":1,"processDefinitionKey":5,"resourceName":"p.bpmn","resource":""}}`,
				`{"key":2251799813685975,"partitionId":1,"position":2,"recordType":"EVENT","valueType":"PROCESS","intent":"DELETED","timestamp":1763700007000,"value":{"bpmnProcessId":"p","version":1,"processDefinitionKey":5,"resourceName":"p.bpmn","resource":""}}`,
			},
			"SELECT process_definition_key, xml, deployed_at, deleted_at FROM {db}.v_process_definitions WHERE source = {case}",
			"5	<a>	2025-11-21 04:40:00.000	2025-11-21 04:40:09.000",
		},
		{
			"a subscription that correlated twice and was deleted at the end, and others",
			[]string{
				subscription("CREATING", "5", "false", at), subscription("CORRELATED", "5", "false", `,"partitionId":1,"position":7,"timestamp":1763700001000`),
				subscription("CORRELATED", "5", "false", `,"partitionId":1,"position":8,"timestamp":1763700002000`), subscription("DELETED", "5", "false", `,"timestamp":1763700003000`),
				subscription("CREATING", "6", "false", at), subscription("CORRELATED", "6", "false", `,"partitionId":1,"position":9,"timestamp":1763700001000`),
				subscription("CREATING", "7", "true", at), subscription("CORRELATED", "7", "true", `,"partitionId":1,"position":10,"timestamp":1763700001000`),
				subscription("CREATING", "8", "true", at), subscription("DELETED", "8", "true", `,"timestamp":1763700001000`),
			},
			"SELECT key, state, interrupting, correlations, first_correlated_at, correlated_at, deleted_at FROM {db}.v_message_waits WHERE source = {case} ORDER BY key",
			"5	CORRELATED	0	2	2025-11-21 04:40:01.000	2025-11-21 04:40:02.000	2025-11-21 04:40:03.000\n" +
				"6	WAITING	0	1	2025-11-21 04:40:01.000	2025-11-21 04:40:01.000	\\N\n" +
				"7	CORRELATED	1	1	2025-11-21 04:40:01.000	2025-11-21 04:40:01.000	\\N\n" +
				"8	DELETED	1	0	\\N	\\N	2025-11-21 04:40:01.000",
		},
		{
			"an error that an event caught ends the job, and one that nothing caught does not",
			[]string{
				jobEvent("CREATED", "", "3", at),
				jobEvent("ERROR_THROWN", "mu", "3", `,"timestamp":1763700000005`),
				strings.ReplaceAll(jobEvent("CREATED", "", "3", at), `"key":9,`, `"key":10,`),
				strings.NewReplacer(`"key":9,`, `"key":10,`, `"elementId":"e"`, `"elementId":"NO_CATCH_EVENT_FOUND"`).Replace(jobEvent("ERROR_THROWN", "mu", "3", `,"timestamp":1763700000005`)),
			},
			"SELECT key, state, worker, open, ended_at, last_seen, completed_at, canceled_at, element_id FROM {db}.v_jobs WHERE source = {case} ORDER BY key",
			"9	ERROR_THROWN	mu	0	2025-11-21 04:40:00.005	2025-11-21 04:40:00.005	\\N	\\N	e\n10	ERROR_THROWN	mu	1	\\N	2025-11-21 04:40:00.005	\\N	\\N	e",
		},
		{
			"an instance known from ELEMENT_ACTIVATED on, then migrated; and one known from its migration on",
			[]string{
				elementEvent("ELEMENT_ACTIVATED", "7", "PROCESS", at),
				strings.NewReplacer(`"p"`, `"q"`, `"version":1`, `"version":2`).Replace(elementEvent("ELEMENT_MIGRATED", "7", "PROCESS", `,"timestamp":1763700001000`)),
				strings.NewReplacer(`"p"`, `"q"`, `"version":1`, `"version":2`).Replace(elementEvent("ELEMENT_COMPLETED", "7", "PROCESS", `,"timestamp":1763700002000`)),
				strings.NewReplacer(`"p"`, `"q"`, `"version":1`, `"version":2`, `"7"`, `"8"`).Replace(elementEvent("ELEMENT_MIGRATED", "8", "PROCESS", `,"timestamp":1763700001000`)),
			},
			"SELECT process_instance_key, first_bpmn_process_id, first_version, bpmn_process_id, version FROM {db}.v_process_instances WHERE source = {case} ORDER BY process_instance_key",
			"7	p	1	q	2\n8		\\N	q	2",
		},
		{
			"user tasks: assigned at the creation, taken from a person, never assigned",
			[]string{
				taskEvent("CREATED", "5", "zoe", at),
				taskEvent("CREATED", "6", "", at), taskEvent("ASSIGNED", "6", "anna", `,"timestamp":1763700001000`), taskEvent("ASSIGNED", "6", "", `,"timestamp":1763700009000`),
				taskEvent("CREATED", "7", "", at), taskEvent("ASSIGNED", "7", "", `,"timestamp":1763700009000`),
			},
			"SELECT key, assignee, assigned_at, waiting_ms FROM {db}.v_user_tasks WHERE source = {case} ORDER BY key",
			"5	zoe	2025-11-21 04:40:00.000	0\n6		2025-11-21 04:40:01.000	1000\n7		\\N	\\N",
		},
		{
			"an element that a boundary event cut off, and one that was canceled before it was active",
			[]string{
				elementEvent("ELEMENT_ACTIVATED", "8", "USER_TASK", at), elementEvent("ELEMENT_TERMINATED", "8", "USER_TASK", `,"timestamp":1763700005000`),
				elementEvent("ELEMENT_ACTIVATING", "9", "USER_TASK", at), elementEvent("ELEMENT_TERMINATED", "9", "USER_TASK", `,"timestamp":1763700006000`),
			},
			"SELECT key, state, duration_ms FROM {db}.v_element_instances WHERE source = {case} ORDER BY key",
			"8	TERMINATED	5000\n9	TERMINATED	6000",
		},
	}
	// Each case is a source, and no two of its records share a block.
	db := open(t)
	first := uint64(1) // message
	for _, once := range []struct {
		name string
		turn func([]sent) []sent
	}{{"in order", inOrder}, {"backwards, repeated", backwards}} {
		for n, more := 0, true; more; n++ {
			var block []sent
			for _, c := range cases {
				var all []sent
				for _, r := range c.records {
					all = append(all, sent{source: c.name, json: r})
				}
				if n < len(all) {
					block = append(block, once.turn(all)[n])
				}
			}
			first = store(t, db, first, block, len(block)+1)
			more = len(block) > 0
		}
		for _, c := range cases {
			if got := query(t, db, strings.ReplaceAll(c.query, "{case}", "'"+c.name+"'")); got != c.want {
				t.Errorf("%s, %s: got %s, want %s", c.name, once.name, got, c.want)
			}
		}
	}
	neverIn1970(t, func(sql string) string { return query(t, db, sql) })
}

// neverIn1970 checks every time in every aggregate table and its view.
func neverIn1970(t *testing.T, query func(string) string) {
	t.Helper()
	columns := query(`SELECT table || ' ' || name FROM system.columns WHERE database = '{db}' AND type LIKE '%DateTime%'
		AND type NOT LIKE 'DateTime(%' AND (table LIKE 'v\_%' OR table IN (SELECT name FROM system.tables WHERE database = '{db}' AND engine = 'AggregatingMergeTree')) AND table NOT IN ('v_records', 'v_event_log')`)
	fatal.When(t, strings.Count(columns, "\n") < 20, "only these times: %s", columns)
	var all []string
	for line := range strings.Lines(columns) {
		table, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, "SELECT '"+table+"."+name+"' AS what FROM {db}."+table+" WHERE toYear("+name+") < 2000")
	}
	expect.Equal(t, "1970 in", "", query("SELECT DISTINCT what FROM ("+strings.Join(all, " UNION ALL ")+")"))
}
