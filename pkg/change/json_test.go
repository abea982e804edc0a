package change_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"sluice/pkg/change"
	"sluice/pkg/expect"
)

// The examples of RFC 7396, appendix A and section 3, and further cases.
var mergePatches = []struct{ name, doc, patch, want string }{
	{"A1 replaces", `{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
	{"A2 adds", `{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
	{"A3 removes", `{"a":"b"}`, `{"a":null}`, `{}`},
	{"A4 removes one", `{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
	{"A5 array by string", `{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
	{"A6 string by array", `{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
	{"A7 within", `{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
	{"A8 array of objects whole", `{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
	{"A9 array", `["a","b"]`, `["c","d"]`, `["c","d"]`},
	{"A10 object by array", `{"a":"b"}`, `["c"]`, `["c"]`},
	{"A11 by null", `{"a":"foo"}`, `null`, `null`},
	{"A12 by string", `{"a":"foo"}`, `"bar"`, `"bar"`},
	{"A13 null stays", `{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
	{"A14 array by object", `[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
	{"A15 nothing to remove from", `{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	{
		"section 3",
		`{"title":"Goodbye!","author":{"givenName":"John","familyName":"Doe"},"tags":["example","sample"],"content":"This will be unchanged"}`,
		`{"title":"Hello!","phoneNumber":"+01-123-456-7890","author":{"familyName":null},"tags":["example"]}`,
		`{"author":{"givenName":"John"},"content":"This will be unchanged","phoneNumber":"+01-123-456-7890","tags":["example"],"title":"Hello!"}`,
	},
	{"numbers keep their text", `{"a":9007199254740993,"b":1.0}`, `{"c":1e400,"d":-0,"e":12345678901234567890.10}`,
		`{"a":9007199254740993,"b":1.0,"c":1e400,"d":-0,"e":12345678901234567890.10}`},
	{"text is not escaped for HTML", `{}`, `{"a":"<b>&"}`, `{"a":"<b>&"}`},
	{"the last of two members counts", `{"a":1,"a":{"x":1}}`, `{"a":{"y":1},"a":{"z":2}}`, `{"a":{"x":1,"z":2}}`},
	{"no document", ``, `{"a":{"b":null,"c":1}}`, `{"a":{"c":1}}`},
	{"null within an array stays", `{}`, `{"a":[null,{"b":null}]}`, `{"a":[null,{"b":null}]}`},
}

func TestMergePatch(t *testing.T) {
	for _, tc := range mergePatches {
		t.Run(tc.name, func(t *testing.T) {
			got, err := change.MergePatch(json.RawMessage(tc.doc), json.RawMessage(tc.patch))
			expect.Not(t, err != nil || string(got) != tc.want, "MergePatch = %s, %v; want %s", got, err, tc.want)
		})
	}
}

func canonical(t *testing.T, text []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
