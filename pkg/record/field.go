package record

// field is a known member of a record or of its value.
type field uint8

const (
	fieldID field = iota
	fieldKey
	fieldRecordType
	fieldValueType
	fieldIntent
	fieldTimestamp
	fieldPartitionID
	fieldPosition
	fieldSourceRecordPosition
	fieldRecordVersion
	fieldBrokerVersion
	fieldRejectionType
	fieldRejectionReason
	fieldOperationReference
	fieldValue
	fieldRecords // marks a wrapper; a member like any other inside of a record

	fieldBpmnProcessID // from here on: members of value
	fieldProcessDefinitionKey
	fieldProcessDefinitionVersion
	fieldProcessInstanceKey
	fieldElementID
	fieldElementInstanceKey
	fieldType
	fieldWorker
	fieldRetries
	fieldDeadline
	fieldErrorCode
	fieldErrorMessage
	fieldVariables
	fieldCustomHeaders
	fieldTenantID
	fieldBpmnElementType
	fieldErrorType
	fieldFlowScopeKey
	fieldParentProcessInstanceKey
	fieldParentElementInstanceKey
	fieldBpmnEventType
	fieldJobKind
	fieldJobKey
	fieldScopeKey
	fieldVersion         // another name of processDefinitionVersion, used when that is missing
	fieldTargetElementID // another name of elementId, used when that is missing

	fieldCount
	fieldUnknown = fieldCount
	firstOfValue = fieldBpmnProcessID
)

// outerFields and valueFields are sets of fields, one bit each.
const (
	outerFields = uint64(1)<<firstOfValue - 1
	valueFields = uint64(1)<<fieldCount - 1 - outerFields
)

// class is how a field is checked and converted.
type class uint8

const (
	classText        class = iota // a string; the text of a number will do
	classInteger                  // a whole number of 64 bits, or its decimal text
	classTime                     // like classInteger, or ISO 8601
	classObject                   // an object
	classAny                      // any JSON
	classLooseText                // like classText, but kept in extra when it is not
	classLooseNumber              // like classInteger, but kept in extra when it is not
	classes
)

// plain lists, for each class, the kinds that need no closer look.
var plain = [classes]uint16{
	classText:        1<<kindNull | 1<<kindString | 1<<kindEscaped | 1<<kindInt | 1<<kindNumber,
	classInteger:     1<<kindNull | 1<<kindInt,
	classTime:        1<<kindNull | 1<<kindInt,
	classObject:      1<<kindNull | 1<<kindObject,
	classAny:         anyKind,
	classLooseText:   anyKind,
	classLooseNumber: anyKind,
}

const anyKind = 1<<(kindArray+1) - 1

// spec is the row of the specification a field stands in.
type spec struct {
	name  string // of the member
	class class
}

var specs = [fieldCount]spec{
	fieldID:          {"id", classText},
	fieldKey:         {"key", classInteger},
	fieldRecordType:  {"recordType", classText},
	fieldValueType:   {"valueType", classText},
	fieldIntent:      {"intent", classText},
	fieldTimestamp:   {"timestamp", classTime},
	fieldPartitionID: {"partitionId", classLooseNumber},
	fieldPosition:    {"position", classLooseNumber},

	fieldSourceRecordPosition: {"sourceRecordPosition", classLooseNumber},
	fieldRecordVersion:        {"recordVersion", classLooseNumber},
	fieldBrokerVersion:        {"brokerVersion", classLooseText},
	fieldRejectionType:        {"rejectionType", classLooseText},
	fieldRejectionReason:      {"rejectionReason", classLooseText},
	fieldOperationReference:   {"operationReference", classLooseNumber},

	fieldValue:   {"value", classObject},
	fieldRecords: {"records", classAny},

	fieldBpmnProcessID:            {"bpmnProcessId", classText},
	fieldProcessDefinitionKey:     {"processDefinitionKey", classInteger},
	fieldProcessDefinitionVersion: {"processDefinitionVersion", classInteger},
	fieldProcessInstanceKey:       {"processInstanceKey", classText},
	fieldElementID:                {"elementId", classText},
	fieldElementInstanceKey:       {"elementInstanceKey", classInteger},
	fieldType:                     {"type", classText},
	fieldWorker:                   {"worker", classText},
	fieldRetries:                  {"retries", classInteger},
	fieldDeadline:                 {"deadline", classTime},
	fieldErrorCode:                {"errorCode", classText},
	fieldErrorMessage:             {"errorMessage", classText},
	fieldVariables:                {"variables", classAny},
	fieldCustomHeaders:            {"customHeaders", classAny},
	fieldTenantID:                 {"tenantId", classLooseText},
	fieldBpmnElementType:          {"bpmnElementType", classLooseText},
	fieldErrorType:                {"errorType", classLooseText},
	fieldFlowScopeKey:             {"flowScopeKey", classLooseNumber},
	fieldParentProcessInstanceKey: {"parentProcessInstanceKey", classLooseNumber},
	fieldParentElementInstanceKey: {"parentElementInstanceKey", classLooseNumber},
	fieldBpmnEventType:            {"bpmnEventType", classLooseText},
	fieldJobKind:                  {"jobKind", classLooseText},
	fieldJobKey:                   {"jobKey", classLooseNumber},
	fieldScopeKey:                 {"scopeKey", classLooseNumber},
	fieldVersion:                  {"version", classLooseNumber},
	fieldTargetElementID:          {"targetElementId", classLooseText},
}

// outerField returns the field a member of a record is.
func outerField(name []byte) field {
	switch string(name) {
	case "id":
		return fieldID
	case "key":
		return fieldKey
	case "recordType":
		return fieldRecordType
	case "valueType":
		return fieldValueType
	case "intent":
		return fieldIntent
	case "timestamp":
		return fieldTimestamp
	case "partitionId":
		return fieldPartitionID
	case "position":
		return fieldPosition
	case "sourceRecordPosition":
		return fieldSourceRecordPosition
	case "recordVersion":
		return fieldRecordVersion
	case "brokerVersion":
		return fieldBrokerVersion
	case "rejectionType":
		return fieldRejectionType
	case "rejectionReason":
		return fieldRejectionReason
	case "operationReference":
		return fieldOperationReference
	case "value":
		return fieldValue
	case "records":
		return fieldRecords
	}
	return fieldUnknown
}

// valueField returns the field a member of a record's value is.
func valueField(name []byte) field {
	switch string(name) {
	case "bpmnProcessId":
		return fieldBpmnProcessID
	case "processDefinitionKey":
		return fieldProcessDefinitionKey
	case "processDefinitionVersion":
		return fieldProcessDefinitionVersion
	case "processInstanceKey":
		return fieldProcessInstanceKey
	case "elementId":
		return fieldElementID
	case "elementInstanceKey":
		return fieldElementInstanceKey
	case "type":
		return fieldType
	case "worker":
		return fieldWorker
	case "retries":
		return fieldRetries
	case "deadline":
		return fieldDeadline
	case "errorCode":
		return fieldErrorCode
	case "errorMessage":
		return fieldErrorMessage
	case "variables":
		return fieldVariables
	case "customHeaders":
		return fieldCustomHeaders
	case "tenantId":
		return fieldTenantID
	case "bpmnElementType":
		return fieldBpmnElementType
	case "errorType":
		return fieldErrorType
	case "flowScopeKey":
		return fieldFlowScopeKey
	case "parentProcessInstanceKey":
		return fieldParentProcessInstanceKey
	case "parentElementInstanceKey":
		return fieldParentElementInstanceKey
	case "bpmnEventType":
		return fieldBpmnEventType
	case "jobKind":
		return fieldJobKind
	case "jobKey":
		return fieldJobKey
	case "scopeKey":
		return fieldScopeKey
	case "version":
		return fieldVersion
	case "targetElementId":
		return fieldTargetElementID
	}
	return fieldUnknown
}
