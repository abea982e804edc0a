// Package server serves the ClickHouse engine of one machine the way a ClickHouse
// server would: on the native protocol for drivers and on HTTP for people.
//
//	clickhouse-go, ch-go ──native──▶ native.go ─┐             ┌─ library ─────────────────────┐
//	                                            ├─▶ session ──┼▶ Conn ─▶ Engine (libchdb.so)  │
//	curl, any FORMAT     ──HTTP────▶ http.go  ──┘             └───────────────────────────────┘
//
// One process owns the engine and its data folder (Serve); a supervise.Supervisor
// starts that process as a child and starts it again when it dies, so that a
// crash inside the library, or a kill -9, takes nothing else along.
//
// # What it is, and what it is not
//
// It is the whole engine: MergeTree tables, materialized views, insert
// deduplication, every format. It is not a cluster: no Keeper, no replicated
// tables, no users but those of users.go, no asynchronous inserts.
//
// # What a statement may do
//
// The library has one user, who may do everything, and no way to log in as
// another. So passwords are checked here (users.go), and a session takes on the
// role of its user before its first statement (roles.go); the engine enforces
// what the role is granted. What grants cannot express is checked before a
// statement runs (permit.go), with ClickHouse's own parser and a lexer that
// splits texts exactly as ClickHouse does. And the process can touch nothing
// but its data folder (library.Confine). By default nothing leaves the
// database; Config.AllowFiles changes that. It listens on loopback unless every
// user needs a password.
//
// # The protocol, in one page
//
// The hello is answered with revision 54460, which has query parameters. What the
// engine prints as FORMAT Native is the body of a Data packet of a client without
// a revision, and what it reads as FORMAT Native likewise: block.go finds where
// the columns of a block begin and end, where newer clients have a byte more.
//
// A Data block becomes one block of the engine, and a client that goes away in
// the middle of an INSERT cancels it: blocks are handed on whole, and the
// engine gathers them up to min_insert_block_size_rows (1 048 449) rows or
// min_insert_block_size_bytes (256 MiB) before it writes a part. So an INSERT
// of one block is one part per partition, or nothing.
package server
