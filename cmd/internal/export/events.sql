-- The event log: one row for each start and end of an element, in order.
--
-- Events of one millisecond are ordered by key, which the engine assigns as elements are
-- entered; the end of a scope follows everything inside it, at any depth.
scopes AS ( -- the greatest key in each inner scope: an inner scope has a greater key than the one around it
    SELECT source, process_instance_key, scope.1 AS key, scope.2 AS last_key
    FROM
    (
        WITH
            arrayReverseSort(arrayDistinct(nested.2)) AS keys,
            arrayMap(k -> nested.2[indexOf(nested.1, k)], keys) AS around,
            arrayMap(k -> arrayMax(e -> if(e.2 = k, e.1, 0), nested), keys) AS direct
        SELECT source, process_instance_key, arrayZip(keys, arrayFold(
            (lasts, i) -> arrayMap((last, k) -> if(k = around[i], greatest(last, lasts[i]), last), lasts, keys),
            arrayEnumerate(keys), direct)) AS inner
        FROM
        (
            SELECT source, process_instance_key, groupArray((key, assumeNotNull(flow_scope_key))) AS nested
            FROM elements WHERE flow_scope_key != toInt64OrZero(process_instance_key)
            GROUP BY source, process_instance_key
        )
    )
    ARRAY JOIN inner AS scope
)
SELECT
    concat(c.source, '/', c.process_instance_key) AS `case:concept:name`,
    e.element_id AS `concept:name`,
    event.1 AS `lifecycle:transition`,
    assumeNotNull(event.2) AS `time:timestamp`,
    if(event.1 = 'complete', r.resource, '') AS `org:resource`,
    toString(e.key) AS `concept:instance`,
    e.element_name AS `bpmn:name`,
    e.bpmn_element_type AS `bpmn:type`,
    c.source AS `case:source`,
    c.process_instance_key AS `case:key`,
    c.bpmn_process_id AS `case:process`,
    c.version AS `case:version`,
    c.process_definition_key AS `case:definition`,
    c.tenant_id AS `case:tenant`,
    c.state AS `case:state`,
    c.process_name AS `case:name`,
    if(c.parent_process_instance_key = '', '', concat(c.source, '/', c.parent_process_instance_key)) AS `case:parent`,
    c.parent_element_instance_key AS `case:caller`,
    concat(c.source, '/', c.root_process_instance_key) AS `case:root`/* attributes */
FROM elements AS e
INNER JOIN cases AS c ON c.source = e.source AND c.process_instance_key = e.process_instance_key
LEFT JOIN attributes AS a ON a.source = e.source AND a.process_instance_key = e.process_instance_key
LEFT JOIN resources AS r ON r.source = e.source AND r.process_instance_key = e.process_instance_key AND r.key = e.key
LEFT JOIN scopes AS s ON s.source = e.source AND s.process_instance_key = e.process_instance_key AND s.key = e.key
ARRAY JOIN arrayFilter(event -> event.2 IS NOT NULL, [
    ('start', e.activated_at),
    if(e.completed_at IS NULL, ('ate_abort', e.terminated_at), ('complete', e.completed_at))]) AS event
WHERE e.bpmn_element_type != 'MULTI_INSTANCE_BODY'
ORDER BY c.started_at, c.source, c.process_instance_key, event.2,
    if(event.1 = 'start', e.key, greatest(e.key, s.last_key)), event.1 != 'start', -e.key
