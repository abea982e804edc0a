// Package recordtest says slowly, and so that it is seen to be right, what
// package record does fast: which bodies are taken, which row a record becomes,
// and when a row is the record that was posted. Only tests use it.
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
