package recordtest

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/record"
)

// Wrong is a member whose type violates the specification.
type Wrong struct {
	Pointer string // within the record: /value/key
	Code    string
}

// object is a JSON object with members as JSON text. The last of repeated members counts.
type object map[string]json.RawMessage

// decode returns raw as an object; nil if it is not one.
func decode(raw []byte) object {
	var o object
	if json.Unmarshal(raw, &o) != nil {
		return nil
	}
	return o
}

// has reports whether a member is present and not null.
func (o object) has(name string) bool { return len(o[name]) > 0 && string(o[name]) != "null" }

var (
	outerText     = []string{"id", "recordType", "valueType", "intent"}
	valueText     = []string{"bpmnProcessId", "processInstanceKey", "elementId", "type", "worker", "errorCode", "errorMessage"}
	valueIntegers = []string{"processDefinitionKey", "processDefinitionVersion", "elementInstanceKey", "retries"}
)

// Check returns the members of a record with a wrong type, in no order. The record is valid JSON.
func Check(raw []byte) []Wrong {
	outer := decode(raw)
	if outer == nil {
		return []Wrong{{"", record.CodeNotAnObject}}
	}
	var wrong []Wrong
	check := func(o object, prefix, name string, f func(json.RawMessage) string) {
		if o.has(name) {
			if code := f(o[name]); code != "" {
				wrong = append(wrong, Wrong{prefix + name, code})
			}
		}
	}
	for _, name := range outerText {
		check(outer, "/", name, textCode)
	}
	check(outer, "/", "key", integerCode)
	check(outer, "/", "timestamp", timeCode)
	check(outer, "/", "value", func(raw json.RawMessage) string {
		if raw[0] != '{' {
			return record.CodeNotAnObject
		}
		return ""
	})
	value := decode(outer["value"])
	for _, name := range valueText {
		check(value, "/value/", name, textCode)
	}
	for _, name := range valueIntegers {
		check(value, "/value/", name, integerCode)
	}
	check(value, "/value/", "deadline", timeCode)
	return wrong
}

func textCode(raw json.RawMessage) string {
	_, code := text(raw)
	return code
}

func integerCode(raw json.RawMessage) string {
	_, code := integer(raw)
	return code
}

func timeCode(raw json.RawMessage) string {
	_, code := milliseconds(raw)
	return code
}

// text returns the content of a string, or a number as written.
func text(raw json.RawMessage) (string, string) {
	var s string
	switch c := raw[0]; {
	case c == '"':
		if json.Unmarshal(raw, &s) != nil {
			panic("not JSON")
		}
		return s, ""
	case c == '-' || c >= '0' && c <= '9':
		return string(raw), ""
	}
	return "", record.CodeNotAString
}

var (
	decimalString = regexp.MustCompile(`^-?[0-9]{1,19}$`)
	numberParts   = regexp.MustCompile(`^(-?[0-9.]+)(?:[eE]([+-]?[0-9]+))?$`)
)

// integer returns the whole number in a number or a decimal string.
func integer(raw json.RawMessage) (int64, string) {
	s, code := text(raw)
	if code != "" || raw[0] == '"' && !decimalString.MatchString(s) {
		return 0, record.CodeNotAnInteger
	}
	// A power like 1e999999999 would fill the memory. The texts of the tests are short, so that beyond a thousand
	// nothing fits 64 bits.
	parts := numberParts.FindStringSubmatch(s)
	mantissa, _ := new(big.Rat).SetString(parts[1])
	exponent, err := strconv.Atoi("0")
	if parts[2] != "" {
		exponent, err = strconv.Atoi(parts[2])
	}
	switch {
	case mantissa.Sign() == 0:
		return 0, ""
	case strings.HasPrefix(parts[2], "-") && (err != nil || exponent < -len(s)-1000):
		return 0, record.CodeNotAnInteger
	case err != nil || exponent > len(s)+1000:
		return 0, record.CodeOutOfRange
	}
	r, _ := new(big.Rat).SetString(s)
	if !r.IsInt() {
		return 0, record.CodeNotAnInteger
	}
	if !r.Num().IsInt64() {
		return 0, record.CodeOutOfRange
	}
	return r.Num().Int64(), ""
}

var isoShape = regexp.MustCompile(`^(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)?)?$`)

// milliseconds returns the time in an integer or an ISO 8601 string.
func milliseconds(raw json.RawMessage) (int64, string) {
	n, code := integer(raw)
	if code != record.CodeNotAnInteger {
		return n, code
	}
	s, _ := text(raw)
	parts := isoShape.FindStringSubmatch(s)
	if raw[0] != '"' || parts == nil {
		return 0, record.CodeNotATime
	}
	at := func(i int) int {
		n, _ := strconv.Atoi(parts[i])
		return n
	}
	milli, _ := strconv.Atoi((parts[7] + "000")[:3])
	local := time.Date(at(1), time.Month(at(2)), at(3), at(4), at(5), at(6), milli*1e6, time.UTC)
	if local.Year() != at(1) || local.Month() != time.Month(at(2)) || local.Day() != at(3) ||
		at(4) > 23 || at(5) > 59 || at(6) > 59 || at(9) > 23 || at(10) > 59 {
		return 0, record.CodeNotATime
	}
	offset := time.Duration(at(9))*time.Hour + time.Duration(at(10))*time.Minute
	if parts[8] == "-" {
		offset = -offset
	}
	return local.Add(-offset).UnixMilli(), ""
}
