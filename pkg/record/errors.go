package record

import (
	"cmp"
	"fmt"
	"strconv"
)

// SyntaxError means that a body is not JSON.
type SyntaxError struct {
	Code   string // CodeInvalidJSON, CodeInvalidUTF8 or CodeEmptyBody
	Offset int    // of the first invalid byte
	Index  int    // of its record
	Detail string // a sentence
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d, in record %d", e.Detail, e.Offset, e.Index)
}

// LimitError means that a body exceeds one of the Limits. It is valid JSON as far as it
// was read.
type LimitError struct {
	Code   string // CodeBodyTooLarge, CodeTooManyRecords, CodeRecordTooLarge or CodeTooDeep
	Index  int    // of the record
	Limit  int    // the limit
	Detail string // a sentence
}

func (e *LimitError) Error() string { return fmt.Sprintf("%s, in record %d", e.Detail, e.Index) }

// ProblemsError means that records have members of the wrong type.
type ProblemsError struct {
	Problems []Problem // the first 100, in the order of the body
	Total    int       // including those not listed
}

func (e *ProblemsError) Error() string {
	return fmt.Sprintf("%d problems, the first: %v", e.Total, e.Problems[0])
}

// BadRecordError means that a message or one of its records cannot be decoded.
type BadRecordError struct {
	Index  int    // of the record in the entry; -1 for the whole message
	Code   string // stable, machine-readable
	Reason string // a sentence; never a submitted value
	Raw    []byte // the record as it was sent, or the message's body; owned by the receiver
}

func (e *BadRecordError) Error() string {
	if e.Index < 0 {
		return "message: " + e.Reason
	}
	return fmt.Sprintf("record %d: %s", e.Index, e.Reason)
}

// Codes of Problems and errors, part of the HTTP API.
const (
	CodeEmptyBody      = "empty_body"
	CodeInvalidJSON    = "invalid_json"
	CodeInvalidUTF8    = "invalid_utf8"
	CodeBodyTooLarge   = "body_too_large"
	CodeTooManyRecords = "too_many_records"
	CodeRecordTooLarge = "record_too_large"
	CodeTooDeep        = "too_deep"

	CodeOtherTenant  = "tenant_forbidden" // of a tenant outside the token's
	CodeMissing      = "missing"          // no member of a record
	CodeNotAnObject  = "not_an_object"    // a record, or its value
	CodeNotAString   = "not_a_string"     // nor a number, which is accepted
	CodeNotAnInteger = "not_an_integer"   // nor a string of one
	CodeOutOfRange   = "out_of_range"     // an integer beyond 64 bits
	CodeNotATime     = "not_a_time"       // neither milliseconds nor ISO 8601

	CodeTooManyMonths = "too_many_months" // the timestamp is in a month beyond the limit of a request

	CodeBadEncoding  = "broken_encoding" // a message that cannot be decompressed
	CodeNotAnArray   = "not_an_array"    // a message that is not an array
	CodeNoSuchRecord = "no_such_record"  // a message with fewer records
	CodeMiscounted   = "miscounted"      // a message whose record count differs from its entry's
	CodeBadEntry     = "broken_entry"    // an entry whose table cannot be read
)

var details = map[string]string{
	CodeEmptyBody:      "the body is empty",
	CodeInvalidJSON:    "the body is not valid JSON",
	CodeInvalidUTF8:    "the body is not valid UTF-8",
	CodeBodyTooLarge:   "the body is too large",
	CodeTooManyRecords: "the request holds too many records",
	CodeRecordTooLarge: "the record is too large",
	CodeTooDeep:        "the record is nested too deep",
	CodeOtherTenant:    "the access token is not for this tenant",
	CodeMissing:        "is missing, and so is every other member of a workflow record",
	CodeNotAnObject:    "must be an object",
	CodeNotAString:     "must be a string",
	CodeNotAnInteger:   "must be an integer, or a string of its decimal digits",
	CodeOutOfRange:     "must be an integer of 64 bits",
	CodeNotATime:       "must be milliseconds since 1970, or an ISO 8601 date and time",
	CodeTooManyMonths:  "is in a 25th month: the timestamps of a request may span 24",
	CodeBadEncoding:    "the message cannot be decompressed",
	CodeNotAnArray:     "the message is not a JSON array",
	CodeNoSuchRecord:   "the message has fewer records",
	CodeMiscounted:     "the record count of the message differs from its entry's",
	CodeBadEntry:       "the table of the entry cannot be read",
}

// refusal returns the error that stopped the scanner.
func (p *parser) refusal() error {
	code, index := p.w.code, len(p.records)
	limit := 0
	switch code {
	case CodeTooManyRecords:
		limit = p.lim.Records
	case CodeRecordTooLarge:
		limit = p.lim.RecordBytes
	case CodeTooDeep:
		limit = p.lim.Depth
	default:
		return &SyntaxError{Code: code, Offset: p.w.pos, Index: index, Detail: details[code]}
	}
	return &LimitError{Code: code, Index: index, Limit: limit, Detail: details[code]}
}

// Problem is one error in a posted body. It carries no submitted value, except the name
// of a tenant that the token does not cover.
type Problem struct {
	Index   int    `json:"index"`   // of the record in the request; -1 for the body as a whole
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/3/value/key
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %s", p.Pointer, p.Detail) }

// problem is a Problem before its text is built.
type problem struct {
	index int
	field field // fieldUnknown for the record itself
	code  string
	said  string // overrides the detail of the code, unless empty
}

// problem records an invalid field of the current record.
func (p *parser) problem(f field, code string) {
	if p.total++; p.total <= maxProblems {
		p.problems = append(p.problems, problem{index: len(p.records), field: f, code: code})
	}
}

// export returns the problems in the form of the HTTP API.
func (p *parser) export() []Problem {
	exported := make([]Problem, len(p.problems))
	for i, b := range p.problems {
		exported[i] = Problem{Index: b.index, Pointer: p.pointer(b), Code: b.code, Detail: cmp.Or(b.said, details[b.code])}
	}
	return exported
}

// pointer returns the JSON pointer to a problem, as a URI fragment. Several documents
// count as an array.
func (p *parser) pointer(b problem) string {
	at := "#"
	switch p.shape {
	case shapeList:
		at += "/" + strconv.Itoa(b.index)
	case shapeWrapped:
		at += "/records/" + strconv.Itoa(b.index)
	}
	switch {
	case b.field == fieldUnknown:
		return at
	case specs[b.field].value:
		at += "/value"
	}
	return at + "/" + specs[b.field].name
}
