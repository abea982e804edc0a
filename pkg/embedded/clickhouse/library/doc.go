// Package library is the ClickHouse engine of one process, a shared library
// (libchdb.so): it is found, loaded, and runs statements on connections of its
// own, which are not safe to share.
//
// It also looks after what the engine stands on: one process at a time has the
// data folder (LockFolder), what a kill has left in it is mended before the engine
// opens it (ForgetUnfinished), and the process can touch nothing else (Confine).
package library
