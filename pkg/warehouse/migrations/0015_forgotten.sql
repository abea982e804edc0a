-- Records that were removed because an instance or a person was to be forgotten:
-- where they stood, and nothing of what they said. So one of them that is sent
-- again is known, and not stored again; and the totals of its lane add up. One
-- without a position is known by the hash of all it said.
CREATE TABLE IF NOT EXISTS {{.Database}}.forgotten{{.OnCluster}}
(
    receipt      String                 CODEC(ZSTD(1)), -- id in receipts
    source       LowCardinality(String) CODEC(ZSTD(1)), -- the engine, as the token says
    identity     String                 CODEC(ZSTD(1)), -- as in records
    key          Int64                  CODEC(Delta(8), ZSTD(1)), -- of the record
    record_type  LowCardinality(String) CODEC(ZSTD(1)), -- such as EVENT
    value_type   LowCardinality(String) CODEC(ZSTD(1)), -- such as VARIABLE
    intent       LowCardinality(String) CODEC(ZSTD(1)), -- such as CREATED
    ts           DateTime64(3, 'UTC')   CODEC(Delta(8), ZSTD(1)), -- timestamp of the record, UTC
    partition_id Int64                  CODEC(ZSTD(1)), -- partition of the engine
    position     Int64                  CODEC(Delta(8), ZSTD(1)), -- in that partition
    received_at  DateTime64(3, 'UTC')   CODEC(Delta(8), ZSTD(1)), -- when the api took it in, UTC
    lane         UInt16                 CODEC(ZSTD(1)), -- of the stream, that it came in by
    incarnation  UInt64                 CODEC(ZSTD(1)), -- life of that lane, ms since 1970
    stream_seq   UInt64                 CODEC(Delta(8), ZSTD(1)), -- of its message, in that lane
    stream_idx   UInt32                 CODEC(ZSTD(1))  -- of the record, in that message
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "forgotten"}}
ORDER BY (toDate(ts), source, partition_id, position, lane, incarnation, stream_seq, stream_idx)
SETTINGS {{.Deduplicated}}, {{.Durable}};

-- What was forgotten, when, and how much of it was found where; never a value.
CREATE TABLE IF NOT EXISTS {{.Database}}.receipts{{.OnCluster}}
(
    id       String CODEC(ZSTD(1)), -- of the receipt
    begun_at DateTime64(3, 'UTC') CODEC(ZSTD(1)), -- UTC
    done_at  DateTime64(3, 'UTC') CODEC(ZSTD(1)), -- UTC; 1970 until nothing is left
    changed  UInt64 CODEC(ZSTD(1)), -- the greatest counts, ns since 1970
    receipt  String CODEC(ZSTD(1))  -- all of it, JSON
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "receipts"}}
ORDER BY (id, changed)
SETTINGS {{.Deduplicated}}, {{.Durable}};
