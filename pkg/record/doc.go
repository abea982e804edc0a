// Package record is what moves through Sluice: workflow records, the requests
// and messages that carry them, their JSON and their columns.
//
// A posted body becomes a Request, which Parse splits and checks and Pieces packs
// into the messages of a Submission. A Message that comes back from the stream
// is decoded by Columns.Append, one row for each record, and the Columns of a
// block are what the warehouse stores.
//
//	submission.go entry.go table.go position.go known.go errors.go   what passes between packages
//	request.go parse.go mask.go pieces.go   body → records → messages
//	message.go append.go                    message → rows
//	columns.go column.go                    the rows of a block
//	identity.go                             which rows are the same record
//	scan.go walk.go                         JSON, one pass, nothing built
//	field.go value.go                       what the members mean
//	refusal.go                              what is refused, and how it is told
//
// It imports no other package of this module; everything else imports it.
package record
