package change

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// Limits of a body.
const (
	MaxBody   = 1 << 20 // bytes, of a body as sent and of a document as stored
	MaxDepth  = 32      // objects and arrays within each other
	MaxValues = 50_000  // members and elements: bounds the memory of a parsed body
)

// parseObject reads one JSON object. Numbers keep their text (json.Number); the last of
// repeated members counts.
func parseObject(body []byte) (map[string]any, error) {
	if len(body) > MaxBody {
		return nil, ErrTooLarge
	}
	if !utf8.Valid(body) {
		return nil, &SyntaxError{Detail: "the body is not UTF-8"}
	}
	if depth, values := measure(body); depth > MaxDepth {
		return nil, wrong("#", "too_deep", fmt.Sprintf("The body is nested more than %d deep.", MaxDepth))
	} else if values > MaxValues {
		return nil, wrong("#", "too_many_values", fmt.Sprintf("The body has more than %d members and elements.", MaxValues))
	}
	v, err := parse(body)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, wrong("#", "not_an_object", "The body must be a JSON object.")
	}
	return object, nil
}

// parse reads one JSON value that ends the text.
func parse(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	// The decoder's own errors quote submitted values.
	if err := dec.Decode(&v); err != nil {
		return nil, &SyntaxError{Offset: dec.InputOffset(), Detail: "the body is not valid JSON"}
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, &SyntaxError{Offset: dec.InputOffset(), Detail: "the body has text after the JSON value"}
	}
	return v, nil
}

// encode writes JSON with sorted members and without escapes for HTML, which
// would make some bodies six times as large.
func encode(v any) (json.RawMessage, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// measure returns the nesting and the number of values of a JSON text without parsing it;
// an estimate if it is invalid.
func measure(raw []byte) (depth, values int) {
	open, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			open++
			values++
			depth = max(depth, open)
		case c == '}' || c == ']':
			open--
		case c == ',':
			values++
		}
	}
	return depth, values
}

// merge applies an RFC 7396 merge patch to target, which it changes: objects are merged,
// null removes, everything else, arrays too, replaces. Patches of different members
// commute.
func merge(target, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	t, ok := target.(map[string]any)
	if !ok {
		t = make(map[string]any, len(p))
	}
	for name, v := range p {
		if v == nil {
			delete(t, name)
		} else {
			t[name] = merge(t[name], v)
		}
	}
	return t
}
