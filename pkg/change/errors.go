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
	ErrTooLarge = errors.New("the body is too large")                       // beyond MaxBody
	ErrConflict = errors.New("the body names another id than the request")  // id or tableId
	ErrStale    = errors.New("the target has been changed in between")      // Expected is not its last sequence any more
	ErrBusy     = errors.New("too many passwords are being hashed already") // nothing is wrong with the request: later it may pass
)

// Problem is one thing wrong with a body. It never carries a submitted value.
type Problem struct {
	Pointer string `json:"pointer"` // JSON pointer as a URI fragment, such as #/grant/edition
	Code    string `json:"code"`    // stable, machine-readable
	Detail  string `json:"detail"`  // a sentence for people
}

// ProblemsError is a body that is JSON but not what it should be. It holds at
// most 100 problems, in the order of their pointers.
type ProblemsError struct{ Problems []Problem }

func (e *ProblemsError) Error() string {
	p := e.Problems[0]
	return fmt.Sprintf("%s: %s (%d problems)", p.Pointer, p.Detail, len(e.Problems))
}

// SyntaxError is a body that is not JSON in UTF-8.
type SyntaxError struct {
	Offset int64 // bytes read before it was noticed
	Detail string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.Detail) }

// TargetError is a subject, table or field that cannot be named.
type TargetError struct {
	Name   string // user, tableId or fieldId
	Detail string
}

func (e *TargetError) Error() string { return e.Name + " " + e.Detail }

// BadChangeError is a change that cannot be applied, now or ever. It belongs
// into the dead letters.
type BadChangeError struct {
	Code   string // stable, machine-readable
	Reason string // a sentence; never a submitted value
}

func (e *BadChangeError) Error() string { return e.Reason }

func wrong(pointer, code, detail string) error {
	return &ProblemsError{Problems: []Problem{{Pointer: pointer, Code: code, Detail: detail}}}
}

// path is where in a body a walk stands. Each walk pushes and pops its own
// steps, so that nothing is built unless there is something to report.
type path []string

func (p *path) in(name string) { *p = append(*p, name) }
func (p *path) at(index int)   { p.in(strconv.Itoa(index)) }
func (p *path) out()           { *p = (*p)[:len(*p)-1] }

// String is the JSON pointer (RFC 6901) as a URI fragment. Long names are
// cut: a pointer must not make a reply of a body.
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

// cut shortens s to about size bytes, between characters, and says so.
func cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size] + "…"
}
