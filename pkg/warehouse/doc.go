// Package warehouse stores records in ClickHouse: it owns the schema, the insertion of blocks
// exactly once, and the classes of ClickHouse's errors.
//
//	migrate.go          creates the schema (package schema), or refuses a database
//	check.go            checks that inserts are deduplicated and durable
//	insert.go           inserts a block once per token (package native); error classes
//	known.go stored.go  lookups of an ingester: known records, progress, aggregate tables
//	audit.go            sums, rows, and counters, for verify and recount
//	rebuild.go          the tables, recreated beside the live ones
//	dump.go restore.go  tables to files and back
//	forget.go retention.go  deletion by request and by age
//	models.go           tables and views of the modeller
//	questions.go lint.go    questions, checks, cases for event logs
//	db.go cluster.go    one database and its servers
//
// Inserts use ch-go, whose columns are written directly from the memory of record.Columns; all
// else uses clickhouse-go.
package warehouse
