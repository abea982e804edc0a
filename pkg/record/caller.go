package record

import (
	"errors"
	"slices"
)

// Scope is one right a token may carry.
type Scope string

// The scopes there are. None includes another: a token that may do everything
// names all of them.
const (
	ScopeRecordsWrite Scope = "records:write" // post workflow records
	ScopeUserWrite    Scope = "user:write"    // patch the current user
	ScopeFieldsWrite  Scope = "fields:write"  // put and delete dataset fields
	ScopeRead         Scope = "read"          // read the current user and dataset fields
	ScopeAdmin        Scope = "admin"         // store members that bear authority: privileges, grant, license, type, status
)

// Scopes lists every scope, in the order they are documented.
func Scopes() []Scope {
	return []Scope{ScopeRecordsWrite, ScopeUserWrite, ScopeFieldsWrite, ScopeRead, ScopeAdmin}
}

// Identity is who a request comes from, as its token says.
type Identity struct {
	Subject string   // the current user, and the owner of its idempotency keys; never empty
	Source  string   // the engine whose records it posts; never empty
	Scopes  []Scope  // not modified after it is handed out, nor are the lists below
	Tables  []string // dataset tables it may touch; nil for all, empty for none
	Tenants []string // tenants whose records it may post; nil for all, empty for none
	Rate    float64  // requests per second the token may make; 0 leaves it to the api
}

// May tells whether the token carries the scope.
func (i Identity) May(s Scope) bool { return slices.Contains(i.Scopes, s) }

// MayTouch tells whether the token may touch fields of a dataset table.
func (i Identity) MayTouch(table string) bool {
	return i.Tables == nil || slices.Contains(i.Tables, table)
}

// Why a request has no Identity.
var (
	ErrTokenMissing    = errors.New("no access token was sent")
	ErrTokenInvalid    = errors.New("the access token is not valid")                    // unknown, malformed, expired, for somebody else
	ErrTokenUnverified = errors.New("the access token cannot be checked at the moment") // its keys cannot be had
)
