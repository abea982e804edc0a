package change

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	ErrTooLarge = errors.New("the body is too large")                    // beyond MaxBody
	ErrConflict = errors.New("the body's id does not match the request") // id or tableId
	ErrStale    = errors.New("the target was changed concurrently")      // Expected is no longer its last sequence
	ErrBusy     = errors.New("too many passwords are being hashed")      // retry later
)

// Problem is one error in a body. It never carries a submitted value.
type Problem struct {
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/grant/edition
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence
}

// ProblemsError is a body in JSON that violates its shape. It holds at most 100 problems,
// ordered by pointer.
type ProblemsError struct{ Problems []Problem }

func (e *ProblemsError) Error() string {
	p := e.Problems[0]
	return fmt.Sprintf("%s: %s (%d problems)", p.Pointer, p.Detail, len(e.Problems))
}

// SyntaxError is a body that is not JSON in UTF-8.
type SyntaxError struct {
	Offset int64 // bytes read before the error
	Detail string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.Detail) }

// TargetError is a subject, table or field with an invalid name.
type TargetError struct {
	Name   string // user, tableId or fieldId
	Detail string
}

func (e *TargetError) Error() string { return e.Name + " " + e.Detail }

// BadChangeError is a change that can never be applied. It is dead-lettered.
type BadChangeError struct {
	Code   string // stable, machine-readable
	Reason string // a sentence; never a submitted value
}

func (e *BadChangeError) Error() string { return e.Reason }

func wrong(pointer, code, detail string) error {
	return &ProblemsError{Problems: []Problem{{Pointer: pointer, Code: code, Detail: detail}}}
}

// path is the current path of a walk over a body. It is a slice of steps, so that nothing
// is built unless there is an error.
type path []string

func (p *path) in(name string) { *p = append(*p, name) }
func (p *path) at(index int)   { p.in(strconv.Itoa(index)) }
func (p *path) out()           { *p = (*p)[:len(*p)-1] }

// String is the JSON pointer (RFC 6901) as a URI fragment. Long names are truncated, so
// that an answer does not echo a body.
func (p path) String() string {
	var b strings.Builder
	b.WriteByte('#')
	for _, step := range p {
		step = strings.NewReplacer("~", "~0", "/", "~1").Replace(cut(step, maxMemberName))
		b.WriteByte('/')
		b.WriteString(url.PathEscape(step))
	}
	return b.String()
}

// cut truncates s to about size bytes, between characters, with an ellipsis.
func cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size] + "…"
}
