-- Changes of users and dataset fields: subject, target, and time; never a value.
EVERYWHERE changes
stream_seq UInt64 CODEC(Delta(8), ZSTD(1)) -- of the message, in lane 0
changed_at Time CODEC(Delta(8), ZSTD(1)) -- UTC
changed_by Text -- subject of the token
kind Text -- such as user.patched
target_kind Text -- user or field
target_key String -- as in the state store
members Array(LowCardinality(String)) -- names only
ENGINE ReplacingMergeTree
ORDER BY stream_seq, changed_at
