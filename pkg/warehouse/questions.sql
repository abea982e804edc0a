-- Questions of analysts and operators, one statement each. docs/analytics.md is generated
-- from this file. The tests compare every answer with the truth of simulated engines.
--
-- A question begins with "-- question NAME: the question" and the meaning of its answer.
-- "-- example" replaces the example of a parameter. "by default" is the value that sluice
-- ask takes when none is given.
-- Durations are milliseconds and end in _ms; times are UTC. Percentiles are exact and
-- interpolated, as those of pandas and numpy: the p50 of 2 s and 60 s is 31 s. A time is
-- 2025-11-21, 2025-11-21 08:00:00 (UTC), 2025-11-21T08:00:00Z, or has an offset such as +02:00.
--
-- A condition on keys alone, such as key IN (SELECT ...), repeats others on purpose: it is tested
-- before FINAL merges rows, others after that. IN a table of keys may have too many, never too few.
--
-- Where many instances are aggregated, cityHash64(source, process_instance_key) replaces the
-- key: numbers are compared several times as fast as texts. Among a hundred million
-- instances, the probability of a collision is 3 in 10,000.
--
-- parameter source = cluster-a: the engine
-- parameter process = order: BPMN process id; empty for all processes
-- parameter tenant = : tenant; empty for all tenants
-- parameter from = 2025-10-01 00:00:00: start of the period, inclusive
-- parameter to = 2025-12-01 00:00:00: end of the period, exclusive
-- parameter now = 2025-11-21 08:00:00: reference time of the answer; programs pass the current time
-- parameter first = order_placed: element id
-- parameter second = ship: element id
-- parameter quiet = 3600 by default: seconds without an event
-- parameter words = ['timed','out']: whole words that must all occur, case-sensitive
-- parameter instance = 4503599627371432: process instance key
-- parameter name = country: name of a variable
-- parameter value = "DE": its value as JSON; a text includes its quotes
-- parameter limit = 100 by default: maximum number of rows
-- parameter tree = 1 by default: 1: an instance including the instances that it called; 0: an instance alone
-- parameter targets = {"order":3600,"ship":60}: target durations in seconds by element id, as JSON
-- parameter against = : start of the other period; empty for the preceding period
-- parameter business_key = : business key; empty for all
-- parameter zone = UTC by default: time zone, such as Europe/Berlin

-- question durations: How long do instances take, by process, version and tenant?
-- Completed instances that started in the period; canceled ones are excluded. With tree = 1 a duration includes the time that an
-- instance waits for called instances; with tree = 0 it excludes the time during which a called instance ran.
WITH
    (
        -- Called instances may overlap: overlapping time counts once.
        SELECT (arrayConcat([toUInt64(0)], groupArray(instance)), arrayConcat([toInt64(0)], groupArray(ms)))
        FROM
        (
            SELECT cityHash64(source, parent_process_instance_key) AS instance,
                arrayFold((sum, call) -> (sum.1 + greatest(call.2 - greatest(call.1, sum.2), 0), greatest(call.2, sum.2)),
                    arraySort(groupArray((toUnixTimestamp64Milli(assumeNotNull(started_at)), toUnixTimestamp64Milli(assumeNotNull(started_at)) + assumeNotNull(duration_ms)))), (toInt64(0), toInt64(0))).1 AS ms
            FROM flow.v_process_instances
            WHERE {tree:UInt8} = 0 AND parent_process_instance_key != '' AND duration_ms IS NOT NULL
            GROUP BY instance
        )
    ) AS called, -- callers, and the time during which an instance that they called ran
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99)(own_ms) AS percentiles
SELECT source, bpmn_process_id, any(process_name) AS process_name, version, tenant_id, count() AS instances, round(avg(own_ms)) AS avg_ms,
    percentiles[1] AS p50_ms, percentiles[2] AS p90_ms, percentiles[3] AS p95_ms, percentiles[4] AS p99_ms, max(own_ms) AS max_ms
FROM
(
    SELECT *, duration_ms - if({tree:UInt8} = 0, transform(cityHash64(source, process_instance_key), called.1, called.2, 0), 0) AS own_ms
    FROM flow.v_process_instances
    WHERE state = 'COMPLETED' AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
        AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
)
GROUP BY source, bpmn_process_id, version, tenant_id
ORDER BY source, bpmn_process_id, version, tenant_id;

-- question heatmap: Where do instances spend their time?
-- Elements entered in the period, by the process they belong to now. active counts elements that are active now, failed those that had
-- an incident. A duration is from the activation to the end, including elements that were canceled or interrupted by a boundary event;
-- for active elements it ends now. A multi-instance body has a row of its own, MULTI_INSTANCE_BODY; its iterations have the type
-- of the activity. Elements that ended before a migration belong to the earlier process and version, which may therefore
-- have more executions of an element than instances.
SELECT source, bpmn_process_id, element_id, name AS element_name, bpmn_element_type, executions, active, terminated, failed, p50_ms, p95_ms, total_ms
FROM
(
    SELECT source, bpmn_process_id, element_id, bpmn_element_type, count() AS executions, countIf(there) AS active,
        countIf(state = 'TERMINATED') AS terminated,
        countIf((source, key) GLOBAL IN (SELECT source, assumeNotNull(element_instance_key) FROM flow.incidents WHERE element_instance_key > 0)) AS failed,
        quantileExactInclusive(0.5)(ms) AS p50_ms, quantileExactInclusive(0.95)(ms) AS p95_ms, sum(ms) AS total_ms
    FROM
    (
        SELECT source, bpmn_process_id, element_id, bpmn_element_type, key, state, state IN ('ACTIVATING', 'ACTIVE') AS there,
            if(there, greatest(dateDiff('millisecond', coalesce(activated_at, entered_at), parseDateTime64BestEffort({now:String}, 3, 'UTC')), 0), duration_ms) AS ms
        FROM flow.v_element_instances
        WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
            AND entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND entered_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
            -- A row that is not merged yet may lack entered_at or the migration.
            AND key IN (SELECT key FROM flow.element_instances WHERE entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND entered_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
                AND ({process:String} = '' OR bpmn_process_id IN ({process:String}, '') OR migrated != '')
                UNION ALL SELECT key FROM flow.element_instances WHERE {process:String} != '' AND migrated != '' AND (entered_at IS NULL OR entered_at >= parseDateTime64BestEffort({to:String}, 3, 'UTC')))
    )
    GROUP BY source, bpmn_process_id, element_id, bpmn_element_type
) AS e
GLOBAL LEFT JOIN flow.v_element_names AS n USING (source, bpmn_process_id, element_id)
ORDER BY total_ms DESC, source, bpmn_process_id, element_id, bpmn_element_type;

-- question incident_rate: How many instances have incidents, and how long until they are resolved?
-- Instances started in the period, by the process they belong to now. An incident also ends with its element.
-- example process=
SELECT p.source AS source, p.bpmn_process_id AS bpmn_process_id, any(p.process_name) AS process_name, count() AS instances,
    countIf(n.incidents > 0) AS with_incidents, sum(n.incidents) AS incidents, sum(n.open_now) AS open_now,
    round(incidents / instances, 4) AS per_instance,
    quantileExactInclusiveOrNullArray(0.5)(n.resolutions_ms) AS p50_resolution_ms, quantileExactInclusiveOrNullArray(0.95)(n.resolutions_ms) AS p95_resolution_ms
FROM
(
    SELECT source, bpmn_process_id, process_name, cityHash64(source, process_instance_key) AS instance
    FROM flow.v_process_instances
    WHERE started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
        AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
) AS p
LEFT JOIN
(
    SELECT cityHash64(source, process_instance_key) AS instance, count() AS incidents, countIf(open) AS open_now, groupArrayIf(resolution_ms, resolution_ms IS NOT NULL) AS resolutions_ms
    FROM flow.v_incidents
    GROUP BY instance
) AS n ON n.instance = p.instance
GROUP BY source, bpmn_process_id
ORDER BY incidents DESC, source, bpmn_process_id;

-- question incidents_by_type: Which types of incidents occur, and which are open?
-- Incidents created in the period.
SELECT source, bpmn_process_id, element_id, any(element_name) AS element_name, error_type, count() AS incidents, countIf(open) AS open_now,
    uniqExact(process_instance_key) AS instances, quantileExactInclusive(0.5)(resolution_ms) AS p50_resolution_ms, max(created_at) AS last_at
FROM flow.v_incidents
WHERE created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, element_id, error_type
ORDER BY incidents DESC, source, bpmn_process_id, element_id, error_type;

-- question automation_rate: How many instances complete without a user task?
-- Completed instances that started in the period, and those of them without a user task or manual task. With tree = 1 tasks of called
-- instances count too. Tables are read instead of views, to compute no other
-- column for every instance.
-- example process=
WITH RECURSIVE
    callers AS
    (
        SELECT source, process_instance_key, toString(assumeNotNull(max(c.parent_process_instance_key))) AS caller
        FROM flow.process_instances AS c
        WHERE c.parent_process_instance_key > 0 AND {tree:UInt8} = 1 AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC')
        GROUP BY source, process_instance_key
    ),
    people AS
    (
        SELECT source, process_instance_key
        FROM flow.element_instances
        WHERE bpmn_element_type IN ('USER_TASK', 'MANUAL_TASK') AND entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC')
        GROUP BY source, process_instance_key
        UNION ALL
        SELECT c.source AS source, c.caller AS process_instance_key
        FROM callers AS c
        INNER JOIN people AS p ON p.source = c.source AND p.process_instance_key = c.process_instance_key
    )
SELECT source, bpmn_process_id, any(process_name) AS process_name, version, count() AS completed,
    countIf(cityHash64(source, process_instance_key) GLOBAL NOT IN (SELECT cityHash64(source, process_instance_key) FROM people)) AS automatic,
    round(automatic / completed, 4) AS automation_rate
FROM flow.v_process_instances
WHERE state = 'COMPLETED' AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, version
ORDER BY source, bpmn_process_id, version;

-- question incident_free_rate: How many instances complete without an incident?
-- Completed instances that started in the period.
-- example process=
SELECT source, bpmn_process_id, any(process_name) AS process_name, version, count() AS completed, countIf(incidents = 0) AS incident_free,
    round(incident_free / completed, 4) AS incident_free_rate
FROM flow.v_process_instances
WHERE state = 'COMPLETED' AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, version
ORDER BY source, bpmn_process_id, version;

-- question bottlenecks: Where are instances waiting now?
-- Active elements, without containers (processes, sub-processes, call activities, multi-instance bodies).
-- An element that stays ACTIVATING is stuck before its activation.
-- example process=
SELECT source, bpmn_process_id, element_id, any(element_name) AS element_name, bpmn_element_type, state, count() AS waiting, min(entered_at) AS oldest,
    quantileExactInclusive(0.5)(wait_ms) AS p50_wait_ms, max(wait_ms) AS max_wait_ms
FROM
(
    SELECT *, dateDiff('millisecond', entered_at, parseDateTime64BestEffort({now:String}, 3, 'UTC')) AS wait_ms
    FROM flow.v_active_elements
    WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
        AND bpmn_element_type NOT IN ('PROCESS', 'SUB_PROCESS', 'EVENT_SUB_PROCESS', 'AD_HOC_SUB_PROCESS', 'CALL_ACTIVITY', 'MULTI_INSTANCE_BODY')
)
GROUP BY source, bpmn_process_id, element_id, bpmn_element_type, state
ORDER BY waiting DESC, source, bpmn_process_id, element_id, bpmn_element_type, state;

-- question outliers: Which executions of an element take far longer than the others?
-- Executions that exceed the third quartile by more than 1.5 times the interquartile range (Tukey's fence), including executions
-- that were canceled or interrupted by a boundary event. The duration of an active element ends now.
WITH quartiles[3] + 1.5 * (quartiles[3] - quartiles[1]) AS fence
SELECT source, bpmn_process_id, element_id, name AS element_name, bpmn_element_type, one.2 AS process_instance_key, one.3 AS element_instance_key, one.4 AS state, one.1 AS duration_ms,
    quartiles[2] AS p50_ms, toInt64(fence) AS fence_ms
FROM
(
    SELECT source, bpmn_process_id, element_id, bpmn_element_type, quantilesExactInclusive(0.25, 0.5, 0.75)(assumeNotNull(ms)) AS quartiles,
        groupArray((assumeNotNull(ms), process_instance_key, key, state)) AS all
    FROM
    (
        SELECT source, bpmn_process_id, element_id, bpmn_element_type, process_instance_key, key, state,
            if(state IN ('ACTIVATING', 'ACTIVE'), greatest(dateDiff('millisecond', coalesce(activated_at, entered_at), parseDateTime64BestEffort({now:String}, 3, 'UTC')), 0), duration_ms) AS ms
        FROM flow.v_element_instances
        WHERE ({process:String} = '' OR bpmn_process_id = {process:String})
    )
    WHERE ms IS NOT NULL
    GROUP BY source, bpmn_process_id, element_id, bpmn_element_type
) AS e
ARRAY JOIN arrayFilter(x -> x.1 > fence, all) AS one
GLOBAL LEFT JOIN flow.v_element_names AS n USING (source, bpmn_process_id, element_id)
ORDER BY duration_ms DESC, source, element_instance_key
LIMIT {limit:UInt32};

-- question funnel: How many instances get from one element to another, and how fast?
-- Instances started in the period that activated the first element, and those of them that activated the second element then or later.
SELECT source, count() AS reached_first, countIf(notEmpty(later)) AS reached_second, round(reached_second / reached_first, 4) AS share,
    quantileExactInclusiveOrNullIf(0.5)(dateDiff('millisecond', first_at, later[1]), notEmpty(later)) AS p50_ms,
    quantileExactInclusiveOrNullIf(0.95)(dateDiff('millisecond', first_at, later[1]), notEmpty(later)) AS p95_ms
FROM
(
    SELECT source, process_instance_key, assumeNotNull(minIf(activated_at, element_id = {first:String})) AS first_at,
        arraySort(arrayFilter(at -> at >= first_at, groupArrayIf(assumeNotNull(activated_at), element_id = {second:String} AND activated_at IS NOT NULL))) AS later
    FROM flow.v_element_instances
    WHERE element_id IN ({first:String}, {second:String}) AND (source, process_instance_key) IN
        (
            SELECT source, process_instance_key FROM flow.v_process_instances
            WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
                AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
        )
    GROUP BY source, process_instance_key
    HAVING countIf(element_id = {first:String} AND activated_at IS NOT NULL) > 0
)
GROUP BY source
ORDER BY source;

-- question variants: Which paths do instances take through a process?
-- The elements of completed instances in the order of their activation. Consecutive repetitions of an element, such as iterations
-- of a loop, are listed once. path_names has the id of an element without a name. Each order of parallel branches is a variant.
-- example process=claim
SELECT source, bpmn_process_id, process_name, arrayStringConcat(steps, ' > ') AS path, arrayStringConcat(arrayMap(id -> if(names[id] = '', id, names[id]), steps), ' > ') AS path_names, instances, share, p50_ms
FROM
(
    SELECT source, bpmn_process_id, any(process_name) AS process_name, steps, count() AS instances,
        round(instances / sum(instances) OVER (PARTITION BY source, bpmn_process_id), 4) AS share, quantileExactInclusive(0.5)(duration_ms) AS p50_ms
    FROM
    (
        SELECT source, bpmn_process_id, process_name, cityHash64(source, process_instance_key) AS instance, duration_ms
        FROM flow.v_process_instances
        WHERE state = 'COMPLETED' AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
            AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
    ) AS completed
    GLOBAL INNER JOIN
    (
        SELECT cityHash64(source, process_instance_key) AS instance, arrayCompact(arraySort(groupArray((activated_at, key, element_id))).3) AS steps
        FROM flow.v_element_instances
        WHERE activated_at IS NOT NULL AND bpmn_element_type NOT IN ('PROCESS', 'MULTI_INSTANCE_BODY') AND (source, process_instance_key) IN
            (
                SELECT source, process_instance_key FROM flow.v_process_instances
                WHERE state = 'COMPLETED' AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
                    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
            )
        GROUP BY instance
    ) AS elements USING instance
    GROUP BY source, bpmn_process_id, steps
    ORDER BY instances DESC, source, bpmn_process_id, arrayStringConcat(steps, ' > ')
    LIMIT {limit:UInt32}
) AS v
GLOBAL LEFT JOIN (SELECT source, bpmn_process_id, mapFromArrays(groupArray(element_id), groupArray(name)) AS names FROM flow.v_element_names GROUP BY source, bpmn_process_id) AS n USING (source, bpmn_process_id)
ORDER BY instances DESC, source, bpmn_process_id, path;

-- question directly_follows: Which element follows which, how often, and after what time?
-- An element follows another by a sequence flow that the engine took (SEQUENCE_FLOW_TAKEN); a boundary event follows its element.
-- The BPMN of the version defines what a flow connects. The time ends when the element is entered: at a join it is the time that a
-- branch waits for the others. Element ids are those before a migration. Flows of versions without BPMN in v_process_definitions
-- are left out. The table of records is read without FINAL, to save its merge; groupUniqArray drops duplicates.
WITH
    (
        SELECT (arrayConcat([0], groupArray(cityHash64(source, process_definition_key, way.1))), arrayConcat([''], groupArray(way.2)), arrayConcat([''], groupArray(way.3)))
        FROM
        (
            SELECT source, process_definition_key, arrayJoin(arrayConcat(
                arrayMap(f -> (extract(f, '\\sid="([^"]*)"'), extract(f, '\\ssourceRef="([^"]*)"'), extract(f, '\\stargetRef="([^"]*)"')), extractAll(xml, '<(?:\\w+:)?sequenceFlow\\s[^>]*>')),
                arrayMap(f -> (extract(f, '\\sid="([^"]*)"'), extract(f, '\\sattachedToRef="([^"]*)"'), extract(f, '\\sid="([^"]*)"')), extractAll(xml, '<(?:\\w+:)?boundaryEvent\\s[^>]*>')))) AS way
            FROM flow.v_process_definitions
        )
    ) AS ways -- of sequence flows and boundary events: a number, from, to
SELECT f.source AS source, f.bpmn_process_id AS bpmn_process_id, from_id, a.name AS from_name, to_id, b.name AS to_name, times, instances, p50_gap_ms, max_gap_ms
FROM
(
    SELECT p.source AS source, p.bpmn_process_id AS bpmn_process_id, ways.2[s.step.1] AS from_id, ways.3[s.step.1] AS to_id, count() AS times,
        uniqExact(s.instance) AS instances, quantileExactInclusive(0.5)(s.step.2) AS p50_gap_ms, max(s.step.2) AS max_gap_ms
    FROM
    (
        -- A tuple is (ms, position, key, ...): of a flow its index in ways and its target, of an entered element its id.
        SELECT instance,
            arrayJoin(arrayMap(t -> (t.4, nullIf(arrayFirst(e -> e.4 = t.5 AND (e.1, e.2) >= (t.1, t.2), entered).1, 0) - t.1), taken)) AS step
        FROM
        (
            WITH transform(cityHash64(r.source, ifNull(r.process_definition_key, 0), r.element_id), ways.1, arrayEnumerate(ways.1), 0) AS way
            SELECT cityHash64(r.source, r.process_instance_key) AS instance, r.flow_scope_key AS scope,
                groupUniqArrayIf((toUnixTimestamp64Milli(r.ts), r.position, r.key, way, cityHash64(ways.3[way])), way > 0 AND (r.intent = 'SEQUENCE_FLOW_TAKEN' OR r.bpmn_element_type = 'BOUNDARY_EVENT')) AS taken,
                arraySort(groupUniqArrayIf((toUnixTimestamp64Milli(r.ts), r.position, r.key, cityHash64(r.element_id)), r.intent = 'ELEMENT_ACTIVATING')) AS entered
            FROM flow.records AS r
            WHERE r.value_type = 'PROCESS_INSTANCE' AND r.record_type = 'EVENT' AND r.intent IN ('SEQUENCE_FLOW_TAKEN', 'ELEMENT_ACTIVATING')
                AND ({process:String} = '' OR r.bpmn_process_id = {process:String} OR r.bpmn_process_id GLOBAL IN
                    (SELECT arrayJoin(processes) FROM flow.v_process_instances WHERE has(processes, {process:String}) AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')))
                AND r.ts >= parseDateTime64BestEffort({from:String}, 3, 'UTC')
            GROUP BY instance, scope
        )
    ) AS s
    GLOBAL INNER JOIN
    (
        SELECT source, bpmn_process_id, cityHash64(source, process_instance_key) AS instance
        FROM flow.v_process_instances
        WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
            AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    ) AS p ON p.instance = s.instance
    WHERE s.step.2 IS NOT NULL -- nothing follows a branch that waits at a join
    GROUP BY source, bpmn_process_id, from_id, to_id
) AS f
GLOBAL LEFT JOIN flow.v_element_names AS a ON a.source = f.source AND a.bpmn_process_id = f.bpmn_process_id AND a.element_id = f.from_id
GLOBAL LEFT JOIN flow.v_element_names AS b ON b.source = f.source AND b.bpmn_process_id = f.bpmn_process_id AND b.element_id = f.to_id
ORDER BY source, bpmn_process_id, times DESC, from_id, to_id;

-- question job_latency: How long do jobs wait for a worker, and how long does the work take?
-- Completed jobs created in the period, by type. queue is from the creation to the last activation, including failed attempts; work is
-- from that to the completion. Both need JOB_BATCH records, which engines export only if configured; total does not.
WITH
    quantilesExactInclusive(0.5, 0.95)(dateDiff('millisecond', created_at, activated_at)) AS queue_ms,
    quantilesExactInclusive(0.5, 0.95)(dateDiff('millisecond', activated_at, completed_at)) AS work_ms,
    quantilesExactInclusive(0.5, 0.95)(duration_ms) AS total_ms,
    count(activated_at) > 0 AS told
SELECT source, job_type, count() AS jobs, if(told, queue_ms[1], NULL) AS p50_queue_ms, if(told, queue_ms[2], NULL) AS p95_queue_ms,
    if(told, work_ms[1], NULL) AS p50_work_ms, if(told, work_ms[2], NULL) AS p95_work_ms, total_ms[1] AS p50_total_ms, total_ms[2] AS p95_total_ms
FROM flow.v_jobs
WHERE completed_at IS NOT NULL AND created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, job_type
ORDER BY jobs DESC, source, job_type;

-- question workers: Which workers fail most?
-- A failure counts for the worker that had the job at that time, so the question reads the events of jobs.
-- PREWHERE on the table of records skips other records before FINAL merges rows; v_records has the same rows and takes longer.
SELECT source, worker, job_type, countIf(intent = 'COMPLETED') AS completed, countIf(intent = 'FAILED') AS failures,
    countIf(intent = 'TIMED_OUT') AS timeouts, countIf(intent = 'ERROR_THROWN') AS errors_thrown,
    round(failures / (completed + failures + timeouts + errors_thrown), 4) AS failure_rate
FROM flow.records FINAL
PREWHERE value_type = 'JOB' AND record_type = 'EVENT' AND intent IN ('COMPLETED', 'FAILED', 'TIMED_OUT', 'ERROR_THROWN') AND worker != ''
WHERE ts >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND ts < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, worker, job_type
ORDER BY failures DESC, source, worker, job_type
LIMIT {limit:UInt32};

-- question retries_exhausted: Which jobs have no retries left?
-- Jobs created in the period. exhausted counts jobs that had no retries at some time, now those that have none and wait for an operator.
SELECT source, bpmn_process_id, any(process_name) AS process_name, job_type, count() AS jobs, countIf(min_retries = 0) AS exhausted,
    countIf(retries = 0 AND open) AS now
FROM flow.v_jobs
WHERE created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, job_type
HAVING exhausted > 0
ORDER BY exhausted DESC, source, bpmn_process_id, job_type;

-- question deadline_breaches: Which jobs miss their deadline?
-- Jobs created in the period. timed_out counts jobs that timed out at least once, late those that completed after their deadline without
-- a time-out.
SELECT source, job_type, count() AS jobs, countIf(j.timeouts > 0) AS timed_out, sum(j.timeouts) AS timeouts, countIf(completed_late) AS late,
    max(late_ms) AS max_late_ms, round(countIf(j.timeouts > 0 OR completed_late) / jobs, 4) AS breach_rate
FROM flow.v_jobs AS j
WHERE created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, job_type
ORDER BY breach_rate DESC, source, job_type;

-- question error_patterns: Which errors do workers report most?
-- Failed jobs by message, with every number replaced by #. PREWHERE as in workers.
SELECT source, job_type, error_code, replaceRegexpAll(error_message, '[0-9]+', '#') AS pattern, count() AS failures,
    uniqExact(process_instance_key) AS instances, max(ts) AS last_at
FROM flow.records FINAL
PREWHERE value_type = 'JOB' AND record_type = 'EVENT' AND intent = 'FAILED'
WHERE ts >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND ts < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, job_type, error_code, pattern
ORDER BY failures DESC, source, job_type, error_code, pattern
LIMIT {limit:UInt32};

-- question error_text: Which records contain an error text?
-- The text index finds the times of the latest matches, as many as rows are requested; only records from then on are read.
-- Before ClickHouse 26.2 use hasToken for each word. LIMIT 1 BY drops duplicates that are not merged yet.
SELECT r.source AS source, r.ts AS ts, r.bpmn_process_id AS bpmn_process_id, p.name AS process_name, r.process_instance_key AS process_instance_key, r.value_type AS value_type,
    r.intent AS intent, r.element_id AS element_id, e.name AS element_name, r.error_message AS error_message
FROM
(
    SELECT source, ts, bpmn_process_id, process_instance_key, value_type, intent, element_id, error_message, partition_id, position
    FROM flow.records
    WHERE hasAllTokens(error_message, {words:Array(String)}) AND record_type = 'EVENT'
        AND ts >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND ts < parseDateTime64BestEffort({to:String}, 3, 'UTC') AND ts >=
        (
            SELECT min(ts) FROM
            (
                SELECT DISTINCT ts FROM flow.records
                WHERE hasAllTokens(error_message, {words:Array(String)}) AND record_type = 'EVENT' AND ts >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND ts < parseDateTime64BestEffort({to:String}, 3, 'UTC')
                ORDER BY ts DESC
                LIMIT {limit:UInt32}
            )
        )
    ORDER BY ts DESC, source, partition_id, position
    LIMIT 1 BY ts, source, id, value_type, process_instance_key, key, intent, error_message
    LIMIT {limit:UInt32}
) AS r
GLOBAL LEFT JOIN flow.v_element_names AS p ON p.source = r.source AND p.bpmn_process_id = r.bpmn_process_id AND p.element_id = r.bpmn_process_id
GLOBAL LEFT JOIN flow.v_element_names AS e ON e.source = r.source AND e.bpmn_process_id = r.bpmn_process_id AND e.element_id = r.element_id
ORDER BY ts DESC, source, r.partition_id, r.position;

-- question throughput: How many instances start and end, by hour and version?
-- Each hour of the period has a row for each version with an instance that started or ended in the period; hours without any have
-- zeros. Hours are those of the time zone.
-- example from=2025-11-21T04:00:00Z
-- example to=2025-11-21T12:00:00+01:00
-- example zone=Europe/Berlin
SELECT source, bpmn_process_id, max(name) OVER (PARTITION BY source, bpmn_process_id) AS process_name, version, hour, started, completed, canceled
FROM
(
    SELECT source, bpmn_process_id, any(process_name) AS name, version, toStartOfHour(toDateTime(at, {zone:String})) AS hour, countIf(what = 'started') AS started,
        countIf(what = 'completed') AS completed, countIf(what = 'canceled') AS canceled
    FROM
    (
        SELECT source, bpmn_process_id, process_name, version, happened.1 AS what, assumeNotNull(happened.2) AS at
        FROM flow.v_process_instances
        ARRAY JOIN [('started', started_at), ('completed', completed_at), ('canceled', terminated_at)] AS happened
        WHERE happened.2 IS NOT NULL AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
    )
    WHERE at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    GROUP BY source, bpmn_process_id, version, hour
    ORDER BY source, bpmn_process_id, version,
        hour WITH FILL FROM toStartOfHour(toDateTime(parseDateTime64BestEffort({from:String}, 3, 'UTC'), {zone:String})) TO toDateTime(parseDateTime64BestEffort({to:String}, 3, 'UTC'), {zone:String}) STEP 3600
)
WHERE source != '' -- a period without events has hours only
ORDER BY source, bpmn_process_id, version, hour;

-- question work_in_progress: How many instances are in progress, hour by hour?
-- active is the number at the end of the hour or of the period: instances that had started, also before the period, and had not ended.
-- Each hour of the period has a row for each process that was in progress in the period. Hours are those of the time zone.
-- example from=2025-11-21T04:00:00Z
-- example to=2025-11-21T12:00:00+01:00
-- example zone=Europe/Berlin
WITH parseDateTime64BestEffort({from:String}, 3, 'UTC') AS first_moment, parseDateTime64BestEffort({to:String}, 3, 'UTC') AS end_moment
SELECT source, bpmn_process_id, max(name) OVER (PARTITION BY source, bpmn_process_id) AS process_name, hour, started, ended,
    sum(change) OVER (PARTITION BY source, bpmn_process_id ORDER BY hour) AS active
FROM
(
    SELECT source, bpmn_process_id, any(process_name) AS name, toStartOfHour(toDateTime(greatest(at, first_moment), {zone:String})) AS hour,
        countIf(step = 1 AND at >= first_moment) AS started, countIf(step = -1) AS ended, sum(step) AS change
    FROM
    (
        SELECT source, bpmn_process_id, process_name, moment.1 AS step, assumeNotNull(moment.2) AS at
        FROM flow.v_process_instances
        ARRAY JOIN [(1, started_at), (-1, coalesce(completed_at, terminated_at))] AS moment
        WHERE started_at < end_moment AND (state = 'ACTIVE' OR coalesce(completed_at, terminated_at) >= first_moment)
            AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
    )
    WHERE at > 0 AND at < end_moment
    GROUP BY source, bpmn_process_id, hour
    ORDER BY source, bpmn_process_id,
        hour WITH FILL FROM toStartOfHour(toDateTime(first_moment, {zone:String})) TO toDateTime(end_moment, {zone:String}) STEP 3600
)
WHERE source != '' -- a period without instances has hours only
ORDER BY source, bpmn_process_id, hour;

-- question stuck: Which active instances have had no event for long?
-- Events are those of its own elements, jobs, and incidents. open_incidents counts its own, incidents_below those of all instances below
-- it in the call tree, which it may wait for.
SELECT source, bpmn_process_id, process_name, version, process_instance_key, business_key, started_at, last_seen,
    dateDiff('millisecond', last_seen, parseDateTime64BestEffort({now:String}, 3, 'UTC')) AS silent_ms, open_incidents, incidents_below
FROM flow.v_process_instances
WHERE state = 'ACTIVE' AND last_seen < parseDateTime64BestEffort({now:String}, 3, 'UTC') - toIntervalSecond({quiet:UInt32})
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
    AND ({business_key:String} = '' OR business_key = {business_key:String})
ORDER BY last_seen, source, process_instance_key
LIMIT {limit:UInt32};

-- question version_comparison: Is the new version better than the old one?
-- Instances started in the period, by the version they belong to now. Durations are those of completed instances.
SELECT source, bpmn_process_id, any(process_name) AS process_name, version, count() AS instances, countIf(state = 'COMPLETED') AS completed, countIf(state = 'CANCELED') AS canceled,
    quantileExactInclusiveIf(0.5)(duration_ms, state = 'COMPLETED') AS p50_ms, quantileExactInclusiveIf(0.95)(duration_ms, state = 'COMPLETED') AS p95_ms,
    round(countIf(incidents > 0) / instances, 4) AS incident_share, round(sum(job_failures) / instances, 4) AS job_failures_per_instance
FROM flow.v_process_instances
WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, version
ORDER BY source, bpmn_process_id, version;

-- question tenant_comparison: How do tenants differ?
-- Instances started in the period. Durations are those of completed instances.
SELECT source, tenant_id, count() AS instances, countIf(state = 'COMPLETED') AS completed, countIf(state = 'CANCELED') AS canceled,
    quantileExactInclusiveIf(0.5)(duration_ms, state = 'COMPLETED') AS p50_ms, quantileExactInclusiveIf(0.95)(duration_ms, state = 'COMPLETED') AS p95_ms,
    round(countIf(incidents > 0) / instances, 4) AS incident_share, round(sum(job_failures) / instances, 4) AS job_failures_per_instance
FROM flow.v_process_instances
WHERE started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC') AND ({process:String} = '' OR bpmn_process_id = {process:String})
GROUP BY source, tenant_id
ORDER BY source, tenant_id;

-- question period_comparison: Is this period better than another one?
-- Instances started in the period, and in another period of the same length that begins at against.
-- Durations are those of completed instances; p50_change is the relative change of p50.
-- example from=2025-11-21 06:00:00
-- example to=2025-11-21 07:00:00
-- example process=
WITH parseDateTime64BestEffort({from:String}, 3, 'UTC') AS first_moment, parseDateTime64BestEffort({to:String}, 3, 'UTC') AS end_moment,
    if({against:String} = '', first_moment - toIntervalMillisecond(dateDiff('millisecond', first_moment, end_moment)), parseDateTime64BestEffortOrZero({against:String}, 3, 'UTC')) AS first_before,
    first_before + toIntervalMillisecond(dateDiff('millisecond', first_moment, end_moment)) AS end_before
SELECT source, bpmn_process_id, any(process_name) AS process_name, countIf(now) AS instances, countIf(before) AS instances_before,
    countIf(now AND state = 'COMPLETED') AS completed, countIf(before AND state = 'COMPLETED') AS completed_before,
    countIf(now AND state = 'CANCELED') AS canceled, countIf(before AND state = 'CANCELED') AS canceled_before,
    quantileExactInclusiveIf(0.5)(duration_ms, now AND state = 'COMPLETED') AS p50_ms, quantileExactInclusiveIf(0.5)(duration_ms, before AND state = 'COMPLETED') AS p50_before_ms,
    quantileExactInclusiveIf(0.95)(duration_ms, now AND state = 'COMPLETED') AS p95_ms, quantileExactInclusiveIf(0.95)(duration_ms, before AND state = 'COMPLETED') AS p95_before_ms,
    round(p50_ms / nullIf(p50_before_ms, 0) - 1, 4) AS p50_change,
    round(countIf(now AND incidents > 0) / nullIf(instances, 0), 4) AS incident_share, round(countIf(before AND incidents > 0) / nullIf(instances_before, 0), 4) AS incident_share_before
FROM
(
    SELECT *, started_at >= first_moment AND started_at < end_moment AS now, started_at >= first_before AND started_at < end_before AS before
    FROM flow.v_process_instances
    WHERE started_at >= least(first_moment, first_before) AND started_at < greatest(end_moment, end_before) AND (now OR before)
        AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
)
GROUP BY source, bpmn_process_id
ORDER BY source, bpmn_process_id;

-- question targets: How often do processes and elements meet their target durations?
-- Elements entered in the period whose id targets has; a process has its bpmn_process_id. within counts those that completed within the
-- target, late those that exceeded it, active ones included, and open active ones within it. Canceled elements are excluded. share is
-- within / (within + late).
WITH JSONExtract({targets:String}, 'Map(String, Int64)') AS target
SELECT e.source AS source, e.bpmn_process_id AS bpmn_process_id, p.name AS process_name, e.element_id AS element_id, n.name AS element_name, bpmn_element_type, target_s,
    executions, within, late, executions - within - late AS open, round(within / nullIf(within + late, 0), 4) AS share, p50_ms, p95_ms
FROM
(
    SELECT source, bpmn_process_id, element_id, bpmn_element_type, target[element_id] AS target_s, count() AS executions,
        countIf(state = 'COMPLETED' AND ms <= 1000 * target_s) AS within, countIf(ms > 1000 * target_s) AS late,
        quantileExactInclusive(0.5)(ms) AS p50_ms, quantileExactInclusive(0.95)(ms) AS p95_ms
    FROM
    (
        SELECT source, bpmn_process_id, element_id, bpmn_element_type, state,
            if(state = 'COMPLETED', duration_ms, greatest(dateDiff('millisecond', coalesce(activated_at, entered_at), parseDateTime64BestEffort({now:String}, 3, 'UTC')), 0)) AS ms
        FROM flow.v_element_instances
        WHERE element_id IN (mapKeys(target)) AND state != 'TERMINATED'
            AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
            AND entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND entered_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
            -- A row that is not merged yet may lack entered_at or the migration.
            AND key IN (SELECT key FROM flow.element_instances WHERE entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND entered_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
                AND ({process:String} = '' OR bpmn_process_id IN ({process:String}, '') OR migrated != '')
                UNION ALL SELECT key FROM flow.element_instances WHERE {process:String} != '' AND migrated != '' AND (entered_at IS NULL OR entered_at >= parseDateTime64BestEffort({to:String}, 3, 'UTC')))
    )
    GROUP BY source, bpmn_process_id, element_id, bpmn_element_type
) AS e
GLOBAL LEFT JOIN flow.v_element_names AS n ON n.source = e.source AND n.bpmn_process_id = e.bpmn_process_id AND n.element_id = e.element_id
GLOBAL LEFT JOIN flow.v_element_names AS p ON p.source = e.source AND p.bpmn_process_id = e.bpmn_process_id AND p.element_id = e.bpmn_process_id
ORDER BY source, bpmn_process_id, element_id, bpmn_element_type;

-- question rework: Which elements do instances repeat, and how long does that take?
-- Elements entered in the period. A repetition is an element that is entered more than once in the same scope, the instance or a
-- sub-process: by a loop of the model, or by a modification. Iterations of a multi-instance activity are no repetitions. rework_ms is
-- the duration of all passes after the first; that of an active element ends now.
-- example process=
SELECT source, bpmn_process_id, element_id, name AS element_name, bpmn_element_type, instances, instances_again, round(instances_again / instances, 4) AS share,
    passes, passes_again, most_passes, rework_ms
FROM
(
    SELECT source, bpmn_process_id, element_id, bpmn_element_type, any(instances) AS instances, uniqExactIf(instance, times > 1) AS instances_again,
        sum(times) AS passes, sum(times - 1) AS passes_again, max(times) AS most_passes, sum(again_ms) AS rework_ms
    FROM
    (
        SELECT source, bpmn_process_id, element_id, bpmn_element_type, any(instances) AS instances, any(pass.1) AS instance,
            count() AS times, sum(pass.5) - argMin(pass.5, (pass.3, pass.4)) AS again_ms
        FROM
        (
            -- Passes of elements that no instance repeats need not be told apart.
            SELECT source, bpmn_process_id, element_id, bpmn_element_type, uniqExact(instance) AS instances, groupArray((instance, scope, assumeNotNull(entered_at), key, ifNull(ms, 0))) AS all
            FROM
            (
                SELECT *, cityHash64(source, process_instance_key) AS instance, cityHash64(instance, ifNull(flow_scope_key, 0)) AS scope,
                    if(state IN ('ACTIVATING', 'ACTIVE'), greatest(dateDiff('millisecond', coalesce(activated_at, entered_at), parseDateTime64BestEffort({now:String}, 3, 'UTC')), 0), duration_ms) AS ms
                FROM flow.v_element_instances
                WHERE ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
                    AND entered_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND entered_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
                    AND (source, ifNull(flow_scope_key, 0)) GLOBAL NOT IN (SELECT source, key FROM flow.element_instances WHERE bpmn_element_type = 'MULTI_INSTANCE_BODY')
            )
            GROUP BY source, bpmn_process_id, element_id, bpmn_element_type
            HAVING count() > uniqExact(scope)
        )
        ARRAY JOIN all AS pass
        GROUP BY source, bpmn_process_id, element_id, bpmn_element_type, pass.2
    )
    GROUP BY source, bpmn_process_id, element_id, bpmn_element_type
) AS e
GLOBAL LEFT JOIN flow.v_element_names AS n USING (source, bpmn_process_id, element_id)
ORDER BY passes_again DESC, source, bpmn_process_id, element_id, bpmn_element_type;

-- question timeline: What has happened in an instance?
-- All events of the instance, from every partition. Positions order the records of one partition only. Days are read from the day before
-- its first event on, for an ended instance to the day after its last.
-- Its first and last event are read from the table behind v_process_instances, which takes half the time.
WITH
    (
        SELECT (ifNull(toDate(min(first_seen)), toDate('1970-01-02')) - 1, if(max(state) >= 3, ifNull(toDate(max(last_seen)), toDate('2149-06-05')) + 1, toDate('2149-06-06')))
        FROM flow.process_instances
        WHERE source = {source:String} AND process_instance_key = {instance:String}
    ) AS days
SELECT ts, partition_id, position, value_type, intent, element_id, element_name, bpmn_element_type, key, job_type, worker, retries, error_message
FROM flow.v_records
WHERE source = {source:String} AND process_instance_key = {instance:String} AND record_type = 'EVENT'
    AND (toDate(ts) BETWEEN days.1 AND days.2 OR toDate(ts) = toDate('1970-01-01'))
ORDER BY ts, partition_id, position;

-- question instance_tree: Which instances did an instance call?
-- The instance itself has depth 0; element_id is the call activity that started a called instance. Called instances start while their
-- caller is active, so only that time is read. Calls are read from the table behind v_process_instances, which takes a quarter of the time.
WITH RECURSIVE
    (
        SELECT (ifNull(min(started_at), toDateTime64(0, 3, 'UTC')), coalesce(max(completed_at), max(terminated_at), toDateTime64('2200-01-01', 3, 'UTC')))
        FROM flow.process_instances
        WHERE source = {source:String} AND process_instance_key = {instance:String}
    ) AS life,
    tree AS
    (
        SELECT 0 AS depth, {instance:String} AS process_instance_key
        UNION ALL
        SELECT t.depth + 1 AS depth, i.process_instance_key AS process_instance_key
        FROM
        (
            SELECT process_instance_key, toString(assumeNotNull(max(parent_process_instance_key))) AS parent
            FROM flow.process_instances
            WHERE source = {source:String} AND parent_process_instance_key > 0 AND started_at >= life.1 AND started_at <= life.2
            GROUP BY process_instance_key
        ) AS i
        INNER JOIN tree AS t ON i.parent = t.process_instance_key
    )
SELECT t.depth AS depth, i.process_instance_key AS process_instance_key, i.parent_process_instance_key AS parent_process_instance_key, e.element_id AS element_id, e.element_name AS element_name,
    i.bpmn_process_id AS bpmn_process_id, i.process_name AS process_name, i.version AS version, i.business_key AS business_key, i.state AS state, i.open_incidents AS open_incidents, i.started_at AS started_at, i.duration_ms AS duration_ms
FROM tree AS t
INNER JOIN
(
    SELECT process_instance_key, parent_process_instance_key, parent_element_instance_key, bpmn_process_id, process_name, version, business_key, state, open_incidents, started_at, duration_ms
    FROM flow.v_process_instances
    WHERE source = {source:String} AND process_instance_key IN (SELECT process_instance_key FROM tree)
) AS i ON i.process_instance_key = t.process_instance_key
LEFT JOIN
(
    SELECT key, element_id, element_name
    FROM flow.v_element_instances
    WHERE source = {source:String} AND bpmn_element_type = 'CALL_ACTIVITY' AND process_instance_key IN (SELECT process_instance_key FROM tree)
) AS e ON e.key = i.parent_element_instance_key
ORDER BY depth, process_instance_key;

-- question usage: How many instances run, by month and tenant?
-- Instances by the month (UTC) in which they started; instances that call activities started are counted separately.
SELECT source, toStartOfMonth(started_at) AS month, tenant_id, countIf(parent_process_instance_key = '') AS instances,
    countIf(parent_process_instance_key != '') AS called_instances, countIf(state = 'COMPLETED') AS completed, uniqExact(bpmn_process_id) AS processes
FROM flow.v_process_instances
WHERE started_at IS NOT NULL
GROUP BY source, month, tenant_id
ORDER BY source, month, tenant_id;

-- question variable_filter: Which instances have a variable with this value now?
-- Variables of the instance, without those of inner scopes. Compare numbers with JSONExtractFloat(value).
SELECT source, process_instance_key, bpmn_process_id, process_name, name, value, first_value, changes, updated_at
FROM flow.v_variables
WHERE name = {name:String} AND value = {value:String} AND toString(scope_key) = process_instance_key
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
ORDER BY updated_at DESC, source, process_instance_key
LIMIT {limit:UInt32};

-- question durations_by_variable: How long do instances take, by the value of a variable?
-- Completed instances that started in the period, by the current value of the variable of the instance.
SELECT p.source AS source, v.value AS value, count() AS instances, quantileExactInclusive(0.5)(p.duration_ms) AS p50_ms, quantileExactInclusive(0.95)(p.duration_ms) AS p95_ms
FROM flow.v_process_instances AS p
GLOBAL INNER JOIN
(
    SELECT cityHash64(source, process_instance_key) AS instance, value
    FROM flow.v_variables
    WHERE name = {name:String} AND toString(scope_key) = process_instance_key
        AND process_instance_key GLOBAL IN (SELECT process_instance_key FROM flow.process_instances WHERE started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC'))
) AS v ON v.instance = cityHash64(p.source, p.process_instance_key)
WHERE p.state = 'COMPLETED' AND p.started_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND p.started_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR p.bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR p.tenant_id = {tenant:String})
GROUP BY source, value
ORDER BY instances DESC, source, value
LIMIT {limit:UInt32};

-- question user_tasks: How long do user tasks wait for an assignee, and how long does the work take?
-- Tasks created in the period, by assignee and candidate groups. waiting is from the creation to the last assignment, 0 for a task
-- created with an assignee; handling is from that to the completion. An unassignment is no assignment.
-- example process=
SELECT source, assignee, candidate_groups, count() AS tasks, countIf(state = 'COMPLETED') AS completed, countIf(state = 'CREATED') AS open_now,
    quantileExactInclusive(0.5)(waiting_ms) AS p50_waiting_ms, quantileExactInclusive(0.95)(waiting_ms) AS p95_waiting_ms,
    quantileExactInclusive(0.5)(handling_ms) AS p50_handling_ms, quantileExactInclusive(0.95)(handling_ms) AS p95_handling_ms
FROM flow.v_user_tasks
WHERE created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, assignee, candidate_groups
ORDER BY tasks DESC, source, assignee, candidate_groups;

-- question handover: Which assignees hand work over to which, and how long does it take?
-- Completed user tasks with an assignee, in the order of their completion within an instance: each hands over to the next, also to the
-- same assignee. The gap is the time between both completions; the second one is in the period.
-- example process=
SELECT source, bpmn_process_id, any(process_name) AS process_name, from_assignee, to_assignee, count() AS handovers, uniqExact(process_instance_key) AS instances,
    quantileExactInclusive(0.5)(gap_ms) AS p50_gap_ms, quantileExactInclusive(0.95)(gap_ms) AS p95_gap_ms
FROM
(
    SELECT source, bpmn_process_id, process_name, process_instance_key, completed_at, assignee AS to_assignee, lagInFrame(assignee) OVER tasks AS from_assignee,
        dateDiff('millisecond', lagInFrame(completed_at) OVER tasks, completed_at) AS gap_ms
    FROM flow.v_user_tasks
    WHERE state = 'COMPLETED' AND assignee != ''
        AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
    WINDOW tasks AS (PARTITION BY source, process_instance_key ORDER BY completed_at, key ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
WHERE from_assignee != '' AND completed_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND completed_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
GROUP BY source, bpmn_process_id, from_assignee, to_assignee
ORDER BY handovers DESC, source, bpmn_process_id, from_assignee, to_assignee;

-- question overdue_tasks: Which user tasks are past their due date?
-- example process=claim
SELECT source, bpmn_process_id, process_instance_key, element_id, element_name, key, assignee, candidate_groups, due_at,
    dateDiff('millisecond', due_at, parseDateTime64BestEffort({now:String}, 3, 'UTC')) AS overdue_ms
FROM flow.v_user_tasks
WHERE state = 'CREATED' AND due_at < parseDateTime64BestEffort({now:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
ORDER BY due_at, source, key
LIMIT {limit:UInt32};

-- question overdue_timers: Which timers are past their due date?
-- process_instance_key is empty for the timer of a start event.
-- example process=
SELECT source, bpmn_process_id, process_instance_key, element_id, element_name, key, due_at, dateDiff('millisecond', due_at, parseDateTime64BestEffort({now:String}, 3, 'UTC')) AS overdue_ms
FROM flow.v_timers
WHERE state = 'WAITING' AND due_at < parseDateTime64BestEffort({now:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
ORDER BY due_at, source, key
LIMIT {limit:UInt32};

-- question message_waits: Which elements wait for messages, since when, and how long did messages take?
-- Subscriptions created in the period, by element. correlated counts those that correlated at least once, also if they were deleted later
-- or still wait; messages counts all correlations. p50 and p95 are until the first one. max_wait is of waiting subscriptions.
SELECT source, bpmn_process_id, element_id, any(element_name) AS element_name, message_name, count() AS subscriptions, countIf(state = 'WAITING') AS waiting,
    countIf(correlations > 0) AS correlated, sum(correlations) AS messages, quantileExactInclusive(0.5)(dateDiff('millisecond', created_at, first_correlated_at)) AS p50_ms,
    quantileExactInclusive(0.95)(dateDiff('millisecond', created_at, first_correlated_at)) AS p95_ms,
    max(if(state = 'WAITING', dateDiff('millisecond', created_at, parseDateTime64BestEffort({now:String}, 3, 'UTC')), NULL)) AS max_wait_ms
FROM flow.v_message_waits
WHERE created_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND created_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, bpmn_process_id, element_id, message_name
ORDER BY waiting DESC, source, bpmn_process_id, element_id, message_name;

-- question decision_results: Which results do decisions have, and how often?
-- Evaluations in the period, by the calling task. share is relative to all evaluations of that decision version by that task.
-- example process=
SELECT source, decision_id, decision_version, bpmn_process_id, element_id, any(element_name) AS element_name, state, output, count() AS evaluations,
    round(evaluations / sum(evaluations) OVER (PARTITION BY source, decision_id, decision_version, bpmn_process_id, element_id), 4) AS share,
    uniqExact(process_instance_key) AS instances
FROM flow.v_decisions
WHERE evaluated_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND evaluated_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR tenant_id = {tenant:String})
GROUP BY source, decision_id, decision_version, bpmn_process_id, element_id, state, output
ORDER BY source, decision_id, decision_version, bpmn_process_id, element_id, evaluations DESC, state, output
LIMIT {limit:UInt32};

-- question failed_decisions: Which decisions fail, why, and which tasks are still open?
-- Failed evaluations in the period, by failed decision and message. open_now counts tasks with an open incident.
-- example process=
SELECT f.source AS source, f.decision_id AS decision_id, f.failed_decision_id AS failed_decision_id, f.failure AS failure, count() AS failures,
    uniqExact(f.process_instance_key) AS instances, uniqExactIf(f.element_instance_key, i.open = 1) AS open_now, max(f.evaluated_at) AS last_at
FROM flow.v_decisions AS f
GLOBAL LEFT JOIN
(
    SELECT source, element_instance_key, max(open) AS open FROM flow.v_incidents WHERE error_type = 'DECISION_EVALUATION_ERROR' GROUP BY source, element_instance_key
) AS i ON i.source = f.source AND i.element_instance_key = f.element_instance_key
WHERE f.state = 'FAILED' AND f.evaluated_at >= parseDateTime64BestEffort({from:String}, 3, 'UTC') AND f.evaluated_at < parseDateTime64BestEffort({to:String}, 3, 'UTC')
    AND ({process:String} = '' OR f.bpmn_process_id = {process:String}) AND ({tenant:String} = '' OR f.tenant_id = {tenant:String})
GROUP BY source, decision_id, failed_decision_id, failure
ORDER BY failures DESC, source, decision_id, failed_decision_id, failure
LIMIT {limit:UInt32};

-- question definitions: Which versions were deployed, and how many instances run on each?
-- deleted_at is NULL for a deployed version.
SELECT d.source AS source, d.bpmn_process_id AS bpmn_process_id, d.version AS version, d.name AS name, d.process_definition_key AS process_definition_key,
    d.deployed_at AS deployed_at, d.deleted_at AS deleted_at, sum(i.active) AS active, sum(i.instances) AS instances
FROM flow.v_process_definitions AS d
GLOBAL LEFT JOIN
(
    SELECT source, process_definition_key, countIf(state = 'ACTIVE') AS active, count() AS instances FROM flow.v_process_instances GROUP BY source, process_definition_key
) AS i ON i.source = d.source AND i.process_definition_key = d.process_definition_key
GROUP BY source, bpmn_process_id, version, name, process_definition_key, deployed_at, deleted_at
ORDER BY source, bpmn_process_id, version;
