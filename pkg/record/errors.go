package record

import (
	"cmp"
	"fmt"
	"strconv"
)

// SyntaxError says that a body is not JSON.
type SyntaxError struct {
	Code   string // CodeInvalidJSON, CodeInvalidUTF8 or CodeEmptyBody
	Offset int    // of the first byte that is wrong
	Index  int    // of the record it stands in
	Detail string // a sentence for people
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d, in record %d", e.Detail, e.Offset, e.Index)
}

// LimitError says that a body is valid JSON as far as it was read, but beyond
// one of the Limits.
type LimitError struct {
	Code   string // CodeBodyTooLarge, CodeTooManyRecords, CodeRecordTooLarge or CodeTooDeep
	Index  int    // of the record
	Limit  int    // what is allowed
	Detail string // a sentence for people
}

func (e *LimitError) Error() string { return fmt.Sprintf("%s, in record %d", e.Detail, e.Index) }

// ProblemsError says that records of a body have members of the wrong type.
type ProblemsError struct {
	Problems []Problem // the first 100, in the order of the body
	Total    int       // how many there are
}

func (e *ProblemsError) Error() string {
	return fmt.Sprintf("%d problems, the first: %v", e.Total, e.Problems[0])
}

// BadRecordError says that a message could not be decoded.
type BadRecordError struct {
	Index  int    // of the record in the entry; -1 when the message as a whole is broken
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

// The codes of Problems and errors. They are part of the HTTP API.
const (
	CodeEmptyBody      = "empty_body"
	CodeInvalidJSON    = "invalid_json"
	CodeInvalidUTF8    = "invalid_utf8"
	CodeBodyTooLarge   = "body_too_large"
	CodeTooManyRecords = "too_many_records"
	CodeRecordTooLarge = "record_too_large"
	CodeTooDeep        = "too_deep"

	CodeOtherTenant  = "tenant_forbidden" // of a tenant that the caller may not post for
	CodeMissing      = "missing"          // what every record has: this is none
	CodeNotAnObject  = "not_an_object"    // a record, or its value, is something else
	CodeNotAString   = "not_a_string"     // nor a number, which would do
	CodeNotAnInteger = "not_an_integer"   // nor text that is one
	CodeOutOfRange   = "out_of_range"     // an integer beyond 64 bits
	CodeNotATime     = "not_a_time"       // neither milliseconds nor ISO 8601

	CodeTooManyMonths = "too_many_months" // a timestamp of one more month than a request may have

	CodeBadEncoding  = "broken_encoding" // a message that cannot be decompressed
	CodeNotAnArray   = "not_an_array"    // a message that holds something else
	CodeNoSuchRecord = "no_such_record"  // a message with fewer records
	CodeMiscounted   = "miscounted"      // a message with other records than its entry says
	CodeBadEntry     = "broken_entry"    // an entry whose table cannot be read
)

// details says each code in a sentence.
var details = map[string]string{
	CodeEmptyBody:      "the body is empty",
	CodeInvalidJSON:    "the body is not valid JSON",
	CodeInvalidUTF8:    "the body is not valid UTF-8",
	CodeBodyTooLarge:   "the body is too large",
	CodeTooManyRecords: "the request holds too many records",
	CodeRecordTooLarge: "the record is too large",
	CodeTooDeep:        "the record is nested too deep",
	CodeOtherTenant:    "the access token is not for this tenant",
	CodeMissing:        "is missing, as is all else that a workflow record has",
	CodeNotAnObject:    "must be an object",
	CodeNotAString:     "must be a string",
	CodeNotAnInteger:   "must be an integer, or a string of its decimal digits",
	CodeOutOfRange:     "must be an integer of 64 bits",
	CodeNotATime:       "must be milliseconds since 1970, or an ISO 8601 date and time",
	CodeTooManyMonths:  "is of a 25th month: the timestamps of a request may be of 24 months",
	CodeBadEncoding:    "the message cannot be decompressed",
	CodeNotAnArray:     "the message is not a JSON array",
	CodeNoSuchRecord:   "the message has fewer records",
	CodeMiscounted:     "the message has other records than its entry counts",
	CodeBadEntry:       "the table of the entry cannot be read",
}

// refusal returns the error for what stopped the scanner.
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

// Problem is one thing wrong with a posted body. It never carries a submitted
// value, but for the name of a tenant that is not the caller's.
type Problem struct {
	Index   int    `json:"index"`   // of the record in the request; -1 for the body as a whole
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/3/value/key
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence for people
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %s", p.Pointer, p.Detail) }

// problem is a Problem before it is put in words.
type problem struct {
	index int
	field field // fieldUnknown for the record itself
	code  string
	said  string // better than what is said of the code; empty: nothing is
}

// problem notes that a field of the record being read is wrong.
func (p *parser) problem(f field, code string) {
	if p.total++; p.total <= maxProblems {
		p.problems = append(p.problems, problem{index: len(p.records), field: f, code: code})
	}
}

// export returns the problems as the client reads them.
func (p *parser) export() []Problem {
	told := make([]Problem, len(p.problems))
	for i, b := range p.problems {
		told[i] = Problem{Index: b.index, Pointer: p.pointer(b), Code: b.code, Detail: cmp.Or(b.said, details[b.code])}
	}
	return told
}

// pointer returns the JSON pointer to a problem, as a URI fragment. In a body
// of several documents it points as if they stood in an array.
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
