// Package record knows workflow records: their JSON and their columns.
//
// A posted body becomes a Request, which Parse splits and checks and Pieces packs
// into the pieces of a flow.Submission. A flow.Message that comes back from the
// stream is decoded by Columns.Append, one row for each record, and the Columns of a
// block are what the warehouse stores.
//
//	request.go parse.go mask.go pieces.go   body → records → pieces
//	message.go append.go                    message → rows
//	columns.go field.go column.go           the columns: one table of them, and what is in one
//	identity.go                             which rows are the same record
//	scan.go walk.go                         JSON, one pass, nothing built
//	value.go                                what numbers and times say
//	errors.go                               what is refused, and how it is told
//
// It imports only flow; every other package may import it.
package record
