-- How far the records of each engine reach, by day: with it a lane tells a new record
-- from a stored one. rows is exact by the same tokens as all aggregate tables, so a lane
-- that knows what it has stored sees when rows are missing here. Nothing expires here, so
-- that the totals of a lane can be compared at any age.
{{.CreateTable "sources"}}
(
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    partition_id Int64 COMMENT 'partitionId; 0: records that are not known by their position' CODEC(ZSTD(1)),
    day Date COMMENT 'of the records'' timestamps, UTC' CODEC(ZSTD(1)),
    lane UInt16 COMMENT 'of the stream, that they came in by' CODEC(ZSTD(1)),
    incarnation UInt64 COMMENT 'incarnation of the lane, ms since 1970' CODEC(ZSTD(1)),
    first_position SimpleAggregateFunction(min, Nullable(Int64)) COMMENT 'lowest position of the day' CODEC(ZSTD(1)),
    last_position SimpleAggregateFunction(max, Nullable(Int64)) COMMENT 'highest position of the day' CODEC(ZSTD(1)),
    first_ts SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) COMMENT 'earliest timestamp, UTC' CODEC(ZSTD(1)),
    last_ts SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) COMMENT 'latest timestamp, UTC' CODEC(ZSTD(1)),
    received_at SimpleAggregateFunction(max, DateTime64(3, 'UTC')) COMMENT 'when the api took the last one in, UTC' CODEC(ZSTD(1)),
    last_seq SimpleAggregateFunction(max, UInt64) COMMENT 'last message in that lane with one of them' CODEC(ZSTD(1)),
    rows SimpleAggregateFunction(sum, UInt64) COMMENT 'how many were stored' CODEC(ZSTD(1))
)
ENGINE = {{.Engine "AggregatingMergeTree" "sources"}}
ORDER BY (source, partition_id, day, lane, incarnation)
SETTINGS {{.TableSettings}};
{{.Distributed "sources" "cityHash64(source)"}}

{{.CreateFeed "sources"}} AS
SELECT r.source AS source, if(r.identity = '', r.partition_id, 0) AS partition_id, toDate(r.ts) AS day, r.lane AS lane, r.incarnation AS incarnation,
    min(if(r.identity = '', toNullable(r.position), NULL)) AS first_position,
    max(if(r.identity = '', toNullable(r.position), NULL)) AS last_position,
    min(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS first_ts,
    max(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS last_ts,
    max(r.received_at) AS received_at, max(r.stream_seq) AS last_seq, count() AS rows
FROM {{.Table "records"}} AS r
GROUP BY source, partition_id, day, lane, incarnation;

-- One row for each engine and partition: what it has sent. Partition 0 holds records that are not known by a position.
{{.CreateView "v_sources"}}
(
    {{columns "source" "partition_id"}},
    records UInt64 COMMENT 'number of rows stored',
    last_position Nullable(Int64) COMMENT 'highest position of the newest day',
    first_ts Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, earliest timestamp',
    last_ts Nullable(DateTime64(3, 'UTC')) COMMENT 'UTC, latest timestamp',
    received_at DateTime64(3, 'UTC') COMMENT 'when the last one came in, UTC',
    lanes Array(UInt16) COMMENT 'lanes they came in by'
) AS
SELECT s.source AS source, s.partition_id AS partition_id, sum(s.rows) AS records,
    argMax(s.last_position, (s.day, s.last_position)) AS last_position, min(s.first_ts) AS first_ts, max(s.last_ts) AS last_ts,
    max(s.received_at) AS received_at, arraySort(groupUniqArray(s.lane)) AS lanes
FROM {{.Database}}.sources AS s
GROUP BY source, partition_id;
