-- The objects of OCEL 2.0 with their events, and two endings of the statement: one row
-- (type, JSON object) for each event, and one for each object.
--
-- id         Kind:source/key, because two engines may have equal keys
-- lifetime   initial state, start, present state, end
-- values     (name, JSON), omitted where the JSON is ''
-- related    (object, qualifier), omitted where the object is ''
-- happened   (type, time, values), omitted where the time is null
definitions AS (
    SELECT source, process_definition_key, bpmn_process_id, version, name
    FROM v_process_definitions WHERE (source, process_definition_key) IN (SELECT source, assumeNotNull(process_definition_key) FROM cases WHERE process_definition_key IS NOT NULL)
),
about AS ( -- jobs, user tasks, and incidents
    SELECT source, process_instance_key, key, element_instance_key, 'job' AS kind, NULL AS job_key, ('CREATED', created_at, state, ifNull(completed_at, canceled_at)) AS lifetime,
        [('jobType', toJSONString(job_type)), ('failures', toString(failures)), ('worker', if(worker = '', '', toJSONString(worker))), ('retries', ifNull(toString(retries), ''))] AS values,
        [('job created', created_at, [('jobType', toJSONString(job_type))]),
         ('job completed', completed_at, [('jobType', toJSONString(job_type)), ('resource', if(worker = '', '', toJSONString(worker)))]),
         ('job canceled', canceled_at, [('jobType', toJSONString(job_type))])] AS happened
    FROM jobs
    UNION ALL
    SELECT source, process_instance_key, key, element_instance_key, 'user task', NULL, ('CREATED', created_at, state, ifNull(completed_at, canceled_at)),
        [('assignee', if(assignee = '', '', toJSONString(assignee)))] AS who,
        [('user task created', created_at, []), ('user task assigned', assigned_at, [('resource', who[1].2)]),
         ('user task completed', completed_at, [('resource', who[1].2)]), ('user task canceled', canceled_at, [])]
    FROM user_tasks
    UNION ALL
    SELECT source, process_instance_key, key, element_instance_key, 'incident', job_key, ('CREATED', created_at, if(resolved_at IS NULL, 'CREATED', 'RESOLVED'), resolved_at),
        [('errorType', toJSONString(error_type)), ('errorMessage', if(error_message = '', '', toJSONString(error_message)))],
        [('incident created', created_at, [('errorType', toJSONString(error_type))]), ('incident resolved', resolved_at, [('errorType', toJSONString(error_type))])]
    FROM v_incidents WHERE (source, process_instance_key) IN (SELECT source, process_instance_key FROM cases)
),
objects AS (
    SELECT concat('definition:', source, '/', toString(process_definition_key)) AS id, 'definition' AS kind,
        ('', NULL::Nullable(DateTime64(3, 'UTC')), '', NULL::Nullable(DateTime64(3, 'UTC'))) AS lifetime,
        [('source', toJSONString(source)), ('process', toJSONString(bpmn_process_id)), ('name', toJSONString(name)), ('version', ifNull(toString(version), ''))] AS values,
        []::Array(Tuple(String, String)) AS related,
        []::Array(Tuple(String, Nullable(DateTime64(3, 'UTC')), Array(Tuple(String, String)))) AS happened
    FROM definitions
    UNION ALL
    SELECT concat('instance:', c.source, '/', c.process_instance_key), 'instance', ('ACTIVE', c.started_at, c.state, ifNull(c.completed_at, c.terminated_at)),
        [('source', toJSONString(c.source)), ('key', toJSONString(c.process_instance_key)), ('tenant', toJSONString(c.tenant_id)),
         ('process', toJSONString(c.bpmn_process_id)), ('name', if(c.process_name = '', '', toJSONString(c.process_name))),
         ('version', ifNull(toString(c.version), ''))/* of the instance */],
        [(if(d.process_definition_key = 0, '', concat('definition:', d.source, '/', toString(d.process_definition_key))), 'definition'),
         (if((c.source, c.parent_process_instance_key) IN (SELECT source, process_instance_key FROM cases),
             concat('instance:', c.source, '/', c.parent_process_instance_key), ''), 'called by'),
         (if(c.parent_process_instance_key != '' AND (c.source, c.root_process_instance_key) IN (SELECT source, process_instance_key FROM cases),
             concat('instance:', c.source, '/', c.root_process_instance_key), ''), 'root')],
        [('instance started', c.started_at, []), ('instance completed', c.completed_at, []), ('instance terminated', c.terminated_at, [])]
    FROM cases AS c LEFT JOIN definitions AS d ON d.source = c.source AND d.process_definition_key = c.process_definition_key
    LEFT JOIN attributes AS a ON a.source = c.source AND a.process_instance_key = c.process_instance_key
    UNION ALL
    SELECT concat('element:', e.source, '/', toString(e.key)), 'element', ('ACTIVE', e.activated_at, e.state, ifNull(e.completed_at, e.terminated_at)),
        [('elementId', toJSONString(e.element_id)), ('name', if(e.element_name = '', '', toJSONString(e.element_name))), ('bpmnElementType', toJSONString(e.bpmn_element_type))],
        [(concat('instance:', e.source, '/', e.process_instance_key), 'instance'),
         (if(s.key = 0, '', concat('element:', e.source, '/', toString(s.key))), 'inside')],
        if(e.bpmn_element_type = 'MULTI_INSTANCE_BODY', [], [ -- its children have the same name
            (e.element_id, e.completed_at, [('resource', if(r.resource = '', '', toJSONString(r.resource)))]),
            (concat(e.element_id, ' (terminated)'), if(e.completed_at IS NULL, e.terminated_at, NULL), [])])
    FROM elements AS e
    LEFT JOIN elements AS s ON s.source = e.source AND s.process_instance_key = e.process_instance_key AND s.key = e.flow_scope_key
    LEFT JOIN resources AS r ON r.source = e.source AND r.process_instance_key = e.process_instance_key AND r.key = e.key
    UNION ALL
    SELECT concat(replaceAll(a.kind, ' ', '_'), ':', a.source, '/', toString(a.key)), a.kind, a.lifetime, a.values,
        [(concat('instance:', a.source, '/', a.process_instance_key), 'instance'),
         (if(e.key = 0, '', concat('element:', a.source, '/', toString(e.key))), 'element'),
         (if(j.key = 0, '', concat('job:', a.source, '/', toString(j.key))), 'job')],
        a.happened
    FROM about AS a
    LEFT JOIN elements AS e ON e.source = a.source AND e.process_instance_key = a.process_instance_key AND e.key = a.element_instance_key
    LEFT JOIN jobs AS j ON j.source = a.source AND j.process_instance_key = a.process_instance_key AND j.key = a.job_key
)
-- select events
SELECT toJSONString(event.1), concat('{"id":', toJSONString(concat(event.1, ':', id)), ',"type":', toJSONString(event.1), ',"time":"', replaceOne(toString(assumeNotNull(event.2)), ' ', 'T'), 'Z","attributes":[',
    arrayStringConcat(arrayMap(v -> concat('{"name":"', v.1, '","value":', v.2, '}'), arrayFilter(v -> v.2 != '', event.3)), ','),
    '],"relationships":[', arrayStringConcat(arrayMap(r -> concat('{"objectId":', toJSONString(r.1), ',"qualifier":"', r.2, '"}'),
        arrayPushFront(arrayFilter(r -> r.1 != '' AND r.2 NOT IN ('called by', 'root', 'inside'), related), (id, kind))), ','), ']}')
FROM objects ARRAY JOIN happened AS event WHERE event.2 IS NOT NULL
-- select objects
SELECT toJSONString(kind), concat('{"id":', toJSONString(id), ',"type":', toJSONString(kind), ',"attributes":[', arrayStringConcat(arrayMap(
    v -> concat('{"name":', toJSONString(v.1), ',"time":"', replaceOne(toString(v.2), ' ', 'T'), 'Z","value":', v.3, '}'),
    arrayConcat(
        arrayMap(v -> (v.1, toDateTime64(0, 3, 'UTC'), v.2), arrayFilter(v -> v.2 != '', values)),
        multiIf(
            lifetime.3 = '', [],
            lifetime.4 IS NULL, [('state', toDateTime64(0, 3, 'UTC'), toJSONString(lifetime.3))],
            lifetime.2 IS NULL OR lifetime.1 = lifetime.3, [('state', assumeNotNull(lifetime.4), toJSONString(lifetime.3))],
            [('state', assumeNotNull(lifetime.2), toJSONString(lifetime.1)), ('state', assumeNotNull(lifetime.4), toJSONString(lifetime.3))]))), ','),
    '],"relationships":[', arrayStringConcat(arrayMap(r -> concat('{"objectId":', toJSONString(r.1), ',"qualifier":"', r.2, '"}'), arrayFilter(r -> r.1 != '', related)), ','), ']}')
FROM objects
