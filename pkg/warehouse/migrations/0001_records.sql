-- Every record as it came, one row each.
--
-- The primary key stops before ts: with ts in it a filter on ts binds to that
-- column, of which toDate(ts) is no prefix, and no granule is skipped. A record
-- that is sent again has the same sorting key in the same partition, whoever
-- receives it, so ReplacingMergeTree keeps one. Integers are Int64 so that
-- every number a client may send is stored as it was sent. The retention
-- counts from received_at: by ts, a back-fill would vanish at its first merge.
CREATE TABLE IF NOT EXISTS {{.Table "records"}}{{.OnCluster}}
(
    id                     String                      CODEC(ZSTD(1)),
    key                    Int64                       CODEC(Delta(8), ZSTD(1)),
    record_type            LowCardinality(String)      CODEC(ZSTD(1)),
    value_type             LowCardinality(String)      CODEC(ZSTD(1)),
    intent                 LowCardinality(String)      CODEC(ZSTD(1)),
    ts                     DateTime64(3, 'UTC')        CODEC(Delta(8), ZSTD(1)),
    partition_id           Int64                       CODEC(ZSTD(1)),
    position               Int64                       CODEC(Delta(8), ZSTD(1)),
    tenant_id              LowCardinality(String)      CODEC(ZSTD(1)),
    bpmn_process_id        LowCardinality(String)      CODEC(ZSTD(1)),
    process_definition_key Nullable(Int64)             CODEC(ZSTD(1)),
    version                Nullable(Int64)             CODEC(ZSTD(1)),
    process_instance_key   String                      CODEC(ZSTD(1)), -- text by contract; Zeebe sends an int64
    element_id             LowCardinality(String)      CODEC(ZSTD(1)),
    element_instance_key   Nullable(Int64)             CODEC(Delta(8), ZSTD(1)),
    bpmn_element_type      LowCardinality(String)      CODEC(ZSTD(1)),
    job_type               LowCardinality(String)      CODEC(ZSTD(1)),
    worker                 LowCardinality(String)      CODEC(ZSTD(1)),
    retries                Nullable(Int64)             CODEC(ZSTD(1)),
    deadline               Nullable(Int64)             CODEC(ZSTD(1)), -- ms since 1970; -1 is "not set"
    deadline_at            Nullable(DateTime64(3, 'UTC')) ALIAS if(deadline > 0, fromUnixTimestamp64Milli(assumeNotNull(deadline), 'UTC'), NULL),
    error_type             LowCardinality(String)      CODEC(ZSTD(1)),
    error_code             LowCardinality(String)      CODEC(ZSTD(1)),
    error_message          String                      CODEC(ZSTD(1)),
    variables              String                      CODEC(ZSTD(3)), -- JSON
    custom_headers         LowCardinality(String)      CODEC(ZSTD(1)), -- JSON, static per element
    extra                  String                      CODEC(ZSTD(3)), -- JSON of every other member
    received_at            DateTime64(3, 'UTC')        CODEC(Delta(8), ZSTD(1)),
    stream_seq             UInt64                      CODEC(Delta(8), ZSTD(1)), -- of the message, in its lane
    stream_idx             UInt32                      CODEC(ZSTD(1)),           -- of the record, in its message
    lane                   UInt16                      CODEC(ZSTD(1)),
    INDEX ix_pik process_instance_key TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_key key                  TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_id  id                   TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX ix_err error_message        TYPE {{.TextIndex}}
)
ENGINE = {{.Engine "ReplacingMergeTree" "records"}}
PARTITION BY toYYYYMM(ts)
PRIMARY KEY (toDate(ts), value_type, bpmn_process_id, process_instance_key)
ORDER BY    (toDate(ts), value_type, bpmn_process_id, process_instance_key, ts, id)
TTL toDateTime(received_at) + INTERVAL 400 DAY DELETE
SETTINGS {{.Deduplicated}}, {{.Durable}}, ttl_only_drop_parts = 1;
{{.Distributed "records" "cityHash64(process_instance_key)"}}
