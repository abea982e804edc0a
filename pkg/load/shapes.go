package load

// The records as engines write them. A $name is replaced while the generator is
// built, when it is fixed for an element, or becomes a slot that is filled for
// every record (slots in template.go).

const slimHead = `{"id":"$partition-$position",`

const fullHead = slimHead + `"partitionId":$partition,"position":$position,"sourceRecordPosition":$source,"brokerVersion":"8.5.2","recordVersion":1,`

const slimEnvelope = slimHead + `"key":$key,"recordType":"EVENT","valueType":"$valueType","intent":"$intent","timestamp":$timestamp,"value":`

const fullEnvelope = fullHead +
	`"rejectionType":"NULL_VAL","rejectionReason":"","authorizations":{"authorized_tenants":["<default>"]},` +
	`"key":$key,"recordType":"EVENT","valueType":"$valueType","intent":"$intent","timestamp":$timestamp,"value":`

const creationValue = `{"bpmnProcessId":"$process","version":$version,"processDefinitionKey":$definition,"processInstanceKey":$ref,` +
	`"variables":$variables,"startInstructions":[],"tenantId":"<default>"}}`

const elementValue = `{"bpmnProcessId":"$process","version":$version,"processDefinitionKey":$definition,"processInstanceKey":$ref,` +
	`"elementId":"$element","flowScopeKey":$scope,"bpmnElementType":"$elementType","bpmnEventType":"$eventType",` +
	`"parentProcessInstanceKey":-1,"parentElementInstanceKey":-1,"tenantId":"<default>"}}`

const variableValue = `{"name":"$variable","value":"$literal","scopeKey":$scope,"processInstanceKey":$ref,` +
	`"processDefinitionKey":$definition,"bpmnProcessId":"$process","tenantId":"<default>"}}`

const jobValue = `{"bpmnProcessId":"$process","processDefinitionKey":$definition,"processDefinitionVersion":$version,"processInstanceKey":$ref,` +
	`"elementId":"$element","elementInstanceKey":$elementKey,"type":"$does","worker":"$jobWorker","retries":$jobRetries,"deadline":$jobDeadline,` +
	`"errorCode":"$jobErrorCode","errorMessage":"$jobError","customHeaders":$headers,"variables":$jobVariables$jobExtra}}`

// What newer engines add to a job.
const jobExtra = `,"tenantId":"<default>","timeout":-1,"jobKind":"BPMN_ELEMENT","jobListenerEventType":"UNSPECIFIED","retryBackoff":0,"recurringTime":-1`

const jobBatchValue = `{"type":"$does","worker":"$worker","timeout":300000,"maxJobsToActivate":32,"truncated":false,"jobKeys":[$job],` +
	`"jobs":[{"bpmnProcessId":"$process","processInstanceKey":$ref,"elementId":"$element","elementInstanceKey":$elementKey,"deadline":$deadline,"retries":3,"variables":$variables}],` +
	`"tenantIds":["<default>"]}}`

const incidentValue = `{"errorType":"JOB_NO_RETRIES","errorMessage":"$error","bpmnProcessId":"$process","processDefinitionKey":$definition,` +
	`"processInstanceKey":$ref,"elementId":"$element","elementInstanceKey":$elementKey,"jobKey":$job,"variableScopeKey":$elementKey,"tenantId":"<default>"}}`

const timerValue = `{"elementInstanceKey":$elementKey,"processInstanceKey":$ref,"processDefinitionKey":$definition,"dueDate":$deadline,` +
	`"targetElementId":"$element","repetitions":1,"tenantId":"<default>"}}`

const messageValue = `{"name":"$does","correlationKey":"k-$number","messageId":"m-$hex","timeToLive":3600000,"deadline":$deadline,` +
	`"variables":{"reference":"$hex","accepted":$flag},"tenantId":"<default>"}}`

const subscriptionValue = `{"processInstanceKey":$ref,"elementInstanceKey":$elementKey,"bpmnProcessId":"$process","messageName":"$does","messageKey":-1,` +
	`"correlationKey":"k-$number","elementId":"$element","interrupting":true,"variables":{},"tenantId":"<default>"}}`

const userTaskValue = `{"userTaskKey":$job,"bpmnProcessId":"$process","processDefinitionKey":$definition,"processDefinitionVersion":$version,` +
	`"processInstanceKey":$ref,"elementId":"$element","elementInstanceKey":$elementKey,"assignee":"$assignee","candidateGroupsList":["back-office"],` +
	`"candidateUsersList":[],"dueDate":"","followUpDate":"","externalFormReference":"$does","formKey":-1,"priority":50,"action":"$action",` +
	`"variables":{},"customHeaders":{},"tenantId":"<default>"}}`

// A command the engine refused, for a process it does not know; after a head.
const rejectionRecord = `"key":$key,"recordType":"COMMAND_REJECTION","valueType":"PROCESS_INSTANCE_CREATION","intent":"CREATE","timestamp":$timestamp,` +
	`"rejectionType":"NOT_FOUND","rejectionReason":"Expected to find process definition with process ID '$process-draft', but none found",` +
	`"value":{"bpmnProcessId":"$process-draft","processDefinitionKey":-1,"processInstanceKey":-1,"version":-1,"variables":$variables,"tenantId":"<default>"}}`

// The node's own settings, as low-code editors keep them in a header.
const headers = `{"config":"{\"nodeId\":\"$element\",\"kind\":\"$does\",\"method\":\"POST\",\"url\":\"http://$process.svc.cluster.local/api/v1\",\"timeoutMs\":5000}"}`

// What a worker hands back.
const jobResult = `{"result":{"code":$digit,"reference":"$hex","ok":$flag},"durationMs":$number}`

// failure is a way for a job to fail. The message has at most one %, which
// becomes a number.
type failure struct{ code, message string }

func failures() []failure {
	return []failure{
		{"TIMEOUT", "java.net.SocketTimeoutException: Read timed out after % ms\n\tat java.base/sun.nio.ch.NioSocketImpl.timedRead(NioSocketImpl.java:288)\n\tat com.example.http.Client.call(Client.java:117)"},
		{"HTTP_503", "POST http://payment.svc/api/v1: 503 Service Unavailable, retry after % s"},
		{"HTTP_429", "quota of tenant \"acme\" used up, % requests waiting"},
		{"VALIDATION", "Ungültiger Betrag: % liegt über dem Limit"},
		{"", "No more retries left."},
		{"DB_DEADLOCK", "ORA-00060: deadlock detected while waiting for resource (session %)"},
		{"IO", "open C:\\spool\\%.pdf: Zugriff verweigert"},
	}
}

func workers() []string {
	return []string{"worker-7f3a", "worker-91bc", "worker-02de", "payments-6c9f7d-x2x8k", "payments-6c9f7d-q9v4z", "rpa-berlin-01", "node-red@edge-17"}
}

func countries() []string { return []string{"DE", "FR", "PL", "NL", "ES", "US", "JP", "BR"} }

func assignees() []string {
	return []string{"anna.schmidt", "j.kowalski", "m.dubois", "sofia.garcía", "t.nakamura"}
}
