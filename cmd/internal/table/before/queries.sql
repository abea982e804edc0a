-- The 16 queries of analysts as they stood at e79fe00.
-- name: q01_instance_duration_percentiles
SELECT bpmn_process_id, version, count() AS n, round(avg(duration_ms)) AS avg_ms, quantiles(0.5, 0.9, 0.95, 0.99)(duration_ms) AS p50_90_95_99 FROM flow.v_process_instances WHERE state = 'COMPLETED' AND started_at >= now() - INTERVAL 7 DAY GROUP BY ALL ORDER BY n DESC;
-- name: q02_element_heatmap
SELECT element_id, any(bpmn_element_type) AS type, count() AS executions, countIf(completed_at IS NULL AND terminated_at IS NULL) AS active_now, quantiles(0.5, 0.95)(duration_ms) AS p50_95, sum(duration_ms) AS total_ms FROM flow.v_element_instances WHERE bpmn_process_id = 'order-fulfillment' AND activated_at >= now() - INTERVAL 7 DAY AND activated_at < now() GROUP BY element_id ORDER BY total_ms DESC;
-- name: q03_incident_rate
SELECT i.bpmn_process_id AS p, count() AS incidents, countIf(open) AS open_now, quantile(0.5)(resolution_ms) AS mttr_ms, incidents / any(t.n) AS per_instance FROM flow.v_incidents AS i INNER JOIN (SELECT bpmn_process_id, count() AS n FROM flow.v_process_instances GROUP BY 1) AS t ON t.bpmn_process_id = i.bpmn_process_id GROUP BY p ORDER BY incidents DESC;
-- name: q04_top_error_messages
SELECT job_type, error_code, replaceRegexpAll(error_message, '[0-9]+', '#') AS pattern, count() AS n, uniq(process_instance_key) AS instances, max(ts) AS last_at FROM flow.v_records WHERE value_type = 'JOB' AND intent = 'FAILED' AND ts >= now() - INTERVAL 7 DAY GROUP BY ALL ORDER BY n DESC LIMIT 20;
-- name: q05_job_latency_by_type_worker
SELECT job_type, worker, count() AS n, quantiles(0.5, 0.95, 0.99)(duration_ms) AS p, sum(failures) AS fails, sum(timeouts) AS timeouts FROM flow.v_jobs WHERE completed_at IS NOT NULL AND created_at >= now() - INTERVAL 1 DAY GROUP BY ALL ORDER BY n DESC LIMIT 50;
-- name: q06_deadline_breaches
SELECT job_type, count() AS jobs, countIf(timeouts > 0) AS timed_out_jobs, countIf(completed_late) AS completed_late, timed_out_jobs / jobs AS rate FROM flow.v_jobs GROUP BY job_type ORDER BY timed_out_jobs DESC;
-- name: q07_throughput_per_version_hour
SELECT toStartOfHour(minute) AS h, bpmn_process_id, version, sumIf(records, intent = 'ELEMENT_COMPLETED') AS element_completions FROM flow.counts_1m WHERE minute >= now() - INTERVAL 1 DAY AND value_type = 'PROCESS_INSTANCE' GROUP BY ALL ORDER BY ALL;
-- name: q08_stuck_instances
SELECT bpmn_process_id, process_instance_key, state, started_at, last_seen, incidents FROM flow.v_process_instances WHERE completed_at IS NULL AND terminated_at IS NULL AND last_seen < now() - INTERVAL 1 MINUTE ORDER BY last_seen LIMIT 100;
-- name: q09_where_instances_are_waiting
SELECT bpmn_process_id, element_id, count() AS waiting, min(activated_at) AS oldest FROM flow.v_element_instances WHERE completed_at IS NULL AND terminated_at IS NULL AND bpmn_element_type NOT IN ('PROCESS') GROUP BY ALL ORDER BY waiting DESC LIMIT 50;
-- name: q10_variants
SELECT path, count() AS instances, round(count() / sum(count()) OVER (), 4) AS share FROM (SELECT process_instance_key, arrayStringConcat(arrayMap(x -> x.3, arraySort(groupArray((activated_at, key, element_id)))), ' > ') AS path FROM flow.v_element_instances WHERE bpmn_process_id = 'claim-handling' AND bpmn_element_type != 'PROCESS' GROUP BY process_instance_key) GROUP BY path ORDER BY instances DESC LIMIT 20;
-- name: q11_directly_follows_graph
SELECT from_el, to_el, count() AS n, quantile(0.5)(gap_ms) AS p50_gap_ms FROM (SELECT element_id AS to_el, lagInFrame(element_id) OVER w AS from_el, dateDiff('millisecond', lagInFrame(toNullable(coalesce(completed_at, activated_at))) OVER w, activated_at) AS gap_ms FROM flow.v_element_instances WHERE bpmn_process_id = 'claim-handling' AND bpmn_element_type != 'PROCESS' WINDOW w AS (PARTITION BY process_instance_key ORDER BY activated_at, key ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) WHERE from_el != '' GROUP BY ALL ORDER BY n DESC;
-- name: q12_version_comparison
SELECT version, count() AS n, quantile(0.5)(duration_ms) AS p50, quantile(0.95)(duration_ms) AS p95, avg(job_failures) AS failures_per_instance, countIf(incidents > 0) / n AS incident_share FROM flow.v_process_instances WHERE bpmn_process_id = 'order-fulfillment' AND state = 'COMPLETED' GROUP BY version ORDER BY version;
-- name: q13_variable_filter
SELECT count() AS n, avg(JSONExtractFloat(variables, 'amount')) AS avg_amount FROM flow.v_records WHERE bpmn_process_id = 'order-fulfillment' AND value_type = 'JOB' AND intent = 'COMPLETED' AND ts >= now() - INTERVAL 7 DAY AND JSONExtractString(variables, 'country') = 'DE' AND JSONExtractFloat(variables, 'amount') > 100;
-- name: q14_instance_timeline
SELECT ts, value_type, intent, element_id, job_type, worker, retries, error_message FROM flow.v_records WHERE process_instance_key = (SELECT any(process_instance_key) FROM flow.process_instances WHERE bpmn_process_id = 'order-fulfillment') ORDER BY position, ts;
-- name: q15_event_log_export
SELECT * FROM flow.v_event_log WHERE "case:process" = 'claim-handling' ORDER BY "case:concept:name", position LIMIT 1000;
-- name: q16_find_error_text
SELECT ts, bpmn_process_id, process_instance_key, error_message FROM flow.records WHERE hasAllTokens(error_message, ['timed', 'out']) ORDER BY ts DESC LIMIT 50;
