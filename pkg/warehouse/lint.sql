-- What looks wrong in what engines send. Each statement has one line for each
-- engine that it finds something of: how much, and one example. The format is
-- that of questions.sql; "-- do" says what to do about it. The view flow.v_lint
-- is made of this file.

-- question position_gaps: Positions are missing
-- Positions between the first and the last one of a partition that no record has. Only engines that export commands are
-- looked at: without them, positions are missing as a rule.
-- do: look whether the exporter filters records or has lost some; sluice verify says whether Sluice has.
SELECT source, toUInt64(sum(missing)) AS findings,
    arrayStringConcat(arrayMap(p -> concat('partition ', toString(p.1), ' lacks ', toString(p.2), ' positions'), arraySort(groupArray((partition_id, missing)))), ', ') AS example
FROM
(
    SELECT source, partition_id, toUInt64(max(position) - min(position) + 1) - uniqExact(position) AS missing
    FROM flow.v_records
    WHERE partition_id > 0 AND position > 0
    GROUP BY source, partition_id
    HAVING countIf(record_type = 'COMMAND') > 0 AND missing > 0
)
GROUP BY source
ORDER BY source;

-- question no_start: Instances have no beginning
-- Instances whose elements were seen, and whose start was not.
-- do: nothing, when the engine had instances before it sent records here; else look for a filter in the exporter.
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM flow.v_process_instances
WHERE started_at IS NULL AND state != 'EXPIRED'
GROUP BY source
ORDER BY source;

-- question no_instance: Elements belong to no instance
-- Elements in whose instance no element of type PROCESS was seen.
-- do: export PROCESS_INSTANCE records of every element type.
SELECT source, count() AS findings, concat('element instance ', toString(min(key)), ' of instance ', argMin(process_instance_key, key)) AS example
FROM flow.v_element_instances
WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.v_element_instances WHERE bpmn_element_type = 'PROCESS')
    AND (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM flow.v_process_instances WHERE state = 'EXPIRED')
GROUP BY source
ORDER BY source;

-- question rounded_keys: Keys look rounded
-- Twenty keys or more above 2 to the 53rd, and not one of them odd: they went through floating point numbers, as in
-- JavaScript, and some of them have become equal.
-- do: send keys as texts, or parse JSON without floating point.
SELECT source, uniqExact(key) AS findings, concat('key ', toString(max(key))) AS example
FROM flow.v_records
WHERE key > 9007199254740992
GROUP BY source
HAVING findings >= 20 AND countIf(key % 2 = 1) = 0
ORDER BY source;

-- question bad_timestamps: Timestamps are not milliseconds of our time
-- Records without a timestamp, or with one that is not from 2000 to 2099: in seconds, or by a clock that is wrong.
-- do: send milliseconds since 1970, and set the clock of the engine.
SELECT source, count() AS findings, concat('record ', min(id), ' with the timestamp ', argMin(coalesce(nullIf(JSONExtractRaw(extra, '_record', 'timestamp'), ''), 'missing'), id)) AS example
FROM flow.v_records
WHERE toYear(ts) < 2000
GROUP BY source
ORDER BY source;

-- question after_end: Things happen after the end
-- Instances with an event of an element, a job or an incident later than their end.
-- do: look whether the clocks of the brokers differ, or one engine has the source of another.
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM flow.v_process_instances
WHERE last_seen > coalesce(completed_at, terminated_at)
GROUP BY source
ORDER BY source;

-- question doubled_ids: Ids are used for different records
-- Ids that several records have which are not repeats of each other.
-- do: give every engine a source of its own; check whether one was wiped or restored and restarted its numbering.
SELECT source, count() AS findings, concat('id ', min(id)) AS example
FROM
(
    SELECT source, id
    FROM flow.v_records
    WHERE id NOT IN ('', '0-0')
    GROUP BY source, id
    HAVING count() > 1
)
GROUP BY source
ORDER BY source;
