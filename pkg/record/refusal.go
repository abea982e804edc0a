package record

import "strconv"

// problem is a Problem before anyone wants to read it.
type problem struct {
	index int
	field field // fieldCount for the record itself
	code  string
}

// problem notes that a field of the record being read is wrong.
func (p *parser) problem(f field, code string) {
	if p.total++; p.total <= maxProblems {
		p.problems = append(p.problems, problem{len(p.records), f, code})
	}
}

// told returns the problems as the client reads them.
func (p *parser) told() []Problem {
	told := make([]Problem, len(p.problems))
	for i, b := range p.problems {
		told[i] = Problem{Index: b.index, Pointer: p.pointer(b), Code: b.code, Detail: details[b.code]}
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
	case b.field >= fieldCount:
		return at
	case b.field >= firstOfValue:
		at += "/value"
	}
	return at + "/" + specs[b.field].name
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

// details says each code in a sentence.
var details = map[string]string{
	CodeEmptyBody:      "the body is empty",
	CodeInvalidJSON:    "the body is not valid JSON",
	CodeInvalidUTF8:    "the body is not valid UTF-8",
	CodeBodyTooLarge:   "the body is too large",
	CodeTooManyRecords: "the request holds too many records",
	CodeRecordTooLarge: "the record is too large",
	CodeTooDeep:        "the record is nested too deep",
	CodeNotAnObject:    "must be an object",
	CodeNotAString:     "must be a string",
	CodeNotAnInteger:   "must be an integer, or a string of its decimal digits",
	CodeOutOfRange:     "must be an integer of 64 bits",
	CodeNotATime:       "must be milliseconds since 1970, or an ISO 8601 date and time",
	CodeBadEncoding:    "the message can not be decompressed",
	CodeNotAnArray:     "the message is not a JSON array",
	CodeNoSuchRecord:   "the message has fewer records",
}
