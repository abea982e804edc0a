// Package warehouse keeps the records in ClickHouse: it owns the schema, how a
// block of records gets in exactly once, and what an error of ClickHouse means.
//
//	Migrate   brings the schema up to date (migrations/*.sql)
//	Check     refuses a schema that could count a record twice
//	Insert    stores one block, once per token
//
// Inserting goes through ch-go, whose columns are written straight from the
// memory of record.Columns; everything else goes through clickhouse-go.
package warehouse
