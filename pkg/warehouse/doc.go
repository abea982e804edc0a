// Package warehouse keeps the records in ClickHouse: it owns the schema, how a
// block of records gets in exactly once, and what an error of ClickHouse means.
//
//	migrate.go          makes the schema (package schema), or refuses a database
//	check.go            whether an insert could count twice, or be lost
//	insert.go           one block, once per token (package native); what an error means
//	known.go stored.go  what an ingester asks: is it stored, how far, do the aggregate tables have it
//	audit.go            whether what is stored adds up: sums, rows, counters of days
//	rebuild.go          the tables, recreated beside the live ones
//	dump.go             tables as files, and back
//	forget.go           what goes: by request, and by age
//	questions.go        what people ask: questions, lint, cases for event logs
//	db.go cluster.go    one database, and the servers that it is on
//
// Inserting goes through ch-go, whose columns are written straight from the
// memory of record.Columns; everything else goes through clickhouse-go.
package warehouse
