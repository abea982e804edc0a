package change

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kind is the operation of a change.
type Kind string

// Kinds of changes, as in messages and flow.changes.
const (
	UserPatched  Kind = "user.patched"  // Body is an RFC 7396 merge patch, secrets already replaced
	FieldPut     Kind = "field.put"     // Body is the whole dataset field
	FieldDeleted Kind = "field.deleted" // Body is empty; leaves a tombstone
)

// Target is the object of a change: a user, or a field of a dataset table.
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

// maxName bounds the bytes of a subject, table, or field name.
const maxName = 256

// check refuses names that are empty, too long, or not plain text. They are already
// percent-decoded.
func (t Target) check() error {
	if t.User != "" || t.Table == "" && t.Field == "" {
		return checkName("user", t.User)
	}
	if err := checkName("tableId", t.Table); err != nil {
		return err
	}
	return checkName("fieldId", t.Field)
}

func checkName(name, value string) error {
	switch {
	case value == "" || len(value) > maxName:
		return &TargetError{Name: name, Detail: "must be 1 to 256 bytes long"}
	case !utf8.ValidString(value):
		return &TargetError{Name: name, Detail: "must be UTF-8"}
	case strings.ContainsFunc(value, unicode.IsControl):
		return &TargetError{Name: name, Detail: "must not hold control characters"}
	}
	return nil
}

// Change is one change on its way through the stream. It holds no secret in clear text:
// passwords and keys are replaced before.
type Change struct {
	Kind     Kind            `json:"kind"`
	Target   Target          `json:"target"`
	By       string          `json:"by"`              // subject of the token that asked for it
	Admin    bool            `json:"admin,omitempty"` // it may set members that grant authority
	At       time.Time       `json:"at"`              // when the api received it, UTC
	Members  []string        `json:"members"`         // names of the members it touches, sorted; see memberNames
	Body     json.RawMessage `json:"body,omitempty"`  // by Kind
	ID       string          `json:"id,omitempty"`    // unique id of the change and of the resulting state; also its Nats-Msg-Id, so that a resend is deduplicated
	Base     *string         `json:"base,omitempty"`  // of a conditional change: Entry.ID that met the condition; it is ignored on any other
	Expected *uint64         `json:"-"`               // required last sequence of the target's subject when publishing
}

// newChange fills the common fields. Each change gets its own ID: two equal changes are
// two changes, one change sent twice is not.
func newChange(kind Kind, target Target, by string) *Change {
	return &Change{Kind: kind, Target: target, By: by, At: time.Now().UTC(), ID: "change-" + rand.Text()}
}

// Empty reports whether the change has no effect and need not be published: a patch without
// members that its author may set.
func (c *Change) Empty() bool { return c.Kind == UserPatched && len(c.Members) == 0 }

// Encode returns the message body, at most a few times MaxBody: text is not escaped for
// HTML.
func (c *Change) Encode() ([]byte, error) { return encode(c) }

// Decode decodes a message body. The error is a *BadChangeError.
func Decode(body []byte) (Change, error) {
	var c Change
	if err := json.Unmarshal(body, &c); err != nil {
		return Change{}, &BadChangeError{Code: "not_a_change", Reason: "the message is not a change in JSON"}
	}
	return c, c.check()
}

func (c *Change) check() error {
	var wanted Target
	switch c.Kind {
	case UserPatched:
		wanted = Target{User: c.Target.User}
	case FieldPut, FieldDeleted:
		wanted = Target{Table: c.Target.Table, Field: c.Target.Field}
	default:
		return &BadChangeError{Code: "unknown_kind", Reason: "the kind of the change is unknown"}
	}
	if c.Target != wanted || c.Target.check() != nil {
		return &BadChangeError{Code: "bad_target", Reason: "the target does not match the kind of the change"}
	}
	if c.Kind == FieldDeleted {
		return nil
	}
	if _, err := parseObject(c.Body); err != nil {
		return &BadChangeError{Code: "bad_body", Reason: "the body of the change is not a JSON object within the limits"}
	}
	return nil
}

// Bounds of the audit's member names: enough for every legitimate request.
const (
	maxMembers    = 256 // names
	maxMemberName = 128 // bytes of a name
)

// memberNames lists the names of an object's members, sorted. "…" marks truncated names
// and a truncated list.
func memberNames(object map[string]any) []string {
	names := slices.Sorted(maps.Keys(object))
	more := len(names) > maxMembers
	names = names[:min(len(names), maxMembers)]
	for i, name := range names {
		names[i] = cut(name, maxMemberName)
	}
	if more {
		names = append(names, "…")
	}
	return names
}

// Audit is a row of flow.changes. It never holds a value.
type Audit struct {
	Seq        uint64    // stream sequence on lane 0
	At         time.Time // when the api received it, UTC
	By         string    // subject of the token
	Kind       Kind
	TargetKind string   // user or field
	Key        string   // the user's subject; or tableId/fieldId, escaped as in the path of a URL
	Members    []string // names of the changed members, sorted
}

// Audit describes the change at seq of lane 0.
func (c *Change) Audit(seq uint64) Audit {
	a := Audit{Seq: seq, At: c.At, By: c.By, Kind: c.Kind, TargetKind: "user", Key: c.Target.User, Members: c.Members}
	if c.Target.User == "" {
		a.TargetKind = "field"
		a.Key = url.PathEscape(c.Target.Table) + "/" + url.PathEscape(c.Target.Field)
	}
	return a
}
