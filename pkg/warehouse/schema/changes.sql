-- Who changed which user or dataset field, and when; never a value.
{{.CreateEverywhere "changes"}}
(
    stream_seq UInt64 COMMENT 'of the message, in lane 0' CODEC(Delta(8), ZSTD(1)),
    changed_at DateTime64(3, 'UTC') COMMENT 'UTC' CODEC(Delta(8), ZSTD(1)),
    changed_by LowCardinality(String) COMMENT 'subject of the token' CODEC(ZSTD(1)),
    kind LowCardinality(String) COMMENT 'such as user.patched' CODEC(ZSTD(1)),
    target_kind LowCardinality(String) COMMENT 'user or field' CODEC(ZSTD(1)),
    target_key String COMMENT 'as in the state store' CODEC(ZSTD(1)),
    members Array(LowCardinality(String)) COMMENT 'names only' CODEC(ZSTD(1))
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "changes"}}
ORDER BY (stream_seq, changed_at)
SETTINGS {{.Deduplicated}}, {{.Durable}};
