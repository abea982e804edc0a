-- Records that were removed because an instance or a person was forgotten: their places
-- and nothing of their content, so that the totals of their lanes add up.
{{.CreateEverywhere "forgotten"}}
(
    receipt String COMMENT 'id in receipts' CODEC(ZSTD(1)),
    source LowCardinality(String) {{about "source"}} CODEC(ZSTD(1)),
    identity String COMMENT 'as in records' CODEC(ZSTD(1)),
    key Int64 COMMENT 'of the record' CODEC(Delta(8), ZSTD(1)),
    record_type LowCardinality(String) COMMENT 'such as EVENT' CODEC(ZSTD(1)),
    value_type LowCardinality(String) COMMENT 'such as VARIABLE' CODEC(ZSTD(1)),
    intent LowCardinality(String) COMMENT 'such as CREATED' CODEC(ZSTD(1)),
    ts DateTime64(3, 'UTC') COMMENT 'timestamp of the record, UTC' CODEC(Delta(8), ZSTD(1)),
    partition_id Int64 COMMENT 'partition of the engine' CODEC(ZSTD(1)),
    position Int64 COMMENT 'in that partition' CODEC(Delta(8), ZSTD(1)),
    received_at DateTime64(3, 'UTC') COMMENT 'when the api took it in, UTC' CODEC(Delta(8), ZSTD(1)),
    stored_at DateTime64(3, 'UTC') {{about "stored_at"}} CODEC(Delta(8), ZSTD(1)),
    lane UInt16 COMMENT 'of the stream, that it came in by' CODEC(ZSTD(1)),
    incarnation UInt64 COMMENT 'incarnation of the lane, ms since 1970' CODEC(ZSTD(1)),
    stream_seq UInt64 COMMENT 'of its message, in that lane' CODEC(Delta(8), ZSTD(1)),
    stream_idx UInt32 COMMENT 'of the record, in that message' CODEC(ZSTD(1))
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "forgotten"}}
ORDER BY (toDate(ts), source, partition_id, position, lane, incarnation, stream_seq, stream_idx)
SETTINGS {{.Deduplicated}}, {{.Durable}};
