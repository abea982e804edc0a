package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

const userPath = "/spm/login/current/user"

func fieldPath(table, field string) string { return "/ds/dataset/field/custom/" + table + "/" + field }

func (d *door) patch(body string, changes ...func(*http.Request)) *http.Response {
	return d.do(request(http.MethodPatch, userPath, body, changes...))
}

func (d *door) get(path string, changes ...func(*http.Request)) *http.Response {
	return d.do(request(http.MethodGet, path, "", changes...))
}

func (d *door) del(path string, changes ...func(*http.Request)) *http.Response {
	return d.do(request(http.MethodDelete, path, "", append(changes, without("Content-Type"))...))
}

func (d *door) put(path, body string, changes ...func(*http.Request)) *http.Response {
	return d.do(request(http.MethodPut, path, body, changes...))
}

func wantDocument(t testing.TB, resp *http.Response, want string) {
	t.Helper()
	body := text(t, resp)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %s %s, want 200 application/json", resp.StatusCode, resp.Header.Get("Content-Type"), body)
	}
	var g, w any
	fatal.If(t, json.Unmarshal([]byte(body), &g))
	fatal.If(t, json.Unmarshal([]byte(want), &w))
	expect.Equal(t, "document", w, g)
}

func TestTheCurrentUserIsPatchedAndReadBackMasked(t *testing.T) {
	d := newDoor(t, config())
	wantDocument(t, d.get(userPath), `{"id":"engine-a"}`)
	wantOK(t, d.patch(`{"name":"Ada","company":"Engines","password":"swordfish","password1":"swordfish","sk":"shark","grant":{"edition":"free","flow":{"flowCount":3}}}`))
	last := d.patch(`{"company":null,"grant":{"flow":{"tableCount":9007199254740993}}}`, header("Content-Type", "application/merge-patch+json"))
	wantOK(t, last)
	got := d.get(userPath)
	if etag := got.Header.Get("ETag"); etag != last.Header.Get("ETag") || len(etag) < 20 {
		t.Errorf("ETag: got %s, want that of the last change, %s", etag, last.Header.Get("ETag"))
	}
	wantDocument(t, got, `{"id":"engine-a","name":"Ada","password":"****","sk":"****","grant":{"edition":"free","flow":{"flowCount":3,"tableCount":9007199254740993}}}`)
	wantDocument(t, d.get(userPath, header("Authorization", "other")), `{"id":"engine-b"}`)
	published := fmt.Sprintf("%v %s", d.ledger.changes, d.log)
	for _, secret := range []string{"swordfish", "shark"} {
		expect.Not(t, strings.Contains(published, secret), "a secret left the api: %s", published)
	}
}

// TestWhatIsReadBeforeTheLaneIsBegunIsTheNewest: a read waits for the ingester, and never returns
// the state of an earlier incarnation.
func TestWhatIsReadBeforeTheLaneIsBegunIsTheNewest(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.entries[change.Target{User: "engine-a"}.Key()] = change.Entry{
		Target: change.Target{User: "engine-a"}, Place: change.Place{Incarnation: 0, Seq: 1 << 40}, Doc: []byte(`{"name":"Old"}`),
	}
	d.ledger.paused, d.ledger.begins = true, 3
	wantOK(t, d.patch(`{"name":"Ada"}`))
	wantDocument(t, d.get(userPath), `{"id":"engine-a","name":"Ada"}`)
}

func TestAPatchOfNothingPublishesNothing(t *testing.T) {
	d := newDoor(t, config())
	for _, body := range []string{`{}`, `{"password":"****","sk":""}`, `{"id":"engine-a"}`} {
		wantOK(t, d.patch(body))
	}
	wantOK(t, d.patch(`{"privileges":[1],"status":true,"grant":{}}`, header("Authorization", "plain")))
	expect.Equal(t, "published", []change.Kind{}, d.ledger.kinds())
	metric := `
# HELP sluice_api_change_warnings_total Warnings about accepted documents, by code: unknown features, members that only an admin may set.
# TYPE sluice_api_change_warnings_total counter
sluice_api_change_warnings_total{code="authority_ignored"} 3
sluice_api_change_warnings_total{code="unknown_feature"} 0
`
	expect.NoError(t, testutil.GatherAndCompare(d.reg, strings.NewReader(metric), "sluice_api_change_warnings_total"))
}

func TestDocumentsThatAreRefusedPublishNothing(t *testing.T) {
	field := fieldPath("t", "f")
	tests := []struct {
		name, method, path, body, kind string
		status                         int
		code                           string
		pointer                        string // of the first error, empty for none
	}{
		{"empty patch", "PATCH", userPath, "", "application/json", 400, "empty_body", ""},
		{"a patch that is not JSON", "PATCH", userPath, `{"name":`, "application/json", 400, "invalid_json", ""},
		{"a patch that is not UTF-8", "PATCH", userPath, "{\"name\":\"\xff\"}", "application/json", 400, "invalid_json", ""},
		{"a patch that is an array", "PATCH", userPath, `[]`, "application/json", 422, "invalid_document", "#"},
		{"a patch of a wrong type", "PATCH", userPath, `{"projects":[{"license":{"edition":"golden"}}]}`, "application/json", 422, "invalid_document", "#/projects/0/license/edition"},
		{"two passwords that differ", "PATCH", userPath, `{"password":"a1","password1":"b2"}`, "application/json", 422, "invalid_document", "#/password1"},
		{"a patch of another user", "PATCH", userPath, `{"id":"engine-b"}`, "application/json", 409, "id_mismatch", ""},
		{"a patch nested too deep", "PATCH", userPath, strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), "application/json", 422, "invalid_document", "#"},
		{"a patch too large", "PATCH", userPath, `{"name":"` + strings.Repeat("x", 1<<20) + `"}`, "application/json", 413, "body_too_large", ""},
		{"a patch as a form", "PATCH", userPath, `name=1`, "application/x-www-form-urlencoded", 415, "unsupported_media_type", ""},
		{"a field as a merge patch", "PUT", field, `{}`, "application/merge-patch+json", 415, "unsupported_media_type", ""},
		{"a field of a wrong type", "PUT", field, `{"size":1.5}`, "application/json", 422, "invalid_document", "#/size"},
		{"a field under another id", "PUT", field, `{"id":"g"}`, "application/json", 409, "id_mismatch", ""},
		{"a field of another table", "PUT", field, `{"tableId":"u"}`, "application/json", 409, "id_mismatch", ""},
		{"a field whose name is a control character", "PUT", fieldPath("t", "%07"), `{}`, "application/json", 400, "bad_target", ""},
		{"deleting a name of 257 bytes", "DELETE", fieldPath("t", strings.Repeat("f", 257)), "", "", 400, "bad_target", ""},
		{"reading a name that is not UTF-8", "GET", fieldPath("%ff", "f"), "", "", 400, "bad_target", ""},
		{"reading a field that is not there", "GET", field, "", "", 404, "no_such_field", ""},
		{"a field without a table", "DELETE", fieldPath("", "f"), "", "", 404, "no_such_route", ""},
		{"a field without an id", "DELETE", fieldPath("t", ""), "", "", 404, "no_such_route", ""},
		{"one segment too many", "DELETE", fieldPath("t", "f/g"), "", "", 404, "no_such_route", ""},
		{"one segment too few", "DELETE", "/ds/dataset/field/custom/t", "", "", 404, "no_such_route", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			p := wantProblem(t, d.do(request(tt.method, tt.path, tt.body, header("Content-Type", tt.kind))), tt.status, tt.code)
			if tt.pointer != "" && (len(p.Errors) == 0 || p.Errors[0].Pointer != tt.pointer) {
				t.Errorf("errors: got %v, want the first at %s", p.Errors, tt.pointer)
			}
			expect.Not(t, len(d.ledger.changes) != 0, "published %d changes, want none", len(d.ledger.changes))
		})
	}
}

func TestAFieldIsPutDeletedAndRevived(t *testing.T) {
	d := newDoor(t, config())
	path := fieldPath("sales%2F2026", "a+b%25")
	wantOK(t, d.put(path, `{"name":"Total","isMeasure":true,"style":{"w":1}}`))
	wantDocument(t, d.get(path), `{"id":"a+b%","tableId":"sales/2026","name":"Total","isMeasure":true,"style":{"w":1}}`)
	wantOK(t, d.del(path))
	wantOK(t, d.del(path))
	wantProblem(t, d.get(path), 404, "no_such_field")
	d.ledger.forget()
	wantOK(t, d.del(path))
	wantOK(t, d.put(path, `{"name":"Again"}`))
	wantDocument(t, d.get(path), `{"id":"a+b%","tableId":"sales/2026","name":"Again"}`)
	want := []change.Kind{change.FieldPut, change.FieldDeleted, change.FieldPut}
	expect.Equal(t, "published", want, d.ledger.kinds())
}

func TestManyDeletionsAtOnceLeaveOneTombstone(t *testing.T) {
	d := newDoor(t, config())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { wantOK(t, d.del(fieldPath("t", "f"))) })
	}
	wg.Wait()
	expect.Equal(t, "published", []change.Kind{change.FieldDeleted}, d.ledger.kinds())
}

func TestChangesWhileTheStreamIsDown(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.fault = fmt.Errorf("publish: %w", errDown)
	for _, resp := range []*http.Response{
		d.patch(`{"name":"Ada"}`), d.get(userPath), d.put(fieldPath("t", "f"), `{}`), d.del(fieldPath("t", "f")), d.get(fieldPath("t", "f")),
	} {
		wantProblem(t, resp, 503, "stream_unavailable")
		expect.Not(t, resp.Header.Get("Retry-After") == "", "no Retry-After")
	}
}

// TestASubjectHasSoManyFields: at the limit it may still change and delete its own.
func TestASubjectHasSoManyFields(t *testing.T) {
	cfg := config()
	cfg.Fields = 2
	d := newDoor(t, cfg)
	wantOK(t, d.put(fieldPath("t", "a"), `{"name":"1"}`))
	wantOK(t, d.del(fieldPath("t", "b"))) // a tombstone counts too
	wantProblem(t, d.put(fieldPath("t", "c"), `{"name":"1"}`), http.StatusForbidden, "too_many_fields")
	wantProblem(t, d.del(fieldPath("t", "c")), http.StatusForbidden, "too_many_fields")
	wantProblem(t, d.put(fieldPath("t", "c"), `{"name":"1"}`, header("If-None-Match", "*")), http.StatusForbidden, "too_many_fields")
	wantOK(t, d.put(fieldPath("t", "a"), `{"name":"2"}`))
	wantOK(t, d.put(fieldPath("t", "b"), `{"name":"2"}`))
	wantOK(t, d.del(fieldPath("t", "a")))
	other := header("Authorization", "other")
	wantOK(t, d.put(fieldPath("t", "c"), `{"name":"1"}`, other))
	wantProblem(t, d.del(fieldPath("t", "c")), http.StatusForbidden, "too_many_fields") // it would then be the subject's own
	wantOK(t, d.put(fieldPath("t", "b"), `{"name":"3"}`, other))                        // and this one is the other's
	wantOK(t, d.put(fieldPath("t", "d"), `{"name":"1"}`))
	wantOK(t, d.patch(`{"name":"Ada"}`))
}

func TestAFullStateTakesNothingButDeletions(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.put(fieldPath("t", "a"), `{"name":"1"}`))
	d.ledger.full = true
	for _, resp := range []*http.Response{d.put(fieldPath("t", "a"), `{"name":"2"}`), d.patch(`{"name":"Ada"}`)} {
		if wantProblem(t, resp, http.StatusTooManyRequests, "state_full"); resp.Header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After is %q", resp.Header.Get("Retry-After"))
		}
	}
	wantOK(t, d.del(fieldPath("t", "a")))
	d.ledger.full, d.ledger.unready = false, true
	wantProblem(t, d.put(fieldPath("t", "b"), `{"name":"1"}`), http.StatusServiceUnavailable, "state_behind")
	wantOK(t, d.patch(`{"name":"Ada"}`))
}
