// Package native encodes rows of ClickHouse: records as columns of an insert (columns.go), blocks of any
// table in FORMAT Native (blocks.go), and rows as text, to compare a stored one with its record without
// fetching it (digest.go). It does no I/O.
package native
