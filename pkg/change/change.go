package change

import (
	"encoding/base64"
	"encoding/json"
	"time"
)

// Kind says what a change does.
type Kind string

// The kinds of change, as they stand in messages and in flow.changes.
const (
	UserPatched  Kind = "user.patched"  // Body is an RFC 7396 merge patch, secrets already replaced
	FieldPut     Kind = "field.put"     // Body is the whole dataset field
	FieldDeleted Kind = "field.deleted" // Body is empty; leaves a tombstone
)

// Target is what a change is made to: a user, or a field of a dataset table.
type Target struct {
	User  string `json:"user,omitempty"`  // subject of the user, empty for a field
	Table string `json:"table,omitempty"` // dataset table of the field
	Field string `json:"field,omitempty"` // field within the table
}

// Key names the target in subjects and in the state store:
// user.<base64url> or field.<base64url>.<base64url>.
func (t Target) Key() string {
	enc := base64.RawURLEncoding.EncodeToString
	if t.User != "" {
		return "user." + enc([]byte(t.User))
	}
	return "field." + enc([]byte(t.Table)) + "." + enc([]byte(t.Field))
}

// Change is one change on its way through the stream. It holds no secret in
// the clear: passwords and keys are replaced before a Change is made.
type Change struct {
	Kind     Kind            `json:"kind"`
	Target   Target          `json:"target"`
	By       string          `json:"by"`             // subject of the token that asked for it
	At       time.Time       `json:"at"`             // when the api took it in, UTC
	Members  []string        `json:"members"`        // names of the members it touches, sorted
	Body     json.RawMessage `json:"body,omitempty"` // as Kind says
	ID       string          `json:"-"`              // Nats-Msg-Id; empty asks for none
	Expected *uint64         `json:"-"`              // publish only while this is the last sequence of the target's subject in the stream
}
