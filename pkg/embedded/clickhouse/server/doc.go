// Package server serves the embedded ClickHouse engine like a ClickHouse server: the native
// protocol for drivers and HTTP for people.
//
//	clickhouse-go, ch-go ──native──▶ native.go ─┐             ┌─ library ─────────────────────┐
//	                                            ├─▶ session ──┼▶ Conn ─▶ Engine (libchdb.so)  │
//	curl, any FORMAT     ──HTTP────▶ http.go  ──┘             └───────────────────────────────┘
//
// One process owns the engine and its data folder (Serve); a supervise.Supervisor starts
// it as a child and restarts it, so that a crash in the library, or a kill -9, affects
// nothing else.
//
// # Scope
//
// It is the whole engine: MergeTree tables, materialized views, insert deduplication, every
// format. It is not a cluster: no Keeper, no replicated tables, no users but those of
// users.go, no asynchronous inserts.
//
// # Permissions
//
// The library has one user with all rights and no log-in. So passwords are checked here
// (users.go), and a session sets its user's role before its first statement (roles.go); the
// engine enforces the role's grants. What grants cannot express is checked before a
// statement runs (permit.go), with ClickHouse's own parser and a lexer equal to
// ClickHouse's. The process can access nothing but its data folder (library.Confine). By
// default statements cannot access files or addresses; Config.AllowFiles changes that. It
// listens on loopback unless every user needs a password.
//
// # Protocol
//
// The hello is answered with revision 54460, which has query parameters. FORMAT Native of
// the engine is the body of a Data packet for a client without a revision, in both
// directions: block.go finds the columns of a block, where newer clients have one byte more.
//
// A Data block becomes one block of the engine, and a client that disconnects during an
// INSERT cancels it: blocks are passed on whole, and the engine gathers them up to
// min_insert_block_size_rows (1 048 449) rows or min_insert_block_size_bytes (256 MiB)
// before it writes a part. So an INSERT of one block is one part per partition, or nothing.
package server
