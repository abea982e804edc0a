SELECT source, process_instance_key FROM {{ ref('instances') }} GROUP BY ALL HAVING count() > 1
