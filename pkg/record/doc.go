// Package record is what moves through Sluice: workflow records, the requests
// and messages that carry them, their JSON and their columns.
//
// A posted body becomes a Request, which Parse splits and checks and Parts packs
// into the messages of a Submission. A Message that comes back from the stream
// is decoded by Columns.Append, one row for each record, and the Columns of a
// block are what the warehouse stores.
//
//	submission.go lane.go caller.go errors.go   what crosses the seams between packages
//	request.go parse.go parts.go      body → records → messages
//	columns.go append.go extra.go     message → rows
//	identity.go id.go drop.go         which rows are the same record, and dropping those
//	text.go symbol.go                 the columns
//	scan.go names.go walk.go          JSON, one pass, nothing built
//	field.go number.go time.go id.go  what the members mean
//	problem.go refusal.go limits.go   what is refused, and how it is told
//
// It imports no other package of this module; everything else imports it.
package record
