-- How long ended call trees stay in the aggregate tables, and up to when they have left.
--
-- A tree is a process instance and all that it called, directly or not. It leaves whole,
-- when all of it has ended and nothing has happened in it since the line. A record that
-- comes after that makes a row without a start, older than the line.
EVERYWHERE history
name String -- keep: days, 0 for ever; line: what ended before it leaves or has left, ms since 1970; done: what ended before it has left
value Int64 -- see name
changed UInt64 -- the greatest counts, ns since 1970
ENGINE ReplacingMergeTree
ORDER BY name, changed
