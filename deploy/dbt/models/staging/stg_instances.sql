SELECT source, process_instance_key, tenant_id, bpmn_process_id AS process, version, process_name, business_key, state,
    started_at, coalesce(completed_at, terminated_at) AS ended_at, duration_ms, incidents, job_failures, last_seen
FROM {{ source('flow', 'v_process_instances') }}
WHERE started_at IS NOT NULL
