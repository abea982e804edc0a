{{ config(order_by=['process', 'element']) }}
SELECT process, element, any(element_name) AS name, any(type) AS kind, count() AS executions, countIf(left_at IS NULL) AS open,
    medianIf(duration_ms, state = 'COMPLETED') AS median_ms, quantileIf(0.95)(duration_ms, state = 'COMPLETED') AS p95_ms, sum(duration_ms) AS total_ms
FROM {{ ref('stg_elements') }}
GROUP BY process, element
