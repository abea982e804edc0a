// Package native is rows of ClickHouse as they go over the wire: records as the columns
// of an insert (columns.go), blocks of any table as FORMAT Native has them (blocks.go),
// and rows as the text by which a stored one is compared with the record it was made
// of, without being fetched (digest.go). It does no I/O.
package native
