// Package record decodes workflow records: their JSON and their columns.
//
// A Request checks a posted body (Parse), makes a row of each record, and cuts them into
// the chunks of a flow.Submission (Cut). Columns.Append joins the rows of a flow.Message
// read from a lane. The warehouse stores Columns.
//
//	request.go parse.go mask.go append.go   body → records → rows
//	chunks.go body.go                       rows → chunks → rows
//	message.go rebuild.go                   message → records
//	columns.go field.go column.go           the definition and the contents of columns
//	identity.go forget.go exclude.go        deduplication keys, skipped and excluded records
//	scan.go walk.go                         JSON, one pass, no tree
//	value.go                                numbers and times
//	errors.go                               error codes and their texts
//
// It imports only flow.
package record
