package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"sluice/pkg/record"
)

// bulk is the body of POST /_bulk in Elasticsearch's format: pairs of lines, an action and a
// document.
//
//	{"index":{"_index":"zeebe-record_job_8.7.0_2026-11-21","_id":"1-17","routing":"1"}}
//	{"partitionId":1,"position":17,...}
//
// The action is only echoed: a record's identity is in the document.
type bulk struct {
	items []bulkItem
	docs  []record.Span // documents to keep, in the body
}

// bulkItem is one action of a bulk.
type bulkItem struct {
	op    string // index or create; delete and update get an error and have no effect
	index []byte // JSON string as sent; nil: none
	id    []byte // likewise
}

// maxBulkItems bounds the answer, which lists every item. The exporters' bulks of 64 MiB
// have some 90 000.
const maxBulkItems = 200_000

// keeps reports whether the item is a document to keep.
func (it *bulkItem) keeps() bool { return it.op == "index" || it.op == "create" }

// parse splits a bulk into its items, which alias its memory.
func (b *bulk) parse(body []byte) error {
	line, at := 0, 0
	next := func() (text record.Span) {
		text = record.Span{Start: at, End: len(body)}
		if n := bytes.IndexByte(body[at:], '\n'); n >= 0 {
			text.End = at + n
		}
		line, at = line+1, text.End+1
		return text
	}
	for at < len(body) {
		span := next()
		action := body[span.Start:span.End]
		if len(bytes.TrimSpace(action)) == 0 {
			continue
		}
		var it bulkItem
		if !it.action(action) {
			return bulkRefusal(line, `is not an action: each document needs {"index":{...}} or {"create":{...}} before it`)
		}
		if it.op != "delete" {
			if at >= len(body) {
				return bulkRefusal(line, "has no document after it")
			}
			if doc := next(); it.keeps() {
				b.docs = append(b.docs, doc)
			}
		}
		if len(b.items) == maxBulkItems {
			return refuse(codeTooManyRecords, fmt.Sprintf("a bulk has at most %d actions", maxBulkItems))
		}
		b.items = append(b.items, it)
	}
	if len(b.items) == 0 {
		return refuse(codeEmptyBody, "the bulk has no actions")
	}
	return nil
}

func bulkRefusal(line int, what string) *refusal {
	return refuse(codeInvalidJSON, fmt.Sprintf("line %d of the bulk %s", line, what))
}

// action parses {"index":{"_index":"i","_id":"1-17",...}}, members in any order; false for
// anything else.
func (it *bulkItem) action(line []byte) (ok bool) {
	s := jsonLine{line}
	if !s.eat('{') {
		return false
	}
	op, ok := s.text()
	if !ok || !s.eat(':') || !s.eat('{') {
		return false
	}
	switch string(op) {
	case `"index"`:
		it.op = "index"
	case `"create"`:
		it.op = "create"
	case `"update"`:
		it.op = "update"
	case `"delete"`:
		it.op = "delete"
	default:
		return false
	}
	for first := true; !s.eat('}'); first = false {
		if !first && !s.eat(',') {
			return false
		}
		name, ok := s.text()
		if !ok || !s.eat(':') {
			return false
		}
		value, ok := s.value()
		if !ok {
			return false
		}
		isText := value[0] == '"'
		switch {
		case string(name) == `"_index"` && isText:
			it.index = value
		case string(name) == `"_id"` && isText:
			it.id = value
		}
	}
	return s.eat('}') && s.end()
}

// jsonLine parses a line of JSON with scalar values. Strings are returned as written, with
// quotes.
type jsonLine struct{ b []byte }

func (s *jsonLine) space() {
	for len(s.b) > 0 && (s.b[0] == ' ' || s.b[0] == '\t' || s.b[0] == '\r') {
		s.b = s.b[1:]
	}
}

func (s *jsonLine) eat(c byte) bool {
	s.space()
	if len(s.b) == 0 || s.b[0] != c {
		return false
	}
	s.b = s.b[1:]
	return true
}

func (s *jsonLine) end() bool {
	s.space()
	return len(s.b) == 0
}

// text reads a string.
func (s *jsonLine) text() ([]byte, bool) {
	s.space()
	if len(s.b) == 0 || s.b[0] != '"' {
		return nil, false
	}
	escaped := false
	for i := 1; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			text := s.b[:i+1]
			s.b = s.b[i+1:]
			return text, !escaped || json.Valid(text)
		case c == '\\':
			escaped = true
			i++
		case c < 0x20:
			return nil, false
		}
	}
	return nil, false
}

// value reads a string, a number, true, false or null: actions have no others.
func (s *jsonLine) value() ([]byte, bool) {
	s.space()
	if len(s.b) > 0 && s.b[0] == '"' {
		return s.text()
	}
	n := bytes.IndexAny(s.b, ",} \t")
	if n <= 0 {
		return nil, false
	}
	value := s.b[:n]
	s.b = s.b[n:]
	return value, value[0] != '{' && value[0] != '[' && json.Valid(value)
}

// answer is Elasticsearch's response from its second member on, with every member that
// strict clients check. The first, took, is known at the end.
func (b *bulk) answer(index string, requestID string) []byte {
	out := make([]byte, 0, 64+192*len(b.items))
	out = append(out, `,"errors":`...)
	out = strconv.AppendBool(out, len(b.docs) < len(b.items))
	out = append(out, `,"items":[`...)
	for i := range b.items {
		it := &b.items[i]
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `{"`...)
		out = append(out, it.op...)
		out = append(out, `":{"_index":`...)
		if it.index != nil {
			out = append(out, it.index...)
		} else {
			out = strconv.AppendQuoteToASCII(out, index)
		}
		out = append(out, `,"_id":`...)
		if it.id != nil {
			out = append(out, it.id...)
		} else {
			out = append(out, '"')
			out = append(out, requestID...)
			out = append(out, '-')
			out = strconv.AppendInt(out, int64(i), 10)
			out = append(out, '"')
		}
		if it.keeps() {
			out = append(out, `,"_version":1,"result":"created","_shards":{"total":1,"successful":1,"failed":0},"_seq_no":0,"_primary_term":1,"status":201}}`...)
		} else {
			out = append(out, `,"status":400,"error":{"type":"action_request_validation_exception","reason":"records cannot be changed or deleted: use index or create"}}}`...)
		}
	}
	return append(out, `]}`...)
}
