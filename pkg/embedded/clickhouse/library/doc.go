// Package library loads the ClickHouse engine, a shared library (libchdb.so), and runs
// statements on its connections, which are not safe for concurrent use.
//
// It also protects the data folder: one process at a time uses it (LockFolder), leftovers
// of a kill are repaired before the engine opens it (ForgetUnfinished), and the process can
// access nothing else (Confine).
package library
