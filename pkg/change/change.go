package change

import (
	"crypto/rand"
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
	By       string          `json:"by"`              // subject of the token that asked for it
	Admin    bool            `json:"admin,omitempty"` // it may set authority-bearing members
	At       time.Time       `json:"at"`              // when the api took it in, UTC
	Members  []string        `json:"members"`         // names of the members it touches, sorted; see memberNames
	Body     json.RawMessage `json:"body,omitempty"`  // as Kind says
	ID       string          `json:"-"`               // Nats-Msg-Id, so that publishing it again stores nothing new
	Expected *uint64         `json:"-"`               // publish only while this is the last sequence of the target's subject in the stream
}

// Empty reports whether the change does nothing, so that it need not be
// published: a patch without members, or with none its author may set.
func (c *Change) Empty() bool { return c.Kind == UserPatched && len(c.Members) == 0 }

// Encode gives the message body. It is at most a few times MaxBody for no
// input: text is written as it is, not escaped for HTML.
func (c *Change) Encode() ([]byte, error) { return encode(c) }

// Decode reads the message body that Encode wrote. Any other body gives a
// *BadChangeError.
func Decode(body []byte) (Change, error) {
	var c Change
	if err := json.Unmarshal(body, &c); err != nil {
		return Change{}, &BadChangeError{Code: "not_a_change", Reason: "the message is not the JSON of a change"}
	}
	return c, c.check()
}

// check refuses what Apply cannot apply.
func (c *Change) check() error {
	var wanted Target
	switch c.Kind {
	case UserPatched:
		wanted = Target{User: c.Target.User}
	case FieldPut, FieldDeleted:
		wanted = Target{Table: c.Target.Table, Field: c.Target.Field}
	default:
		return &BadChangeError{Code: "unknown_kind", Reason: "the change is of no known kind"}
	}
	if c.Target != wanted || c.Target.check() != nil {
		return &BadChangeError{Code: "bad_target", Reason: "the target of the change does not fit its kind"}
	}
	if c.Kind == FieldDeleted {
		return nil
	}
	if _, err := parseObject(c.Body); err != nil {
		return &BadChangeError{Code: "bad_body", Reason: "the body of the change is not a JSON object within the limits"}
	}
	return nil
}

// newChange fills in what all changes have. Each gets an ID of its own: two
// equal changes are two changes, and only publishing one twice must not count.
func newChange(kind Kind, target Target, by string) *Change {
	return &Change{Kind: kind, Target: target, By: by, At: time.Now().UTC(), ID: "change-" + rand.Text()}
}
