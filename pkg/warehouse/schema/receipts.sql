-- What sluice forget removed, when, and how many rows of each table; never a value.
EVERYWHERE receipts
id String -- of the receipt
begun_at Time CODEC(ZSTD(1)) -- UTC
done_at Time CODEC(ZSTD(1)) -- UTC; 1970 until nothing is left
changed UInt64 -- the greatest counts, ns since 1970
receipt String -- all of it, JSON
ENGINE ReplacingMergeTree
ORDER BY id, changed
