-- What was forgotten, when, and how much of it was found where; never a value.
{{.CreateEverywhere "receipts"}}
(
    id String COMMENT 'of the receipt' CODEC(ZSTD(1)),
    begun_at DateTime64(3, 'UTC') COMMENT 'UTC' CODEC(ZSTD(1)),
    done_at DateTime64(3, 'UTC') COMMENT 'UTC; 1970 until nothing is left' CODEC(ZSTD(1)),
    changed UInt64 COMMENT 'the greatest counts, ns since 1970' CODEC(ZSTD(1)),
    receipt String COMMENT 'all of it, JSON' CODEC(ZSTD(1))
)
ENGINE = {{.EngineEverywhere "ReplacingMergeTree" "receipts"}}
ORDER BY (id, changed)
SETTINGS {{.Deduplicated}}, {{.Durable}};
