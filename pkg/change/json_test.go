package change_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
)

// The examples of RFC 7396, appendix A and section 3, and what we add to them.
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
			if err != nil || string(got) != tc.want {
				t.Errorf("MergePatch = %s, %v; want %s", got, err, tc.want)
			}
		})
	}
}

func TestMergePatchRefusesWhatIsNotJSON(t *testing.T) {
	for _, bad := range []string{`{`, `{"a":1}}`, `{"a":01}`, `nul`, `{"a":1} {"b":2}`} {
		if got, err := change.MergePatch(json.RawMessage(bad), json.RawMessage(`{}`)); err == nil {
			t.Errorf("document %s: got %s, want an error", bad, got)
		}
		if got, err := change.MergePatch(nil, json.RawMessage(bad)); err == nil {
			t.Errorf("patch %s: got %s, want an error", bad, got)
		}
	}
}

// Patches of different members can come in either order.
func TestPatchesOfDifferentMembersBothSurvive(t *testing.T) {
	doc := json.RawMessage(`{"name":"n","grant":{"flow":{"flowCount":1,"tableCount":1},"edition":"free"}}`)
	a := json.RawMessage(`{"name":null,"grant":{"flow":{"flowCount":2}}}`)
	b := json.RawMessage(`{"company":"c","grant":{"flow":{"tableCount":3},"edition":null}}`)
	want := `{"company":"c","grant":{"flow":{"flowCount":2,"tableCount":3}}}`
	for _, order := range [][2]json.RawMessage{{a, b}, {b, a}} {
		if got := string(mustMerge(t, mustMerge(t, doc, order[0]), order[1])); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func mustMerge(t *testing.T, doc, patch json.RawMessage) json.RawMessage {
	t.Helper()
	got, err := change.MergePatch(doc, patch)
	if err != nil {
		t.Fatalf("MergePatch(%s, %s): %v", doc, patch, err)
	}
	return got
}

// FuzzMergePatch compares MergePatch with slowMerge, and checks that a patch
// applied twice does what it does once.
func FuzzMergePatch(f *testing.F) {
	for _, tc := range mergePatches {
		f.Add([]byte(tc.doc), []byte(tc.patch))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		// encoding/json, which both sides stand on, repairs bad UTF-8; the
		// doors refuse it before. A member of two values is one of them.
		if !utf8.Valid(doc) || !utf8.Valid(patch) {
			return
		}
		got, err := change.MergePatch(doc, patch)
		if valid := (len(doc) == 0 || json.Valid(doc)) && json.Valid(patch); valid != (err == nil) {
			t.Fatalf("valid is %v, MergePatch gives %v", valid, err)
		}
		if err != nil {
			return
		}
		want := slowMerge(t, doc, patch)
		if diff := cmp.Diff(canonical(t, want), canonical(t, got)); diff != "" {
			t.Fatalf("MergePatch(%s, %s) (-slow +fast):\n%s", doc, patch, diff)
		}
		if again := mustMerge(t, got, patch); !bytes.Equal(again, got) {
			t.Fatalf("patched twice: %s, once: %s", again, got)
		}
	})
}

// slowMerge follows RFC 7396 level by level over the texts themselves.
func slowMerge(t *testing.T, target, patch json.RawMessage) json.RawMessage {
	members, isObject := level(patch)
	if !isObject {
		return patch
	}
	result, isObject := level(target)
	if !isObject {
		result = map[string]json.RawMessage{}
	}
	for name, v := range members {
		if string(v) == "null" {
			delete(result, name)
			continue
		}
		result[name] = slowMerge(t, result[name], v)
	}
	text, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func level(text json.RawMessage) (map[string]json.RawMessage, bool) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return nil, false
	}
	var members map[string]json.RawMessage
	return members, json.Unmarshal(text, &members) == nil
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
