SELECT process, element FROM {{ ref('element_times') }} WHERE total_ms < 0 OR p95_ms < median_ms
