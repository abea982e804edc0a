package console_test

import (
	"slices"
	"strings"
	"testing"

	"sluice/pkg/console"
)

func TestThePlaceThatWasRefusedIsMarked(t *testing.T) {
	for _, c := range []struct {
		name, body, reason, marked string
		places                     []string
	}{
		{"a pointer in the reason", `{"id":"1-1","value":{"retries":"many"}}`, "posted by Elasticsearch's protocol: #/value/retries must be an integer", `"retries": >>"many"<<`, []string{"/value/retries"}},
		{"a column in the reason", `{"id":"1-1","value":{"errorMessage":"poison"}}`, "Constraint `not_poison` is violated. Expression: (error_message != 'poison')", `"errorMessage": >>"poison"<<`, []string{"/value/errorMessage"}},
		{"found by checking it again", `{"id":"1-1","recordType":[1],"value":{}}`, "the record cannot be stored", ">>[\n    1\n  ]<<", []string{"/recordType"}},
		{"invalid JSON", `{"id":"1-1","value":}`, "the body is not valid JSON", `"value":>>}<<`, []string{"byte 20"}},
		{"cut off", `{"id":"1-1"`, "the body is not valid JSON", `{"id":"1-1>>"<<`, []string{"byte 10"}},
		{"as a whole", `{"id":"1-1","value":{}}`, "refused", `"id": "1-1"`, []string{"as a whole"}},
		{"an empty one", ``, "refused", ``, []string{"byte 0"}},
		{"no text", "\x00\x01secret", "refused", "00 01 73", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, places := console.Place([]byte(c.body), c.reason)
			if !strings.Contains(text, c.marked) {
				t.Errorf("shown as\n%s\nwant %s in it", text, c.marked)
			}
			if !slices.EqualFunc(places, c.places, strings.Contains) {
				t.Errorf("places %q, want %q", places, c.places)
			}
		})
	}
}

func FuzzPlace(f *testing.F) {
	f.Add([]byte(`{"value":{"a":[1,{"b":2}]}}`), "#/value/a/1/b some_column")
	f.Add([]byte(`[]`), "#/~0~1")
	f.Fuzz(func(t *testing.T, body []byte, reason string) {
		text, _ := console.Place(body, reason)
		if len(body) > 0 && text == "" {
			t.Errorf("nothing is shown of %q", body)
		}
	})
}
