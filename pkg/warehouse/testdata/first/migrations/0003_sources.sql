-- How far the records of each engine reach, by day: what a lane has to know to
-- tell a new record from one that is stored. The rows of a day say how many
-- were inserted: exact by the same tokens as all folds, so that whoever knows
-- what a lane has stored sees when something of this table is missing. Nothing
-- expires here, or what comes again after a year would be taken for new.
CREATE TABLE IF NOT EXISTS {{.Table "sources"}}{{.OnCluster}}
(
    source         LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    partition_id   Int64                  CODEC(ZSTD(1)), -- partitionId; 0: records that are not known by their position
    day            Date                   CODEC(ZSTD(1)), -- of the records' timestamps, UTC
    lane           UInt16                 CODEC(ZSTD(1)), -- of the stream, that they came in by
    incarnation    UInt64                 CODEC(ZSTD(1)), -- life of that lane, ms since 1970
    first_position SimpleAggregateFunction(min, Nullable(Int64)) CODEC(ZSTD(1)), -- lowest position of the day
    last_position  SimpleAggregateFunction(max, Nullable(Int64)) CODEC(ZSTD(1)), -- highest position of the day
    first_ts       SimpleAggregateFunction(min, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- earliest timestamp, UTC
    last_ts        SimpleAggregateFunction(max, Nullable(DateTime64(3, 'UTC'))) CODEC(ZSTD(1)), -- latest timestamp, UTC
    received_at    SimpleAggregateFunction(max, DateTime64(3, 'UTC')) CODEC(ZSTD(1)), -- when the api took the last one in, UTC
    last_seq       SimpleAggregateFunction(max, UInt64) CODEC(ZSTD(1)), -- last message in that lane with one of them
    rows           SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1))  -- how many were stored
)
ENGINE = {{.Engine "AggregatingMergeTree" "sources"}}
ORDER BY (source, partition_id, day, lane, incarnation)
SETTINGS {{.TableSettings}};
{{.Distributed "sources" "cityHash64(source)"}}

CREATE MATERIALIZED VIEW IF NOT EXISTS {{.Database}}.sources_mv{{.OnCluster}} TO {{.Table "sources"}} AS
SELECT r.source AS source, if(r.identity = '', r.partition_id, 0) AS partition_id, toDate(r.ts) AS day, r.lane AS lane, r.incarnation AS incarnation,
    min(if(r.identity = '', toNullable(r.position), NULL)) AS first_position,
    max(if(r.identity = '', toNullable(r.position), NULL)) AS last_position,
    min(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS first_ts,
    max(if(toUnixTimestamp64Milli(r.ts) > 0, toNullable(r.ts), NULL)) AS last_ts,
    max(r.received_at) AS received_at, max(r.stream_seq) AS last_seq, count() AS rows
FROM {{.Table "records"}} AS r
GROUP BY source, partition_id, day, lane, incarnation;

-- What each engine and partition has sent.
CREATE VIEW IF NOT EXISTS {{.Database}}.v_sources{{.OnCluster}} AS
SELECT s.source AS source, s.partition_id AS partition_id, sum(s.rows) AS records,
    argMax(s.last_position, (s.day, s.last_position)) AS last_position, min(s.first_ts) AS first_ts, max(s.last_ts) AS last_ts,
    max(s.received_at) AS received_at, arraySort(groupUniqArray(s.lane)) AS lanes
FROM {{.Database}}.sources AS s
GROUP BY source, partition_id;
