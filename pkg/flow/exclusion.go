package flow

import (
	"fmt"
	"strings"
)

// Exclusion is a rule of a source: records that match all its patterns are not kept.
// * matches any text; an empty pattern matches every record.
type Exclusion struct {
	ValueType string `yaml:"valueType"`
	Intent    string `yaml:"intent"`
	Process   string `yaml:"bpmnProcessId"`
	Variable  string `yaml:"variable"` // the name of a VARIABLE record
}

// String is the rule in the syntax of a token file.
func (e Exclusion) String() string {
	var parts []string
	for _, p := range [][2]string{{"valueType", e.ValueType}, {"intent", e.Intent}, {"bpmnProcessId", e.Process}, {"variable", e.Variable}} {
		if p[1] != "" {
			parts = append(parts, fmt.Sprintf("%s: %q", p[0], p[1]))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// Glob reports whether a text matches a pattern, in which * matches any text.
func Glob(pattern string, text []byte) bool {
	for {
		before, after, star := strings.Cut(pattern, "*")
		if len(text) < len(before) || string(text[:len(before)]) != before {
			return false
		}
		text = text[len(before):]
		if !star {
			return len(text) == 0
		}
		if after == "" {
			return true
		}
		// The first match of the next part is as good as a later one. Only the last part must match the end.
		next, _, more := strings.Cut(after, "*")
		if !more {
			return len(text) >= len(next) && string(text[len(text)-len(next):]) == next
		}
		at := strings.Index(string(text), next)
		if at < 0 {
			return false
		}
		pattern, text = after, text[at:]
	}
}
