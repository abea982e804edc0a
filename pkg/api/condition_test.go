package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
)

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

func TestAConditionalWriteThatComesTooLateIsRefused(t *testing.T) {
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
