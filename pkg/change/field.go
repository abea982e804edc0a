package change

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is how many bytes a subject, a table or a field may be named with.
const maxName = 256

// NewFieldPut makes a change of the body of a PUT: a whole dataset field. It
// replaces what was there and revives what was deleted. id and tableId are
// filled in from the path.
//
// Errors: ErrTooLarge, *SyntaxError, *ProblemsError, ErrConflict (an id or
// tableId that is not that of the path), *TargetError.
func NewFieldPut(table, field, by string, body []byte) (*Change, Warnings, error) {
	c := newChange(FieldPut, Target{Table: table, Field: field}, by)
	if err := c.Target.check(); err != nil {
		return nil, nil, err
	}
	doc, err := parseObject(body)
	if err != nil {
		return nil, nil, err
	}
	warnings, err := check(doc, FieldShape)
	if err != nil {
		return nil, nil, err
	}
	if err := own(doc, "id", field); err != nil {
		return nil, nil, err
	}
	if err := own(doc, "tableId", table); err != nil {
		return nil, nil, err
	}
	c.Members = memberNames(doc)
	doc["id"], doc["tableId"] = field, table
	if c.Body, err = encode(doc); err != nil {
		return nil, nil, err
	}
	if len(c.Body) > MaxBody {
		return nil, nil, ErrTooLarge
	}
	return c, warnings, nil
}

// NewFieldDelete makes a change that leaves a tombstone. version is the Seq of
// the entry it deletes, 0 when there is none: the change is to be published
// only on top of that one, so that of two deletions at the same time one is
// published, and a PUT in between is noticed. An entry that is deleted already
// needs no change at all.
//
// The only error is *TargetError.
func NewFieldDelete(table, field, by string, version uint64) (*Change, error) {
	c := newChange(FieldDeleted, Target{Table: table, Field: field}, by)
	c.Expected = &version
	c.Members = []string{}
	return c, c.Target.check()
}

// check refuses names that are empty, long or not plain text. They come
// decoded: what a percent sign stood for is itself.
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
