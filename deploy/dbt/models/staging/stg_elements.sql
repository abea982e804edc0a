SELECT source, process_instance_key, key, bpmn_process_id AS process, element_id AS element, element_name, bpmn_element_type AS type, state,
    entered_at, coalesce(completed_at, terminated_at) AS left_at, duration_ms
FROM {{ source('flow', 'v_element_instances') }}
WHERE bpmn_element_type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY')
