package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/change"
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

// wantDocument fails unless the answer is this JSON document.
func wantDocument(t testing.TB, resp *http.Response, want string) {
	t.Helper()
	body := text(t, resp)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %s %s, want 200 application/json", resp.StatusCode, resp.Header.Get("Content-Type"), body)
	}
	var g, w any
	if err := json.Unmarshal([]byte(body), &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestTheCurrentUserIsPatchedAndReadBackMasked(t *testing.T) {
	d := newDoor(t, config())
	wantDocument(t, d.get(userPath), `{"id":"engine-a"}`)
	wantOK(t, d.patch(`{"name":"Ada","company":"Engines","password":"swordfish","password1":"swordfish","sk":"shark","grant":{"edition":"free","flow":{"flowCount":3}}}`))
	wantOK(t, d.patch(`{"company":null,"grant":{"flow":{"tableCount":9007199254740993}}}`, header("Content-Type", "application/merge-patch+json")))
	got := d.get(userPath)
	if etag := got.Header.Get("ETag"); etag != `"6"` {
		t.Errorf("ETag: got %s, want \"6\"", etag)
	}
	wantDocument(t, got, `{"id":"engine-a","name":"Ada","password":"****","sk":"****","grant":{"edition":"free","flow":{"flowCount":3,"tableCount":9007199254740993}}}`)
	wantDocument(t, d.get(userPath, header("Authorization", "other")), `{"id":"engine-b"}`)
	published := fmt.Sprintf("%v %s", d.ledger.changes, d.log)
	for _, secret := range []string{"swordfish", "shark"} {
		if strings.Contains(published, secret) {
			t.Errorf("a secret left the api: %s", published)
		}
	}
}

func TestAPatchOfNothingPublishesNothing(t *testing.T) {
	d := newDoor(t, config())
	for _, body := range []string{`{}`, `{"password":"****","sk":""}`, `{"id":"engine-a"}`} {
		wantOK(t, d.patch(body))
	}
	wantOK(t, d.patch(`{"privileges":[1],"status":true,"grant":{}}`, header("Authorization", "plain")))
	if diff := cmp.Diff([]change.Kind{}, d.ledger.kinds()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	metric := `
# HELP sluice_api_change_warnings_total Things noticed in documents that were accepted, by code: unknown features, members only an admin may set.
# TYPE sluice_api_change_warnings_total counter
sluice_api_change_warnings_total{code="authority_ignored"} 3
sluice_api_change_warnings_total{code="unknown_feature"} 0
`
	if err := testutil.GatherAndCompare(d.reg, strings.NewReader(metric), "sluice_api_change_warnings_total"); err != nil {
		t.Error(err)
	}
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
			if len(d.ledger.changes) != 0 {
				t.Errorf("published %d changes, want none", len(d.ledger.changes))
			}
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
	if diff := cmp.Diff(want, d.ledger.kinds()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestDeletingAFieldNobodyKnowsIsOK(t *testing.T) {
	d := newDoor(t, config())
	for range 3 {
		wantOK(t, d.del(fieldPath("t", "f")))
	}
	if diff := cmp.Diff([]change.Kind{change.FieldDeleted}, d.ledger.kinds()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestManyDeletionsAtOnceLeaveOneTombstone(t *testing.T) {
	d := newDoor(t, config())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { wantOK(t, d.del(fieldPath("t", "f"))) })
	}
	wg.Wait()
	if diff := cmp.Diff([]change.Kind{change.FieldDeleted}, d.ledger.kinds()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestConditionsAreHeld(t *testing.T) {
	field := fieldPath("t", "f")
	tests := []struct {
		name, method, path string
		header, value      string
		status             int // of the answer
	}{
		{"patch of the version there is", "PATCH", userPath, "If-Match", `"3"`, 200},
		{"patch of one of several versions", "PATCH", userPath, "If-Match", `"1", "3"`, 200},
		{"patch of whatever is there", "PATCH", userPath, "If-Match", `*`, 200},
		{"patch of an older version", "PATCH", userPath, "If-Match", `"2"`, 412},
		{"patch of a weak version", "PATCH", userPath, "If-Match", `W/"3"`, 412},
		{"put over the version there is", "PUT", field, "If-Match", `"6"`, 200},
		{"put over an older version", "PUT", field, "If-Match", `"3"`, 412},
		{"put only when there is none", "PUT", field, "If-None-Match", `*`, 412},
		{"put where there is none", "PUT", fieldPath("t", "new"), "If-None-Match", `*`, 200},
		{"put over what is not there", "PUT", fieldPath("t", "new"), "If-Match", `*`, 412},
		{"delete the version there is", "DELETE", field, "If-Match", `"6"`, 200},
		{"delete an older version", "DELETE", field, "If-Match", `"5"`, 412},
		{"read the version that is known", "GET", field, "If-None-Match", `W/"6"`, 304},
		{"read another version", "GET", field, "If-None-Match", `"5"`, 200},
		{"read the user that is known", "GET", userPath, "If-None-Match", `"3"`, 304},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			wantOK(t, d.patch(`{"name":"Ada"}`))
			wantOK(t, d.put(field, `{"name":"Total"}`))
			resp := d.do(request(tt.method, tt.path, `{"remarks":"x"}`, header(tt.header, tt.value)))
			if tt.status == 412 {
				wantProblem(t, resp, 412, "condition_failed")
			} else if resp.StatusCode != tt.status {
				t.Errorf("got %d %s, want %d", resp.StatusCode, text(t, resp), tt.status)
			}
			if published := len(d.ledger.changes); tt.method != "GET" && (published == 3) != (tt.status == 200) {
				t.Errorf("published %d changes and answered %d", published, tt.status)
			}
			if etag := resp.Header.Get("ETag"); tt.status == 200 && tt.method != "DELETE" && etag == "" {
				t.Error("no ETag in the answer")
			}
		})
	}
}

func TestAConditionalWriteThatSomebodyGetsAheadOfIsRefused(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.patch(`{"name":"Ada"}`))
	d.ledger.before = func() { wantOK(t, d.patch(`{"name":"Grace"}`)) }
	wantProblem(t, d.patch(`{"name":"Lin"}`, header("If-Match", `"3"`)), 412, "condition_failed")
	wantDocument(t, d.get(userPath), `{"id":"engine-a","name":"Grace"}`)
}

func TestADeletionThatAPutGetsAheadOfStillDeletes(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.before = func() { wantOK(t, d.put(fieldPath("t", "f"), `{}`)) }
	wantOK(t, d.del(fieldPath("t", "f")))
	wantProblem(t, d.get(fieldPath("t", "f")), 404, "no_such_field")
}

func TestAConditionOnAPurgedStreamIsHeldAgainstTheState(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.patch(`{"name":"Ada"}`))
	d.ledger.forget()
	wantOK(t, d.patch(`{"name":"Grace"}`, header("If-Match", `"3"`)))
}

func TestWhileChangesAreNotApplied(t *testing.T) {
	cfg := config()
	cfg.StateWait = 10 * time.Millisecond
	d := newDoor(t, cfg)
	d.ledger.paused = true
	field := fieldPath("t", "f")
	wantOK(t, d.patch(`{"name":"Ada"}`))
	wantOK(t, d.put(field, `{}`))
	for name, resp := range map[string]*http.Response{
		"reading":                d.get(userPath),
		"a conditional patch":    d.patch(`{"name":"Lin"}`, header("If-Match", "*")),
		"a conditional put":      d.put(field, `{}`, header("If-Match", `"6"`)),
		"a conditional deletion": d.del(field, header("If-Match", `"6"`)),
	} {
		if p := wantProblem(t, resp, 503, "state_behind"); resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: no Retry-After with %v", name, p)
		}
	}
	wantOK(t, d.del(field))
	wantOK(t, d.patch(`{"name":"Grace"}`))
	want := []change.Kind{change.UserPatched, change.FieldPut, change.FieldDeleted, change.UserPatched}
	if diff := cmp.Diff(want, d.ledger.kinds()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

func TestAReaderWaitsForTheChangeThatWasAccepted(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.paused = true
	wantOK(t, d.patch(`{"name":"Ada"}`))
	go func() {
		time.Sleep(30 * time.Millisecond)
		d.ledger.mu.Lock()
		defer d.ledger.mu.Unlock()
		if err := d.ledger.apply(d.ledger.changes[0], 3); err != nil {
			t.Error(err)
		}
	}()
	wantDocument(t, d.get(userPath), `{"id":"engine-a","name":"Ada"}`)
}

func TestChangesWhileTheStreamIsDown(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.fault = fmt.Errorf("publish: %w", errDown)
	for _, resp := range []*http.Response{
		d.patch(`{"name":"Ada"}`), d.get(userPath), d.put(fieldPath("t", "f"), `{}`), d.del(fieldPath("t", "f")), d.get(fieldPath("t", "f")),
	} {
		wantProblem(t, resp, 503, "stream_unavailable")
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
}

func TestAFloodOfPasswordsIsRefusedWhileRecordsGoOn(t *testing.T) {
	d := newDoor(t, config())
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 24 {
		wg.Go(func() {
			for ctx.Err() == nil {
				resp := d.patch(`{"password":"swordfish"}`)
				if resp.StatusCode != http.StatusOK {
					if p := text(t, resp); !strings.Contains(p, "passwords_busy") && !strings.Contains(p, "overloaded") {
						t.Errorf("got %d %s", resp.StatusCode, p)
					}
				}
			}
		})
	}
	slowest := time.Duration(0)
	for i := range 200 {
		start := time.Now()
		wantOK(t, d.post(fmt.Sprintf(`{"id":"1-%d"}`, i)))
		slowest = max(slowest, time.Since(start))
	}
	cancel()
	wg.Wait()
	if slowest > time.Second {
		t.Errorf("the slowest post took %s beside the flood, want less than 1s", slowest)
	}
}
