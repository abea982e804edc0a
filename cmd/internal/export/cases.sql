-- Instances with their attributes: the beginning of events.sql and objects.sql.
WITH
cases AS (
    SELECT source, process_instance_key, tenant_id, bpmn_process_id, process_name, version, process_definition_key, parent_process_instance_key,
        parent_element_instance_key, root_process_instance_key, started_at, completed_at, terminated_at, state
    FROM v_process_instances WHERE /* selection */
),
attributes AS ( -- the chosen variables, of the scope of the instance
    SELECT source, process_instance_key, mapFromArrays(groupArray(name), groupArray(if(JSONType(value) = 'String', JSONExtractString(value), value))) AS of
    FROM v_variables WHERE /* variables */ AND scope_key = toInt64OrZero(process_instance_key) AND (source, process_instance_key) IN (SELECT source, process_instance_key FROM cases)
    GROUP BY source, process_instance_key
),
elements AS (
    SELECT source, process_instance_key, key, element_id, element_name, bpmn_element_type, flow_scope_key, activated_at, completed_at, terminated_at, state
    FROM v_element_instances WHERE bpmn_element_type != 'PROCESS' AND (source, process_instance_key) IN (SELECT source, process_instance_key FROM cases)
),
jobs AS (
    SELECT source, process_instance_key, key, element_instance_key, job_type, state, worker, retries, failures, created_at, completed_at, canceled_at
    FROM v_jobs WHERE (source, process_instance_key) IN (SELECT source, process_instance_key FROM cases)
),
user_tasks AS (
    SELECT source, process_instance_key, key, element_instance_key, assignee, state, created_at, assigned_at, completed_at, canceled_at
    FROM v_user_tasks WHERE (source, process_instance_key) IN (SELECT source, process_instance_key FROM cases)
),
resources AS ( -- worker or assignee that completed an element
    SELECT source, process_instance_key, key, argMax(who, place) AS resource
    FROM
    (
        SELECT source, process_instance_key, assumeNotNull(element_instance_key) AS key, worker AS who, (0, jobs.key) AS place
        FROM jobs WHERE completed_at IS NOT NULL AND element_instance_key IS NOT NULL
        UNION ALL
        SELECT source, process_instance_key, assumeNotNull(element_instance_key), assignee, (1, user_tasks.key)
        FROM user_tasks WHERE completed_at IS NOT NULL AND element_instance_key IS NOT NULL
    )
    GROUP BY source, process_instance_key, key
),
