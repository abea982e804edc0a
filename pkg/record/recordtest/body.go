package recordtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"sluice/pkg/record"
)

// Body is the expected result of parsing a posted body.
type Body struct {
	Records  []json.RawMessage
	Problems map[record.Problem]bool // without details
	Limits   map[string]bool         // codes of the limits it exceeds; any of them may be reported
	Invalid  bool                    // not JSON in UTF-8, or empty
}

// ParseBody splits a body into records and checks every one.
func ParseBody(body []byte, form record.Form, lim record.Limits) Body {
	documents, err := split(body)
	blank := len(bytes.TrimLeft(body, " \t\r\n")) == 0
	array := form == record.FormAuto && len(documents) > 0 && documents[0][0] == '['
	switch {
	case blank && form == record.FormNDJSON && bytes.Contains(body, []byte("\n")):
		return Body{}
	case blank, err != nil, !utf8.Valid(body), array && len(documents) > 1:
		return Body{Invalid: true}
	}
	b := Body{Problems: map[record.Problem]bool{}, Limits: map[string]bool{}}
	prefix := "#/%d"
	if array {
		b.Records = elements(documents[0])
	} else {
		for _, document := range documents {
			o := decode(document)
			_, hasValue := o["value"]
			_, hasType := o["valueType"]
			switch {
			case o != nil && len(o["records"]) > 0 && o["records"][0] == '[' && !hasValue && !hasType:
				if depth(document) > lim.Depth+2 {
					b.Limits[record.CodeTooDeep] = true
				}
				b.Records = append(b.Records, elements(o["records"])...)
				if len(documents) == 1 && form == record.FormAuto {
					prefix = "#/records/%d"
				}
			default:
				b.Records = append(b.Records, document)
				if len(documents) == 1 && form == record.FormAuto {
					prefix = "#"
				}
			}
		}
	}
	b.check(lim, prefix)
	return b
}

func (b *Body) check(lim record.Limits, prefix string) {
	if len(b.Records) > lim.Records {
		b.Limits[record.CodeTooManyRecords] = true
	}
	months := map[string]bool{}
	for i, raw := range b.Records {
		if len(raw) > lim.RecordBytes {
			b.Limits[record.CodeRecordTooLarge] = true
		}
		if depth(raw) > lim.Depth {
			b.Limits[record.CodeTooDeep] = true
		}
		at := prefix
		if prefix != "#" {
			at = fmt.Sprintf(prefix, i)
		}
		if lim.Shaped && foreign(raw) {
			b.Problems[record.Problem{Index: i, Pointer: at + "/valueType", Code: record.CodeMissing}] = true
		}
		for _, w := range Check(raw) {
			b.Problems[record.Problem{Index: i, Pointer: at + w.Pointer, Code: w.Code}] = true
		}
		o := decode(raw)
		if !o.has("timestamp") {
			continue
		}
		if ms, code := milliseconds(o["timestamp"]); code == "" && plausible(ms) {
			month := time.UnixMilli(ms).UTC().Format("2006-01")
			if !months[month] && len(months) == 24 {
				b.Problems[record.Problem{Index: i, Pointer: at + "/timestamp", Code: record.CodeTooManyMonths}] = true
			} else {
				months[month] = true
			}
		}
	}
}

// foreign reports whether an object has none of the members that identify a record.
func foreign(raw json.RawMessage) bool {
	o := decode(raw)
	for _, name := range []string{
		"id", "key", "recordType", "valueType", "intent", "partitionId", "position", "sourceRecordPosition",
		"recordVersion", "brokerVersion", "rejectionType", "rejectionReason", "operationReference", "value",
	} {
		if _, ok := o[name]; ok {
			return false
		}
	}
	return o != nil
}

// split returns concatenated JSON values.
func split(body []byte) ([]json.RawMessage, error) {
	var values []json.RawMessage
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		var raw json.RawMessage
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return values, nil
		case err != nil:
			return nil, err
		}
		if end := d.InputOffset(); raw[0] != '{' && end < int64(len(body)) && !strings.ContainsRune(" \t\r\n", rune(body[end])) {
			return nil, errors.New("only objects may be concatenated without white space")
		}
		values = append(values, raw)
	}
}

func elements(array json.RawMessage) []json.RawMessage {
	var raw []json.RawMessage
	if err := json.Unmarshal(array, &raw); err != nil {
		panic(err)
	}
	return raw
}

// depth returns the nesting of arrays and objects.
func depth(raw []byte) (deepest int) {
	now := 0
	for d := json.NewDecoder(bytes.NewReader(raw)); ; {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			now++
			deepest = max(deepest, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
	}
}
