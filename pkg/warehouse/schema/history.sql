-- How long ended call trees stay in the aggregate tables, and up to when they are removed.
--
-- A tree is a process instance with all instances that it called, directly or not. It is
-- removed as a whole, once all of it has ended and its last event is older than the line. A
-- later record of it makes a row without a start, older than the line.
EVERYWHERE history
name String -- keep: days, 0 forever; line: ms since 1970, trees that ended before it are removed or being removed; done: trees that ended before it are removed
value Int64 -- see name
changed UInt64 -- the greatest counts, ns since 1970
ENGINE ReplacingMergeTree
ORDER BY name, changed
