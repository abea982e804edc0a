-- Records that sluice forget removed: their places in the stream, so that the totals of
-- their lanes add up, and none of their content.
EVERYWHERE forgotten
receipt String -- id in receipts
source
identity String -- as in records
key Int64 CODEC(Delta(8), ZSTD(1)) -- of the record
record_type Text -- such as EVENT
value_type Text -- such as VARIABLE
intent Text -- such as CREATED
ts Time CODEC(Delta(8), ZSTD(1)) -- timestamp of the record, UTC
partition_id Int64 CODEC(ZSTD(1)) -- partition of the engine
position Int64 CODEC(Delta(8), ZSTD(1)) -- in that partition
received_at Time CODEC(Delta(8), ZSTD(1))
stored_at Time CODEC(Delta(8), ZSTD(1))
lane UInt16 -- of the stream, that it came in by
incarnation UInt64 -- incarnation of the lane, ms since 1970
stream_seq UInt64 CODEC(Delta(8), ZSTD(1)) -- of its message, in that lane
stream_idx UInt32 -- of the record, in that message
ENGINE ReplacingMergeTree
ORDER BY toDate(ts), source, partition_id, position, lane, incarnation, stream_seq, stream_idx
