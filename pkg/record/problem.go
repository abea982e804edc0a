package record

import (
	"cmp"
	"fmt"
	"strconv"
)

// Problem is one thing wrong with a posted body. It never carries a submitted
// value, but for the name of a tenant that is not the caller's.
type Problem struct {
	Index   int    `json:"index"`   // of the record in the request; -1 for the body as a whole
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/3/value/key
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence for people
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %s", p.Pointer, p.Detail) }

// problem is a Problem before anyone wants to read it.
type problem struct {
	index int
	field field // fieldCount for the record itself
	code  string
	said  string // better than what is said of the code; empty: nothing is
}

// problem notes that a field of the record being read is wrong.
func (p *parser) problem(f field, code string) {
	if p.total++; p.total <= maxProblems {
		p.problems = append(p.problems, problem{index: len(p.records), field: f, code: code})
	}
}

// told returns the problems as the client reads them.
func (p *parser) told() []Problem {
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
	case b.field >= fieldCount:
		return at
	case b.field >= firstOfValue:
		at += "/value"
	}
	return at + "/" + specs[b.field].name
}
