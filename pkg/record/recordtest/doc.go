// Package recordtest is a slow and simple reference for package record: which bodies are accepted, which row a record
// becomes, and when a row equals the posted record. Only tests use it.
package recordtest

import (
	"bytes"
	_ "embed"
)

//go:embed testdata/records.ndjson
var samples []byte

// Samples returns eleven records of many shapes as clients send them, odd ones
// included.
func Samples() [][]byte {
	return bytes.Split(bytes.TrimSpace(samples), []byte("\n"))
}
