package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

func TestARepeatIsAnsweredOKAndStoresNothingNew(t *testing.T) {
	key := func(k string) func(*http.Request) { return header("Idempotency-Key", k) }
	tests := []struct {
		name     string
		body     string
		first    []func(*http.Request)
		second   []func(*http.Request)
		again    string // second body, if different
		replayed bool
	}{
		{"the same key", `{"key":1}`, []func(*http.Request){key("k1")}, []func(*http.Request){key("k1")}, "", true},
		{"the same key, once in quotes", `{"key":1}`, []func(*http.Request){key("k1")}, []func(*http.Request){key(`"k1"`)}, "", true},
		{"another key", `{"key":1}`, []func(*http.Request){key("k1")}, []func(*http.Request){key("k2")}, "", false},
		{"the same key of another subject", `{"key":1}`, []func(*http.Request){key("k1")}, []func(*http.Request){key("k1"), header("Authorization", "other")}, "", false},
		{"the same key of the same subject at another source", `{"key":1}`, []func(*http.Request){key("k1")}, []func(*http.Request){key("k1"), header("Authorization", "twin")}, "", false},
		{"no key, all records have ids, of another source", `{"id":"1-1"}`, nil, []func(*http.Request){header("Authorization", "twin")}, "", false},
		{"no key, all records have ids", `[{"id":"1-1"},{"id":"1-2"}]`, nil, nil, "", true},
		{"no key, all records have ids, sent by another subject", `{"id":"1-1"}`, nil, []func(*http.Request){header("Authorization", "other")}, "", false},
		{"no key, a record has no id", `[{"id":"1-1"},{"key":2}]`, nil, nil, "", false},
		{"no key, other records", `{"id":"1-1"}`, nil, nil, `{"id":"1-2"}`, false},
		{"a key the first time only", `{"id":"1-1"}`, []func(*http.Request){key("k1")}, nil, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			first := d.post(tt.body, tt.first...)
			wantOK(t, first)
			once := len(d.stream.stored())
			again := tt.again
			if again == "" {
				again = tt.body
			}
			second := d.post(again, tt.second...)
			wantOK(t, second)
			expect.Equal(t, "first answer: Idempotent-Replayed", "", first.Header.Get("Idempotent-Replayed"))
			expect.Equal(t, "second answer: replayed", tt.replayed, second.Header.Get("Idempotent-Replayed") == "true")
			if stored := len(d.stream.stored()); (stored == once) != tt.replayed {
				t.Errorf("stored %d records, %d after the first", stored, once)
			}
			accepted, repeats := d.metric(t, "sluice_api_records_total", ""), d.metric(t, "sluice_api_records_replayed_total", "")
			if int(accepted) != len(d.stream.stored()) || (repeats > 0) != tt.replayed {
				t.Errorf("counted %g records and %g repeats, stored %d", accepted, repeats, len(d.stream.stored()))
			}
		})
	}
}

func TestAKeyUsedForAnotherBodyIsRefused(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.post(`{"id":"1-1"}`, header("Idempotency-Key", "k1")))
	wantProblem(t, d.post(`{"id":"1-2"}`, header("Idempotency-Key", "k1")), 422, "idempotency_key_reused")
	expect.Equal(t, "stored", []string{`{"id":"1-1"}`}, d.stream.stored())
}

func TestInvalidKeys(t *testing.T) {
	twice := func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"a", "b"} }
	for name, change := range map[string]func(*http.Request){
		"empty": header("Idempotency-Key", ""), "empty quotes": header("Idempotency-Key", `""`),
		"too long": header("Idempotency-Key", strings.Repeat("k", 256)), "not ASCII": header("Idempotency-Key", "schlüssel"),
		"a control character": header("Idempotency-Key", "a\tb"), "sent twice": twice,
	} {
		t.Run(name, func(t *testing.T) {
			wantProblem(t, newDoor(t, config()).post(`{"id":"1-1"}`, change), 400, "bad_idempotency_key")
		})
	}
	d := newDoor(t, config())
	wantOK(t, d.post(`{"id":"1-1"}`, header("Idempotency-Key", strings.Repeat("k", 255))))
}

func TestAFailedPublishIsSettledBySendingItAgain(t *testing.T) {
	lost := fmt.Errorf("publish: %w", &flow.RetryError{Err: flow.ErrUnavailable})
	fault := func(context.Context) error { return lost }
	tests := []struct {
		name     string
		break_   func(*stream)
		replayed bool
	}{
		{"failed, not stored", func(s *stream) { s.before = fault }, false},
		{"failed, but stored", func(s *stream) { s.after = fault }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			tt.break_(d.stream)
			body := `[{"id":"1-1"},{"id":"1-2"}]`
			wantProblem(t, d.post(body), 503, "stream_unavailable")
			d.stream.before, d.stream.after = nil, nil
			resp := d.post(body)
			wantOK(t, resp)
			expect.Equal(t, "replayed", tt.replayed, resp.Header.Get("Idempotent-Replayed") == "true")
			expect.Equal(t, "stored", []string{`{"id":"1-1"}`, `{"id":"1-2"}`}, d.stream.stored())
		})
	}
}

func TestPublishedEntriesHaveTheirOrigin(t *testing.T) {
	d := newDoor(t, config())
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	wantOK(t, d.post(`{"id":"1-1"}`, header("Traceparent", parent), header("Idempotency-Key", "k1")))
	wantOK(t, d.post(`{"id":"1-2"}`, header("Traceparent", strings.ToUpper(parent))))
	got := d.stream.subs
	for i := range got {
		if len(got[i].ID) != 32 || len(got[i].Hash) != 32 || got[i].Received.IsZero() {
			t.Errorf("submission %d: id %q, hash %q, received %s", i, got[i].ID, got[i].Hash, got[i].Received)
		}
		expect.Not(t, strings.Contains(got[i].ID, "k1"), "the id shows the key: %s", got[i].ID)
	}
	expect.Not(t, got[0].Subject != "engine-a" || got[0].TraceParent != parent || got[1].TraceParent != "", "got %+v", got)
}
