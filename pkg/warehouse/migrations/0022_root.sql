-- The instance at the root of all calls, which engines name since Camunda 8.9; -1 where
-- that instance began under an earlier one. Without it, all that belongs to one case is
-- found call by call.
--
-- A binary from before inserts without naming the column and keeps the member in extra,
-- as in all rows from before: the view finds it in either place. The tables of a cluster
-- have the column on every replica before the table over them has it, and before an
-- insert names it.
ALTER TABLE {{.Table "records"}}{{.OnCluster}}
    ADD COLUMN IF NOT EXISTS root_process_instance_key Nullable(Int64) CODEC(ZSTD(1)) AFTER parent_element_instance_key{{if .Replicated}}
    SETTINGS alter_sync = 2{{end}};
{{if .Cluster}}
ALTER TABLE {{.Database}}.records{{.OnCluster}}
    ADD COLUMN IF NOT EXISTS root_process_instance_key Nullable(Int64) AFTER parent_element_instance_key;
{{end}}
CREATE OR REPLACE VIEW {{.Database}}.v_records{{.OnCluster}} AS
SELECT source, id, key, record_type, value_type, intent, ts, partition_id, position, source_record_position,
    record_version, broker_version, rejection_type, rejection_reason, operation_reference,
    tenant_id, bpmn_process_id, process_definition_key, version,
    process_instance_key, parent_process_instance_key, parent_element_instance_key,
    ifNull(r.root_process_instance_key, JSONExtract(r.extra, 'rootProcessInstanceKey', 'Nullable(Int64)')) AS root_process_instance_key,
    element_id, element_instance_key, flow_scope_key, scope_key, bpmn_element_type, bpmn_event_type,
    job_type, job_kind, job_key, worker, retries, deadline, deadline_at, error_type, error_code, error_message,
    variables, custom_headers, extra, received_at, lane, incarnation, stream_seq, stream_idx
FROM {{.Database}}.records AS r FINAL;
