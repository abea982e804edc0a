package schema

import (
	"fmt"
	"strings"
)

// word is a column that several tables and views have, with the type that views give it
// and its meaning. In parentheses is the member, or the records, that it is made of.
type word struct{ name, kind, meaning string }

var words = []word{
	{"source", "LowCardinality(String)", "engine that sent it, as its token says"},
	{"process_instance_key", "String", "process instance (processInstanceKey), text by contract"},
	{"key", "Int64", "of the record (key)"},
	{"tenant_id", "LowCardinality(String)", "tenant (tenantId)"},
	{"bpmn_process_id", "String", "process it belongs to now, after migrations (bpmnProcessId)"},
	{"version", "Nullable(Int64)", "version of that process (version, or processDefinitionVersion)"},
	{"process_definition_key", "Nullable(Int64)", "of that version (processDefinitionKey)"},
	{"element_id", "String", "element in the BPMN model, after migrations (elementId)"},
	{"element_instance_key", "Nullable(Int64)", "element instance (elementInstanceKey)"},
	{"bpmn_element_type", "LowCardinality(String)", "such as SERVICE_TASK (bpmnElementType)"},
	{"bpmn_event_type", "LowCardinality(String)", "such as TIMER (bpmnEventType)"},
	{"flow_scope_key", "Nullable(Int64)", "element instance around it (flowScopeKey)"},
	{"parent_process_instance_key", "String", "instance that called it (parentProcessInstanceKey), text as process_instance_key; empty when none did"},
	{"parent_element_instance_key", "Nullable(Int64)", "call activity that called it (parentElementInstanceKey)"},
	{"root_process_instance_key", "String", "instance at the root of all calls, text as process_instance_key"},
	{"job_type", "LowCardinality(String)", "type of the job (type)"},
	{"worker", "LowCardinality(String)", "worker that has or had it (worker)"},
	{"retries", "Nullable(Int64)", "retries left (retries)"},
	{"error_type", "LowCardinality(String)", "such as JOB_NO_RETRIES (errorType)"},
	{"error_message", "String", "errorMessage"},
	{"error_code", "LowCardinality(String)", "errorCode"},
	{"partition_id", "Int64", "partition of the engine (partitionId)"},
	{"position", "Int64", "of the record in its partition (position)"},
	{"received_at", "DateTime64(3, 'UTC')", "when the api took it in, UTC"},
	{"id", "String", "id, or partition-position where it follows from these"},
	{"record_type", "LowCardinality(String)", "EVENT, COMMAND or COMMAND_REJECTION (recordType)"},
	{"value_type", "LowCardinality(String)", "such as JOB (valueType)"},
	{"intent", "LowCardinality(String)", "such as COMPLETED (intent)"},
	{"ts", "DateTime64(3, 'UTC')", "UTC (timestamp); 1970 where it has none that is valid"},
	{"source_record_position", "Nullable(Int64)", "command it follows from (sourceRecordPosition)"},
	{"record_version", "Nullable(Int64)", "recordVersion"},
	{"broker_version", "LowCardinality(String)", "brokerVersion"},
	{"rejection_type", "LowCardinality(String)", "of a COMMAND_REJECTION (rejectionType)"},
	{"rejection_reason", "String", "of a COMMAND_REJECTION (rejectionReason)"},
	{"operation_reference", "Nullable(Int64)", "operationReference"},
	{"job_kind", "LowCardinality(String)", "jobKind"},
	{"deadline", "Nullable(Int64)", "ms since 1970, -1 when not set (deadline)"},
	{"variables", "String", "JSON (variables)"},
	{"custom_headers", "LowCardinality(String)", "JSON (customHeaders)"},
	{"extra", "String", "JSON of every other member; those of the envelope under _record"},
	{"stored_at", "DateTime64(3, 'UTC')", "when it was stored, UTC; retention counts from it"},
}

// about is the comment of a shared column.
func about(name string) (string, error) {
	w, err := find(name)
	return "COMMENT " + quote(w.meaning), err
}

// columns are shared columns of a view, each with type and comment.
func columns(names ...string) (string, error) {
	var all []string
	for _, name := range names {
		w, err := find(name)
		if err != nil {
			return "", err
		}
		all = append(all, fmt.Sprintf("%s %s COMMENT %s", w.name, w.kind, quote(w.meaning)))
	}
	return strings.Join(all, ",\n    "), nil
}

func find(name string) (word, error) {
	for _, w := range words {
		if w.name == name {
			return w, nil
		}
	}
	return word{}, fmt.Errorf("no shared column is called %s", name)
}
