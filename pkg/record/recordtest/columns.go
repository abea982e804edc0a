package recordtest

import "sluice/pkg/record"

// RowOf returns row i of a block by the names of the columns of flow.records:
// string, int64, or nil for NULL. id and source_record_position are those that
// queries show.
func RowOf(c *record.Columns, i int) map[string]any {
	text := func(t *record.Text) string { return string(t.Value(i)) }
	symbol := func(s *record.Symbol) string { return string(s.Value(i)) }
	null := func(n *record.NullInt64) any {
		if n.Nulls[i] == 1 {
			return nil
		}
		return n.Values[i]
	}
	source := null(&c.SourceRecordOffset)
	if source != nil {
		source = source.(int64) + c.Position[i]
	}
	return map[string]any{
		"source":                 symbol(&c.Source),
		"kind":                   int64(c.Kind[i]),
		"id":                     c.ID(i),
		"own_id":                 text(&c.OwnID),
		"identity":               text(&c.Identity),
		"key":                    c.Key[i],
		"record_type":            symbol(&c.RecordType),
		"value_type":             symbol(&c.ValueType),
		"intent":                 symbol(&c.Intent),
		"ts":                     c.TS[i],
		"partition_id":           c.PartitionID[i],
		"position":               c.Position[i],
		"tenant_id":              symbol(&c.TenantID),
		"bpmn_process_id":        symbol(&c.BpmnProcessID),
		"process_definition_key": null(&c.ProcessDefinitionKey),
		"version":                null(&c.Version),
		"process_instance_key":   text(&c.ProcessInstanceKey),
		"element_id":             symbol(&c.ElementID),
		"element_instance_key":   null(&c.ElementInstanceKey),
		"bpmn_element_type":      symbol(&c.BpmnElementType),
		"job_type":               symbol(&c.JobType),
		"worker":                 symbol(&c.Worker),
		"retries":                null(&c.Retries),
		"deadline":               null(&c.Deadline),
		"error_type":             symbol(&c.ErrorType),
		"error_code":             symbol(&c.ErrorCode),
		"error_message":          text(&c.ErrorMessage),
		"variables":              text(&c.Variables),
		"custom_headers":         symbol(&c.CustomHeaders),
		"extra":                  text(&c.Extra),

		"source_record_position":      source,
		"record_version":              null(&c.RecordVersion),
		"broker_version":              symbol(&c.BrokerVersion),
		"rejection_type":              symbol(&c.RejectionType),
		"rejection_reason":            text(&c.RejectionReason),
		"operation_reference":         null(&c.OperationReference),
		"flow_scope_key":              null(&c.FlowScopeKey),
		"parent_process_instance_key": null(&c.ParentProcessInstanceKey),
		"parent_element_instance_key": null(&c.ParentElementInstanceKey),
		"bpmn_event_type":             symbol(&c.BpmnEventType),
		"job_kind":                    symbol(&c.JobKind),
		"job_key":                     null(&c.JobKey),
		"scope_key":                   null(&c.ScopeKey),
	}
}
