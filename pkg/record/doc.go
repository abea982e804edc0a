// Package record decodes workflow records: their JSON and their columns.
//
// A Request checks a posted body (Parse) and cuts it into the chunks of a
// flow.Submission (Cut). Columns.Append decodes a flow.Message read from a lane, one row
// per record. The warehouse stores Columns.
//
//	request.go parse.go mask.go chunks.go   body → records → chunks
//	message.go append.go                    message → rows
//	columns.go field.go column.go           the definition and the contents of columns
//	identity.go forget.go exclude.go        deduplication keys, skipped and excluded records
//	scan.go walk.go                         JSON, one pass, no tree
//	value.go                                numbers and times
//	errors.go                               error codes and their texts
//
// It imports only flow.
package record
