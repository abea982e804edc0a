{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key=['source', 'process_instance_key'], order_by=['process', 'source', 'process_instance_key']) }}
SELECT *, toDate(started_at) AS day
FROM {{ ref('stg_instances') }}
{% if is_incremental() %}
WHERE last_seen >= (SELECT max(last_seen) FROM {{ this }}) - INTERVAL {{ var('late_hours', 24) }} HOUR
{% endif %}
