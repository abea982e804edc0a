-- Instances whose events name more than one process are few, and known by their own
-- rows: one of them is of the process that an instance was migrated to, and lacks its
-- beginning. Only of these the views put rows together; a migration to another version
-- stays in one row, and no longer makes a view read a fold a second time.
CREATE OR REPLACE VIEW {{.Database}}.v_process_instances{{.OnCluster}} AS
SELECT source, process_instance_key, tenant_id,
    bpmn_process_id, version, process_definition_key,                   -- what it belongs to
    first_bpmn_process_id, first_version, first_process_definition_key, -- what it began with
    nullIf(i.parent_process_instance_key, -1) AS parent_process_instance_key,
    nullIf(i.parent_element_instance_key, -1) AS parent_element_instance_key,
    processes, started_at, completed_at, terminated_at, first_seen, last_seen,
    multiIf(i.state = 4, 'TERMINATED', i.state = 3, 'COMPLETED', NOT hasAll(resolved_incident_keys, incident_keys), 'INCIDENT', 'ACTIVE') AS state,
    dateDiff('millisecond', started_at, coalesce(completed_at, terminated_at)) AS duration_ms,
    incident_keys, resolved_incident_keys, length(incident_keys) AS incidents,
    length(arrayFilter(k -> NOT has(resolved_incident_keys, k), incident_keys)) AS open_incidents,
    length(i.job_failures) AS job_failures
FROM
(
    WITH splitByChar('\t', o.migrated) AS now, splitByChar('\t', o.began) AS first
    SELECT source, process_instance_key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        bpmn_process_id AS first_bpmn_process_id,
        if(o.began = '', o.version, toInt64OrNull(first[2])) AS first_version,
        if(o.began = '', o.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        [toString(bpmn_process_id)] AS processes,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM {{.Database}}.process_instances AS o FINAL
    WHERE o.state > 0 AND (o.source, o.process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM {{.Database}}.process_instances WHERE {{.Moved}})
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now, splitByChar('\t', m.began) AS first
    SELECT source, process_instance_key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.process_definition_key, toInt64OrNull(now[4])) AS process_definition_key,
        if(m.began = '', m.bpmn_process_id, first[1]) AS first_bpmn_process_id,
        if(m.began = '', m.version, toInt64OrNull(first[2])) AS first_version,
        if(m.began = '', m.process_definition_key, toInt64OrNull(first[3])) AS first_process_definition_key,
        processes,
        parent_process_instance_key, parent_element_instance_key, started_at, completed_at, terminated_at, first_seen, last_seen, state,
        incident_keys, resolved_incident_keys, job_failures
    FROM
    (
        SELECT source, process_instance_key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, arraySort(groupUniqArray(toString(p.bpmn_process_id))) AS processes, max(p.version) AS version,
            max(p.process_definition_key) AS process_definition_key, max(p.began) AS began, max(p.migrated) AS migrated,
            max(p.parent_process_instance_key) AS parent_process_instance_key, max(p.parent_element_instance_key) AS parent_element_instance_key,
            max(p.state) AS state, min(p.started_at) AS started_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            min(p.first_seen) AS first_seen, max(p.last_seen) AS last_seen, groupUniqArrayArray(p.incident_keys) AS incident_keys,
            groupUniqArrayArray(p.resolved_incident_keys) AS resolved_incident_keys, groupUniqArrayArray(p.job_failures) AS job_failures
        FROM {{.Database}}.process_instances AS p
        WHERE (p.source, p.process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM {{.Database}}.process_instances WHERE {{.Moved}})
        GROUP BY source, process_instance_key
    ) AS m
    WHERE m.state > 0
) AS i;

-- Of an element they read the rows of the processes that its instance belonged to.
CREATE OR REPLACE VIEW {{.Database}}.v_element_instances{{.OnCluster}} AS
SELECT source, process_instance_key, key, tenant_id,
    bpmn_process_id, version, element_id, -- what it belongs to
    bpmn_element_type, nullIf(e.flow_scope_key, -1) AS flow_scope_key,
    entered_at, activated_at, completed_at, terminated_at,
    multiIf(e.state = 4, 'TERMINATED', e.state = 3, 'COMPLETED', e.state = 1, 'ACTIVATING', 'ACTIVE') AS state,
    dateDiff('millisecond', activated_at, completed_at) AS duration_ms
FROM
(
    WITH splitByChar('\t', o.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id, bpmn_process_id,
        if(o.migrated = '', o.version, toInt64OrNull(now[3])) AS version,
        if(o.migrated = '', o.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM {{.Database}}.element_instances AS o FINAL
    WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM {{.Database}}.process_instances WHERE {{.Moved}})
    UNION ALL
    WITH splitByChar('\t', m.migrated) AS now
    SELECT source, process_instance_key, key, tenant_id,
        if(m.migrated = '', m.bpmn_process_id, now[2]) AS bpmn_process_id,
        if(m.migrated = '', m.version, toInt64OrNull(now[3])) AS version,
        if(m.migrated = '', m.element_id, now[4]) AS element_id,
        bpmn_element_type, flow_scope_key, entered_at, activated_at, completed_at, terminated_at, state
    FROM
    (
        SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
            max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
            min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.completed_at) AS completed_at, max(p.terminated_at) AS terminated_at,
            max(p.migrated) AS migrated
        FROM {{.Database}}.element_instances AS p
        WHERE (p.source, p.bpmn_process_id, p.process_instance_key) GLOBAL IN
            (
                SELECT source, bpmn_process_id, process_instance_key FROM {{.Database}}.process_instances
                WHERE (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM {{.Database}}.process_instances WHERE {{.Moved}})
            )
        GROUP BY source, process_instance_key, key
    ) AS m
) AS e;

-- The elements that are entered and not left. All their rows say so; of the few others
-- that have such a row, another one says that they were left.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_active_elements{{.OnCluster}} AS
WITH splitByChar('\t', a.migrated) AS now
SELECT source, process_instance_key, key, tenant_id,
    if(a.migrated = '', a.bpmn_process_id, now[2]) AS bpmn_process_id, -- what it belongs to
    if(a.migrated = '', a.version, toInt64OrNull(now[3])) AS version,
    if(a.migrated = '', a.element_id, now[4]) AS element_id,
    bpmn_element_type, nullIf(a.flow_scope_key, -1) AS flow_scope_key, entered_at, activated_at,
    if(a.state = 1, 'ACTIVATING', 'ACTIVE') AS state
FROM
(
    SELECT source, process_instance_key, key, max(p.tenant_id) AS tenant_id, max(p.bpmn_process_id) AS bpmn_process_id, max(p.version) AS version,
        max(p.element_id) AS element_id, max(p.bpmn_element_type) AS bpmn_element_type, max(p.flow_scope_key) AS flow_scope_key, max(p.state) AS state,
        min(p.entered_at) AS entered_at, min(p.activated_at) AS activated_at, max(p.migrated) AS migrated
    FROM {{.Database}}.element_instances AS p
    WHERE p.state < 3 AND (p.source, p.key) GLOBAL NOT IN
        (
            SELECT source, key FROM {{.Database}}.element_instances
            WHERE state > 2 AND key GLOBAL IN (SELECT key FROM {{.Database}}.element_instances WHERE state < 3)
        )
    GROUP BY source, process_instance_key, key
) AS a;
