package change

import (
	"errors"
	"fmt"
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
