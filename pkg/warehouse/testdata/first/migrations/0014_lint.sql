-- What looks wrong in what engines send, made of lint.sql by
-- go test ./pkg/warehouse -run LintView -update. Once there are installations,
-- a check that changes is a migration of a higher number.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_lint{{.OnCluster}} AS
SELECT source, 'position_gaps' AS check_name, 'Positions are missing' AS finding, findings, example,
    'look whether the exporter filters records or has lost some; sluice verify says whether Sluice has.' AS what_to_do
FROM
(
SELECT source, toUInt64(sum(missing)) AS findings,
    arrayStringConcat(arrayMap(p -> concat('partition ', toString(p.1), ' lacks ', toString(p.2), ' positions'), arraySort(groupArray((partition_id, missing)))), ', ') AS example
FROM
(
    SELECT source, partition_id, toUInt64(max(position) - min(position) + 1) - uniqExact(position) AS missing
    FROM {{.Database}}.v_records
    WHERE partition_id > 0 AND position > 0
    GROUP BY source, partition_id
    HAVING countIf(record_type = 'COMMAND') > 0 AND missing > 0
)
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'no_start' AS check_name, 'Instances have no beginning' AS finding, findings, example,
    'nothing, when the engine had instances before it sent records here; else look for a filter in the exporter.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM {{.Database}}.v_process_instances
WHERE started_at IS NULL
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'no_instance' AS check_name, 'Elements belong to no instance' AS finding, findings, example,
    'export PROCESS_INSTANCE records of every element type.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('element instance ', toString(min(key)), ' of instance ', argMin(process_instance_key, key)) AS example
FROM {{.Database}}.v_element_instances
WHERE (source, process_instance_key) GLOBAL NOT IN (SELECT source, process_instance_key FROM {{.Database}}.v_element_instances WHERE bpmn_element_type = 'PROCESS')
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'rounded_keys' AS check_name, 'Keys look rounded' AS finding, findings, example,
    'send keys as texts, or parse JSON without floating point.' AS what_to_do
FROM
(
SELECT source, uniqExact(key) AS findings, concat('key ', toString(max(key))) AS example
FROM {{.Database}}.v_records
WHERE key > 9007199254740992
GROUP BY source
HAVING findings >= 20 AND countIf(key % 2 = 1) = 0
ORDER BY source
)
UNION ALL
SELECT source, 'bad_timestamps' AS check_name, 'Timestamps are not milliseconds of our time' AS finding, findings, example,
    'send milliseconds since 1970, and set the clock of the engine.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('record ', min(id), ' with the timestamp ', argMin(coalesce(nullIf(JSONExtractRaw(extra, '_record', 'timestamp'), ''), 'missing'), id)) AS example
FROM {{.Database}}.v_records
WHERE toYear(ts) < 2000
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'after_end' AS check_name, 'Things happen after the end' AS finding, findings, example,
    'look whether the clocks of the brokers differ, or one engine has the source of another.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('instance ', min(process_instance_key)) AS example
FROM {{.Database}}.v_process_instances
WHERE last_seen > coalesce(completed_at, terminated_at)
GROUP BY source
ORDER BY source
)
UNION ALL
SELECT source, 'doubled_ids' AS check_name, 'Ids are used for different records' AS finding, findings, example,
    'give every engine a source of its own; look whether one was wiped or restored, and numbers anew.' AS what_to_do
FROM
(
SELECT source, count() AS findings, concat('id ', min(id)) AS example
FROM
(
    SELECT source, id
    FROM {{.Database}}.v_records
    WHERE id NOT IN ('', '0-0')
    GROUP BY source, id
    HAVING count() > 1
)
GROUP BY source
ORDER BY source
);
