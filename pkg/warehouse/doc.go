// Package warehouse keeps the records in ClickHouse: it owns the schema, how a
// block of records gets in exactly once, and what an error of ClickHouse means.
//
//	migrate.go          the schema, brought up to date and checked (migrations, package dialect)
//	insert.go           one block, once per token (package native); what an error means
//	known.go stored.go  what an ingester asks: is it stored, how far, do the folds know
//	audit.go            whether what is stored adds up: sums, rows, counters of days
//	rebuild.go          the tables, made again beside the live ones
//	dump.go             tables as files, and back
//	forget.go           what goes: by request, and by age
//	questions.go        what people ask: questions, lint, cases for event logs
//	db.go cluster.go    one database, and the servers that it is on
//
// Inserting goes through ch-go, whose columns are written straight from the
// memory of record.Columns; everything else goes through clickhouse-go.
package warehouse
