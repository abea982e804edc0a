-- Who changed which user or dataset field, and when; never a value.
CREATE TABLE IF NOT EXISTS {{.Database}}.changes{{.OnCluster}}
(
    stream_seq  UInt64 CODEC(Delta(8), ZSTD(1)),           -- of the message, in lane 0
    changed_at  DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)), -- UTC
    changed_by  LowCardinality(String) CODEC(ZSTD(1)),     -- subject of the token
    kind        LowCardinality(String) CODEC(ZSTD(1)),     -- such as user.patched
    target_kind LowCardinality(String) CODEC(ZSTD(1)),     -- user or field
    target_key  String CODEC(ZSTD(1)),                     -- as in the state store
    members     Array(LowCardinality(String)) CODEC(ZSTD(1)) -- names only
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "changes"}}
ORDER BY (stream_seq, changed_at)
SETTINGS {{.Deduplicated}}, {{.Durable}};
