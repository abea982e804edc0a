package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/record"
)

func TestAPostIsStoredAndAnsweredWithOK(t *testing.T) {
	tests := []struct {
		name string
		body string
		kind string // content type
		want []string
	}{
		{"one record", `{"id":"1-1","key":1}`, "application/json", []string{`{"id":"1-1","key":1}`}},
		{"an array", `[{"id":"1-1"},{"id":"1-2"}]`, "application/json", []string{`{"id":"1-1"}`, `{"id":"1-2"}`}},
		{"an object with records", `{"records":[{"id":"1-1"}]}`, "application/json", []string{`{"id":"1-1"}`}},
		{"objects one after the other", "{\"id\":\"1-1\"}\n{\"id\":\"1-2\"}", "application/json", []string{`{"id":"1-1"}`, `{"id":"1-2"}`}},
		{"NDJSON", "{\"id\":\"1-1\"}\n{\"id\":\"1-2\"}\n", "application/x-ndjson", []string{`{"id":"1-1"}`, `{"id":"1-2"}`}},
		{"explicit UTF-8", `{"id":"1-1"}`, `Application/JSON; charset="UTF-8"`, []string{`{"id":"1-1"}`}},
		{"no content type", `{"id":"1-1"}`, "", []string{`{"id":"1-1"}`}},
		{"an empty array", `[]`, "application/json", []string{}},
		{"an empty list of records", `{"records":[]}`, "application/json", []string{}},
		{"NDJSON of empty lines", "\n\n", "application/x-ndjson", []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			change := header("Content-Type", tt.kind)
			if tt.kind == "" {
				change = without("Content-Type")
			}
			wantOK(t, d.post(tt.body, change))
			expect.Equal(t, "stored", tt.want, d.stream.stored())
			if len(tt.want) == 0 && len(d.stream.subs) != 0 {
				t.Errorf("published %d submissions, want none", len(d.stream.subs))
			}
		})
	}
}

func TestBodiesThatAreRefusedStoreNothing(t *testing.T) {
	tests := []struct {
		name   string
		body   string
		kind   string
		status int
		code   string
	}{
		{"empty body", "", "application/json", 400, "empty_body"},
		{"only spaces", " \n\t", "application/json", 400, "empty_body"},
		{"not JSON", `{"id":`, "application/json", 400, "invalid_json"},
		{"a record that is a number", `[{"id":"1-1"},7]`, "application/json", 422, "invalid_records"},
		{"invalid UTF-8", "{\"id\":\"\xff\"}", "application/json", 400, "invalid_utf8"},
		{"a wrong type", `[{"id":"1-1"},{"key":true}]`, "application/json", 422, "invalid_records"},
		{"a form", "id=1", "application/x-www-form-urlencoded", 415, "unsupported_media_type"},
		{"another charset", `{"id":"1-1"}`, "application/json; charset=latin1", 415, "unsupported_media_type"},
		{"a malformed content type", `{"id":"1-1"}`, ";", 415, "unsupported_media_type"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			wantProblem(t, d.post(tt.body, header("Content-Type", tt.kind)), tt.status, tt.code)
			if len(d.stream.subs) != 0 {
				t.Errorf("published %d submissions, want none", len(d.stream.subs))
			}
		})
	}
}

func TestTheTokenDecides(t *testing.T) {
	tests := []struct {
		name      string
		change    func(*http.Request)
		status    int
		code      string
		challenge string
	}{
		{"none", without("Authorization"), 401, "token_missing", `Bearer realm="sluice"`},
		{"unknown", header("Authorization", "Bearer swordfish"), 401, "token_invalid", `Bearer realm="sluice", error="invalid_token"`},
		{"without the scope", header("Authorization", "Bearer reader"), 403, "scope_missing", `Bearer realm="sluice", error="insufficient_scope", scope="records:write"`},
		{"that cannot be checked", header("Authorization", "Bearer unverified"), 503, "token_unverified", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := newDoor(t, config()).post(`{"id":"1-1"}`, tt.change)
			wantProblem(t, resp, tt.status, tt.code)
			if got := resp.Header.Get("WWW-Authenticate"); got != tt.challenge {
				t.Errorf("WWW-Authenticate: got %q, want %q", got, tt.challenge)
			}
		})
	}
}

func TestARequestIsCutForTheLanesOfItsSource(t *testing.T) {
	d := newDoor(t, config())
	d.stream.lanes = 2
	record := func(partition int) string {
		return fmt.Sprintf(`{"partitionId":%d,"position":1,"timestamp":1700000000000}`, partition)
	}
	wantOK(t, d.post("["+record(1)+","+record(2)+","+record(3)+"]"))
	expect.Equal(t, "stored", canonical([]string{record(2), record(1), record(3)}), canonical(d.stream.stored()))
}

// TestInvalidRecordsArePointedAt: package record tests the values themselves.
func TestInvalidRecordsArePointedAt(t *testing.T) {
	d := newDoor(t, config())
	p := wantProblem(t, d.post("{\"key\":false}\n{\"id\":\"1-1\"}\n{\"intent\":[],\"timestamp\":\"swordfish\",\"value\":7}"), 422, "invalid_records")
	want := []record.Problem{
		{Index: 0, Pointer: "#/0/key", Code: "not_an_integer"},
		{Index: 2, Pointer: "#/2/intent", Code: "not_a_string"},
		{Index: 2, Pointer: "#/2/timestamp", Code: "not_a_time"},
		{Index: 2, Pointer: "#/2/value", Code: "not_an_object"},
	}
	for i, e := range p.Errors {
		if e.Detail == "" || strings.Contains(e.Detail, "swordfish") {
			t.Errorf("detail %q is empty or quotes a value", e.Detail)
		}
		p.Errors[i].Detail = ""
	}
	if diff := cmp.Diff(want, p.Errors); diff != "" || len(d.stream.subs) != 0 {
		t.Errorf("published %d, errors (-want +got):\n%s", len(d.stream.subs), diff)
	}
	p = wantProblem(t, d.post("["+strings.Repeat(`{"key":true},`, 249)+`{"key":true}]`), 422, "invalid_records")
	if len(p.Errors) != 100 || p.Total != 250 {
		t.Errorf("got %d errors of %d, want 100 of 250", len(p.Errors), p.Total)
	}
}

// TestARequestIsOfAtMost24Months: each month is a separate insert.
func TestARequestIsOfAtMost24Months(t *testing.T) {
	var list []string
	for month := range 1200 {
		at := time.Date(2000, time.Month(1+month), 15, 0, 0, 0, 0, time.UTC)
		list = append(list, fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d}`, month+1, at.UnixMilli()))
	}
	d := newDoor(t, config())
	p := wantProblem(t, d.post("["+strings.Join(list, ",")+"]"), 422, "invalid_records")
	if len(p.Errors) != 100 || p.Total != 1200-24 || len(d.stream.subs) != 0 {
		t.Errorf("got %d errors of %d, and published %d", len(p.Errors), p.Total, len(d.stream.subs))
	}
	if e := p.Errors[0]; e.Index != 24 || e.Pointer != "#/24/timestamp" || e.Code != "too_many_months" {
		t.Errorf("the first error is %+v", e)
	}
	for from := 0; from < len(list); from += 24 { // as the client has to split it
		wantOK(t, d.post("["+strings.Join(list[from:from+24], ",")+"]"))
	}
	if got := len(d.stream.stored()); got != len(list) {
		t.Errorf("%d are stored, want %d", got, len(list))
	}
	// An exporter would resend the whole bulk forever.
	took(t, d.exports(http.MethodPost, "/_bulk", bulkOf(list[:26]...)))
	if len(d.dead.all) != 2 || d.dead.all[0].Code != "too_many_months" || len(d.stream.stored()) != len(list)+24 {
		t.Errorf("of a bulk %d are dead-lettered and %d stored: %+v", len(d.dead.all), len(d.stream.stored())-len(list), d.dead.all)
	}
}
