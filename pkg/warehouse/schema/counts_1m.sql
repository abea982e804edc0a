-- Records per minute. The sums are exact because a repeated insert carries its token,
-- which this table and flow.records both recognize. Counters expire by the day on which
-- their records were stored, as the records do.
TABLE counts_1m
source
minute key(DateTime('UTC')) CODEC(Delta(4), ZSTD(1)) = toStartOfMinute(r.ts) -- that the timestamps are in, UTC
tenant_id key(Text)
value_type record_type intent
bpmn_process_id key(Text)
stored_day key(Date) = toDate(r.stored_at) -- day on which they were stored, UTC
version key(Int64) = ifNull(r.version, 0) -- 0 when the record has none
records sum(Int64) CODEC(T64, ZSTD(1)) = toInt64(count()) -- how many; sum it, as a recount inserts differences
PARTITION BY toYYYYMM(minute)
ORDER BY minute, value_type, bpmn_process_id, intent, record_type, version, tenant_id, source, stored_day
TTL toDateTime(stored_day, 'UTC') + INTERVAL 401 DAY DELETE
SETTINGS ttl_only_drop_parts = 1
SHARD BY source, bpmn_process_id, minute
FEED flow.records AS r
