package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
)

// redacted stands for a record that was forgotten, so that all others keep their
// places.
const redacted = "null"

// Forgotten says which records of an entry were forgotten, by their indexes in the
// entry, in order, and what had become of them. What cannot be stored is not in
// it: dead letters tell of that.
type Forgotten struct {
	Stored   []int `json:"stored,omitempty"`
	Repeated []int `json:"repeated,omitempty"`
}

// Has tells whether a record was forgotten.
func (f Forgotten) Has(index int) bool { return f.WasStored(index) || f.WasRepeated(index) }

// WasStored tells whether it had a row of its own.
func (f Forgotten) WasStored(index int) bool {
	_, is := slices.BinarySearch(f.Stored, index)
	return is
}

// WasRepeated tells whether it was known already when it came.
func (f Forgotten) WasRepeated(index int) bool {
	_, is := slices.BinarySearch(f.Repeated, index)
	return is
}

// With are those of both.
func (f Forgotten) With(more Forgotten) Forgotten {
	join := func(a, b []int) []int {
		all := append(slices.Clone(a), b...)
		slices.Sort(all)
		return slices.Compact(all)
	}
	return Forgotten{join(f.Stored, more.Stored), join(f.Repeated, more.Repeated)}
}

// Text is how a header has it, and ParseForgotten reads that.
func (f Forgotten) Text() string {
	text, _ := json.Marshal(f) // numbers
	return string(text)
}

// ParseForgotten reads what Text has written.
func ParseForgotten(text string) (f Forgotten, err error) {
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return Forgotten{}, fmt.Errorf("read which records of an entry were forgotten: %w", err)
	}
	return f, nil
}

// Redact writes an entry again without some of its records. The table is new for an
// entry of requests, and empty where the message keeps its headers. Of what cannot
// be read nothing is left when forget says so of the index -1.
func (e *Entry) Redact(forget func(m *Message, index int) bool) (table string, body []byte, err error) {
	if e.Err != nil {
		if forget(&e.Messages[0], -1) {
			return "", []byte{}, nil
		}
		return "", bytes.Clone(e.Body), nil
	}
	var w EntryWriter
	w.Reset(e.Knew, e.Patience)
	for i := range e.Messages {
		m := e.Messages[i]
		if m.Body, err = m.redact(forget); err != nil {
			return "", nil, fmt.Errorf("redact message %d of lane %d: %w", e.Seq, e.Lane, err)
		}
		w.add(&m)
	}
	if len(e.Table) > 0 {
		table = w.Header()
	}
	return table, w.Body(), nil
}

// redact is the body without the records that are to be forgotten.
func (m *Message) redact(forget func(m *Message, index int) bool) ([]byte, error) {
	some := false
	plain := []byte("[")
	err := Each(m, func(index int, raw []byte) error {
		if len(plain) > 1 {
			plain = append(plain, ',')
		}
		if forget(m, index) {
			some = true
			plain = append(plain, redacted...)
		} else {
			plain = append(plain, raw...)
		}
		return nil
	})
	var broken *BadRecordError
	switch {
	case errors.As(err, &broken) && forget(m, -1):
		return []byte{}, nil
	case err != nil && broken == nil:
		return nil, err
	case err != nil, !some:
		return bytes.Clone(m.Body), nil
	}
	plain = append(plain, ']')
	if m.Encoding == EncodingS2 {
		return s2.Encode(nil, plain), nil
	}
	return plain, nil
}
