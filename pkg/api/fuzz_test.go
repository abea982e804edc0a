package api_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sluice/pkg/change"
	"sluice/pkg/expect"
)

// FuzzFieldPath names dataset fields by any two texts, escaped for a URL. A field is found under
// exactly its own name, or the name is invalid.
func FuzzFieldPath(f *testing.F) {
	for _, seed := range [][2]string{
		{"t", "f"}, {"sales/2026", "a+b%"}, {"..", "."}, {"%2F", "%"}, {"a b", "ä"}, {"*", ">"}, {"", "f"}, {"t", ""},
		{"\x00", "f"}, {"t", "\xff"}, {strings.Repeat("t", 256), "f"}, {"t", strings.Repeat("f", 257)}, {"a?b", "c#d"}, {":tableId", "{fieldId}"}, {"a;b", "c=d&e"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, table, field string) {
		d := newDoor(t, config())
		u := &url.URL{Path: fieldPath(table, field), RawPath: fieldPath(url.PathEscape(table), url.PathEscape(field))}
		r := httptest.NewRequest(http.MethodDelete, "/", nil)
		r.URL = u
		r.Header.Set("Authorization", "engine")
		resp := d.serveOne(r)
		switch {
		case table == "" || field == "":
			wantProblem(t, resp, 404, "no_such_route")
		case !nameable(table) || !nameable(field):
			wantProblem(t, resp, 400, "bad_target")
		default:
			wantOK(t, resp)
			want := change.Target{Table: table, Field: field}
			expect.Equal(t, "target", want, d.ledger.changes[0].Target)
		}
	})
}

func nameable(s string) bool {
	return len(s) <= 256 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// FuzzHeaders sets any values in the headers that are read. The answer is OK or a client error,
// never an internal one, and quotes nothing.
func FuzzHeaders(f *testing.F) {
	f.Add("application/json", "gzip", "*/*", "k1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("application/x-ndjson; charset=utf-8", "", "text/html;q=0, */*;q=0.1", `"k"`, "")
	f.Add(";", "zstd, gzip", ";q=", `"`, "00-")
	f.Add("a/b; c=\"", "\x00", ",,", "\xff", "x")
	d := newDoor(f, config())
	f.Fuzz(func(t *testing.T, contentType, encoding, accept, key, trace string) {
		r := request(http.MethodPost, "/flow/flowRecord/batch", `{"id":"1-1"}`)
		for name, value := range map[string]string{
			"Content-Type": contentType, "Content-Encoding": encoding, "Accept": accept, "Idempotency-Key": key, "Traceparent": trace,
		} {
			r.Header.Set(name, value)
		}
		resp := d.serveOne(r)
		if resp.StatusCode >= 500 {
			t.Errorf("got %d %s", resp.StatusCode, text(t, resp))
		}
	})
}
