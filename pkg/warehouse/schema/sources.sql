-- The greatest positions and the number of rows of each engine, by day. An ingester
-- separates new records from stored ones by them, and compares rows with the totals of a
-- lane to detect missing rows: insert tokens make rows exact. Rows never expire, so that
-- totals of any age can be compared.
TABLE sources
source
partition_id key(Int64) = if(r.identity = '', r.partition_id, 0) -- partitionId; 0: records that are not known by their position
day key(Date) = toDate(r.ts) -- of the records' timestamps, UTC
lane key(UInt16) -- of the stream, that they came in by
incarnation key(UInt64) -- incarnation of the lane, ms since 1970
first_position min(Int64?) = if(r.identity = '', toNullable(r.position), NULL) -- lowest position of the day
last_position max(Int64?) = if(r.identity = '', toNullable(r.position), NULL) -- highest position of the day
first_ts min(Time?) = {{.At}} -- earliest timestamp, UTC
last_ts max(Time?) = {{.At}} -- latest timestamp, UTC
received_at max(Time) -- when the api took the last one in, UTC
last_seq max(UInt64) = r.stream_seq -- last message in that lane with one of them
rows sum(UInt64) = count() -- how many were stored
SHARD BY source
FEED flow.records AS r

-- One row for each engine and partition, about its records. Partition 0 has the records without a position.
VIEW v_sources
source = s.source
partition_id = s.partition_id
records UInt64 = sum(s.rows) -- number of rows stored
last_position Int64? = argMax(s.last_position, (s.day, s.last_position)) -- highest position of the newest day
first_ts Time? = min(s.first_ts) -- UTC, earliest timestamp
last_ts Time? = max(s.last_ts) -- UTC, latest timestamp
received_at Time = max(s.received_at) -- when the last one came in, UTC
lanes Array(UInt16) = arraySort(groupUniqArray(s.lane)) -- lanes they came in by
FROM flow.sources AS s
    GROUP BY source, partition_id
