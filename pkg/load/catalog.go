package load

// process is one model a workflow engine runs.
type process struct {
	id        string
	versions  int
	full      bool   // its engine exports the whole envelope, the others only what the specification names
	keyText   bool   // its engine writes processInstanceKey as text
	legacy    bool   // its engine writes every number of a job as text
	variables string // JSON with slots, filled per instance
	elements  []element
}

// element is one node of a process. Its kind decides which records it causes.
type element struct {
	kind kind
	id   string
	does string // job type, message name, form or timer cycle, by kind
}

type kind int

const (
	start kind = iota
	service
	user
	timer
	message
	gateway
	end
)

// bpmn gives the element type and event type an engine writes for a kind.
func (k kind) bpmn() (elementType, eventType string) {
	switch k {
	case start:
		return "START_EVENT", "NONE"
	case service:
		return "SERVICE_TASK", "UNSPECIFIED"
	case user:
		return "USER_TASK", "UNSPECIFIED"
	case timer:
		return "INTERMEDIATE_CATCH_EVENT", "TIMER"
	case message:
		return "INTERMEDIATE_CATCH_EVENT", "MESSAGE"
	case gateway:
		return "EXCLUSIVE_GATEWAY", "UNSPECIFIED"
	default:
		return "END_EVENT", "NONE"
	}
}

// catalog lists the processes that are played, all of them equally often.
func catalog() []process {
	return []process{
		{
			id: "order-fulfillment", versions: 4, full: true,
			variables: `{"orderId":"ord-$number","amount":$amount,"currency":"EUR","country":"$country","express":$flag,"customer":{"id":"c-$number","tier":"gold"}}`,
			elements: []element{
				{start, "StartEvent_order", ""}, {service, "Activity_reserve", "inventory.reserve"},
				{gateway, "Gateway_in_stock", ""}, {service, "Activity_charge", "payment.charge"},
				{message, "Event_paid", "paid"}, {service, "Activity_pick", "warehouse.pick"},
				{service, "Activity_ship", "shipping.create"}, {timer, "Event_wait", "PT30M"},
				{service, "Activity_notify", "mail.send"}, {end, "EndEvent_fulfilled", ""},
			},
		},
		{
			id: "invoice-approval", versions: 3,
			variables: `{"invoiceId":"inv-$number","amount":$amount,"supplier":"Müller & Söhne GmbH","approved":$flag,"note":null}`,
			elements: []element{
				{start, "StartEvent_invoice", ""}, {service, "Activity_scan", "ocr.scan"},
				{user, "Activity_review", "invoice-review"}, {gateway, "Gateway_amount", ""},
				{user, "Activity_approve", "invoice-approve"}, {service, "Activity_post", "ledger.post"},
				{end, "EndEvent_booked", ""},
			},
		},
		{
			id: "customer-onboarding", versions: 5, full: true, keyText: true,
			variables: `{"customerId":"c-$number","country":"$country","segment":"retail","consent":$flag,"documents":["passport","utility-bill"]}`,
			elements: []element{
				{start, "StartEvent_signup", ""}, {service, "Activity_create", "crm.create"},
				{service, "Activity_kyc", "kyc.check"}, {gateway, "Gateway_kyc", ""},
				{user, "Activity_manual_check", "kyc-review"}, {service, "Activity_score", "risk.score"},
				{message, "Event_contract_signed", "contract-signed"}, {service, "Activity_account", "account.open"},
				{service, "Activity_welcome", "mail.send"}, {timer, "Event_follow_up", "P7D"},
				{service, "Activity_survey", "survey.send"}, {end, "EndEvent_onboarded", ""},
			},
		},
		{
			id: "claim-handling", versions: 2, full: true,
			variables: `{"claimId":"cl-$number","policy":"P$number","damage":$amount,"injury":$flag,"region":"$country"}`,
			elements: []element{
				{start, "StartEvent_claim", ""}, {service, "Activity_register", "claim.register"},
				{service, "Activity_fraud", "fraud.score"}, {gateway, "Gateway_fraud", ""},
				{user, "Activity_assess", "claim-assess"}, {message, "Event_report", "expert-report"},
				{gateway, "Gateway_settle", ""}, {service, "Activity_pay", "payment.transfer"},
				{service, "Activity_letter", "letter.print"}, {service, "Activity_archive", "archive.store"},
				{end, "EndEvent_settled", ""},
			},
		},
		{
			id: "device-provisioning", versions: 6,
			variables: `{"serial":"SN-$hex","model":"gw-200","firmware":"4.12.$digit","site":"$country-$digit","online":$flag}`,
			elements: []element{
				{start, "StartEvent_device", ""}, {service, "Activity_certificate", "pki.issue"},
				{service, "Activity_flash", "device.flash"}, {timer, "Event_reboot", "PT2M"},
				{service, "Activity_probe", "device.probe"}, {end, "EndEvent_online", ""},
			},
		},
		{
			id: "loan-application", versions: 3, full: true,
			variables: `{"applicationId":"la-$number","amount":$amount,"termMonths":48,"country":"$country","coApplicant":$flag,"purpose":"car"}`,
			elements: []element{
				{start, "StartEvent_application", ""}, {service, "Activity_validate", "form.validate"},
				{service, "Activity_bureau", "bureau.query"}, {service, "Activity_score", "risk.score"},
				{gateway, "Gateway_score", ""}, {user, "Activity_underwrite", "loan-underwrite"},
				{user, "Activity_second_opinion", "loan-second-opinion"}, {gateway, "Gateway_decision", ""},
				{service, "Activity_offer", "document.render"}, {message, "Event_signed", "offer-signed"},
				{timer, "Event_cooling_off", "P14D"}, {service, "Activity_disburse", "payment.transfer"},
				{service, "Activity_register", "registry.file"}, {end, "EndEvent_disbursed", ""},
			},
		},
		{
			id: "sensor-alarm", versions: 8,
			variables: `{"sensor":"t-$number","value":$amount,"unit":"°C","threshold":80,"acknowledged":$flag}`,
			elements: []element{
				{start, "StartEvent_alarm", ""}, {service, "Activity_enrich", "asset.lookup"},
				{gateway, "Gateway_severity", ""}, {service, "Activity_page", "pager.notify"},
				{timer, "Event_escalate", "PT15M"}, {user, "Activity_ack", "alarm-ack"},
				{end, "EndEvent_closed", ""},
			},
		},
		{
			id: "employee-leave", versions: 1, legacy: true, keyText: true,
			variables: `{"employee":"e-$number","days":$digit,"reason":"Urlaub","substitute":null,"paid":$flag}`,
			elements: []element{
				{start, "StartEvent_request", ""}, {service, "Activity_balance", "hr.balance"},
				{user, "Activity_manager", "leave-approve"}, {service, "Activity_calendar", "calendar.block"},
				{service, "Activity_payroll", "payroll.update"}, {end, "EndEvent_done", ""},
			},
		},
		{
			id: "data-sync", versions: 2, full: true,
			variables: `{"job":"sync-$hex","source":"erp","rows":$number,"incremental":$flag,"filters":{"country":"$country","since":"2025-01-01T00:00:00Z"}}`,
			elements: []element{
				{start, "StartEvent_schedule", ""}, {service, "Activity_extract", "sql.query"},
				{service, "Activity_transform", "script.run"}, {service, "Activity_load", "http.request"},
				{gateway, "Gateway_more", ""}, {service, "Activity_checksum", "script.run"},
				{timer, "Event_pause", "PT1M"}, {service, "Activity_report", "mail.send"},
				{end, "EndEvent_synced", ""},
			},
		},
		{
			id: "refund", versions: 3,
			variables: `{"orderId":"ord-$number","refund":$amount,"reason":"damaged in transit","country":"$country","voucher":$flag}`,
			elements: []element{
				{start, "StartEvent_refund", ""}, {service, "Activity_lookup", "order.lookup"},
				{gateway, "Gateway_eligible", ""}, {user, "Activity_confirm", "refund-confirm"},
				{service, "Activity_refund", "payment.refund"}, {message, "Event_returned", "goods-returned"},
				{service, "Activity_restock", "inventory.restock"}, {end, "EndEvent_refunded", ""},
			},
		},
		{
			id: "price-update", versions: 12,
			variables: `{"sku":"SKU-$number","old":$amount,"market":"$country","promo":$flag,"名前":"価格"}`,
			elements: []element{
				{start, "StartEvent_price", ""}, {service, "Activity_rules", "rules.evaluate"},
				{service, "Activity_publish", "shop.publish"}, {service, "Activity_cache", "cdn.purge"},
				{gateway, "Gateway_labels", ""}, {service, "Activity_labels", "label.print"},
				{end, "EndEvent_published", ""},
			},
		},
		{
			id: "fleet-maintenance", versions: 2, full: true, keyText: true,
			variables: `{"vehicle":"VIN$hex","odometer":$number,"workshop":"$country-0$digit","urgent":$flag,"parts":[{"no":"A-$digit","qty":2}]}`,
			elements: []element{
				{start, "StartEvent_due", ""}, {service, "Activity_plan", "planner.slot"},
				{message, "Event_slot_confirmed", "slot-confirmed"}, {service, "Activity_parts", "parts.order"},
				{gateway, "Gateway_parts", ""}, {timer, "Event_delivery", "PT48H"},
				{user, "Activity_inspect", "workshop-inspect"}, {gateway, "Gateway_findings", ""},
				{service, "Activity_repair", "workshop.repair"}, {user, "Activity_test_drive", "workshop-release"},
				{service, "Activity_invoice", "invoice.create"}, {service, "Activity_mileage", "fleet.update"},
				{service, "Activity_certificate", "document.render"}, {service, "Activity_notify", "mail.send"},
				{timer, "Event_grace", "P3D"}, {message, "Event_feedback", "feedback"},
				{gateway, "Gateway_feedback", ""}, {service, "Activity_rate", "supplier.rate"},
				{service, "Activity_close", "fleet.close"}, {end, "EndEvent_back_in_service", ""},
			},
		},
	}
}

// The records as engines write them. A $name is replaced while the generator is
// built, when it is fixed for an element, or becomes a slot that is filled for
// every record (slots in program.go).

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
