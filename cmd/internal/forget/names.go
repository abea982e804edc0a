package forget

import (
	"bytes"
	"regexp"

	"sluice/pkg/warehouse"
)

// names finds records that name instances, by source and key.
type names map[string]map[string]bool

func newNames(subjects []warehouse.Subject) names {
	n := names{}
	for _, s := range subjects {
		n[s.Source] = map[string]bool{}
		for _, key := range s.Keys {
			n[s.Source][key] = true
		}
	}
	return n
}

var sequence = regexp.MustCompile(`"sequence"\s*:\s*[0-9]+`)

// in tells whether a record, or a message, names one of the instances: a whole run
// of digits is its key, but for the member sequence, which engines count in the
// same range as keys; or the text is, where keys are none.
func (n names) in(source string, raw []byte) bool {
	keys := n[source]
	if len(keys) == 0 {
		return false
	}
	raw = sequence.ReplaceAll(raw, nil)
	for at := 0; at < len(raw); {
		if raw[at] < '0' || raw[at] > '9' {
			at++
			continue
		}
		begin := at
		for at < len(raw) && raw[at] >= '0' && raw[at] <= '9' {
			at++
		}
		if keys[string(raw[begin:at])] {
			return true
		}
	}
	for key := range keys {
		if !isNumber(key) && bytes.Contains(raw, []byte(key)) {
			return true
		}
	}
	return false
}

func isNumber(key string) bool {
	for _, c := range []byte(key) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return key != ""
}

// mayNameIn is a quick look whether a message may name one at all.
func (n names) mayNameIn(source string, raw []byte) bool {
	return len(n[source]) > 0 && (bytes.Contains(raw, []byte(`\u00`)) || n.in(source, raw))
}
