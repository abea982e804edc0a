package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/pkg/change"
	"sluice/pkg/expect"
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
		{"put over a missing field", "PUT", fieldPath("t", "new"), "If-Match", `*`, 412},
		{"delete the version there is", "DELETE", field, "If-Match", `"6"`, 200},
		{"delete an older version", "DELETE", field, "If-Match", `"5"`, 412},
		{"read the known version", "GET", field, "If-None-Match", `W/"6"`, 304},
		{"read another version", "GET", field, "If-None-Match", `"5"`, 200},
		{"read the user that is known", "GET", userPath, "If-None-Match", `"3"`, 304},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			patched, put := d.patch(`{"name":"Ada"}`), d.put(field, `{"name":"Total"}`)
			wantOK(t, patched)
			wantOK(t, put)
			value := strings.NewReplacer(`"3"`, patched.Header.Get("ETag"), `"6"`, put.Header.Get("ETag")).Replace(tt.value)
			resp := d.do(request(tt.method, tt.path, `{"remarks":"x"}`, header(tt.header, value)))
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
	etag := d.patch(`{"name":"Ada"}`).Header.Get("ETag")
	d.ledger.before = func() { wantOK(t, d.patch(`{"name":"Grace"}`)) }
	wantProblem(t, d.patch(`{"name":"Lin"}`, header("If-Match", etag)), 412, "condition_failed")
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
	etag := d.patch(`{"name":"Ada"}`).Header.Get("ETag")
	d.ledger.forget()
	wantOK(t, d.patch(`{"name":"Grace"}`, header("If-Match", etag)))
}

// TestAnEntityTagDoesNotOutliveItsState: NATS is restored, and another change gets the sequence in
// the tag.
func TestAnEntityTagDoesNotOutliveItsState(t *testing.T) {
	field := fieldPath("t", "f")
	for name, write := range map[string]func(d *door, body string, changes ...func(*http.Request)) *http.Response{
		"a user": func(d *door, body string, changes ...func(*http.Request)) *http.Response {
			return d.patch(body, changes...)
		},
		"a field": func(d *door, body string, changes ...func(*http.Request)) *http.Response {
			return d.put(field, body, changes...)
		},
	} {
		for _, restored := range []uint64{1, 2} { // the lane's incarnation then
			t.Run(fmt.Sprint(name, " ", restored), func(t *testing.T) {
				d := newDoor(t, config())
				wantOK(t, write(d, `{"name":"Ada"}`))
				restore := d.ledger.backup()
				etag := write(d, `{"name":"Grace"}`).Header.Get("ETag")
				wantOK(t, write(d, `{"name":"Lin"}`, header("If-Match", etag)))
				restore(restored)
				wantOK(t, write(d, `{"name":"Mary"}`))
				wantProblem(t, write(d, `{"name":"Joan"}`, header("If-Match", etag)), 412, "condition_failed")
				if resp := d.get(map[string]string{"a user": userPath, "a field": field}[name], header("If-None-Match", etag)); resp.StatusCode != http.StatusOK {
					t.Errorf("read with the tag: got %d, want 200", resp.StatusCode)
				}
			})
		}
	}
}

// TestAConditionHoldsWhenItsChangeIsApplied: NATS is restored between reading the state and the
// publish, and another change has the expected sequence.
func TestAConditionHoldsWhenItsChangeIsApplied(t *testing.T) {
	field := fieldPath("t", "f")
	for name, condition := range map[string]func(etag string) func(*http.Request){
		"If-Match":               func(etag string) func(*http.Request) { return header("If-Match", etag) },
		"If-Match: *":            func(string) func(*http.Request) { return header("If-Match", "*") },
		"If-None-Match: another": func(string) func(*http.Request) { return header("If-None-Match", `"another"`) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, config())
			wantOK(t, d.put(field, `{"name":"Ada"}`))
			restore := d.ledger.backup()
			etag := d.put(field, `{"name":"Grace"}`).Header.Get("ETag")
			d.ledger.before = func() {
				restore(2)
				wantOK(t, d.put(field, `{"name":"Mary"}`))
			}
			wantProblem(t, d.put(field, `{"name":"Lin"}`, condition(etag)), 412, "condition_failed")
			expect.Equal(t, "changes are in the lane", 3, len(d.ledger.changes))
			now := d.get(field)
			wantDocument(t, now, `{"id":"f","name":"Mary","tableId":"t"}`)
			wantOK(t, d.put(field, `{"name":"Lin"}`, header("If-Match", now.Header.Get("ETag"))))
			wantDocument(t, d.get(field), `{"id":"f","name":"Lin","tableId":"t"}`)
		})
	}
	t.Run("of a field that is not there any more", func(t *testing.T) {
		d := newDoor(t, config())
		restore := d.ledger.backup()
		wantOK(t, d.put(field, `{"name":"Ada"}`))
		d.ledger.before = func() {
			restore(2)
			wantOK(t, d.put(field, `{"name":"Mary"}`))
			d.ledger.entries = map[string]change.Entry{} // the state goes, and its tombstone too
		}
		wantProblem(t, d.put(field, `{"name":"Lin"}`, header("If-Match", "*")), 412, "condition_failed")
		wantProblem(t, d.get(field), 404, "no_such_field")
	})
}

// TestAConditionalWriteIsAnsweredOnceItIsApplied: the outcome is unknown until then.
func TestAConditionalWriteIsAnsweredOnceItIsApplied(t *testing.T) {
	cfg := config()
	cfg.StateWait = 50 * time.Millisecond
	d := newDoor(t, cfg)
	etag := d.patch(`{"name":"Ada"}`).Header.Get("ETag")
	d.ledger.before = func() { d.ledger.paused = true }
	wantProblem(t, d.patch(`{"name":"Grace"}`, header("If-Match", etag)), 503, "state_behind")
	d.ledger.catchUp(t)
	wantDocument(t, d.get(userPath), `{"id":"engine-a","name":"Grace"}`)
	etag = d.get(userPath).Header.Get("ETag")
	d.ledger.before = func() {
		d.ledger.paused = true
		go func() {
			time.Sleep(10 * time.Millisecond)
			d.ledger.catchUp(t)
			d.ledger.mu.Lock()
			defer d.ledger.mu.Unlock()
			later, _, err := change.NewUserPatch(t.Context(), "engine-a", false, []byte(`{"name":"Joan"}`), &change.Secrets{Concurrency: 1})
			if err != nil {
				t.Error(err)
				return
			}
			d.ledger.seq += 3
			if err := d.ledger.apply(*later, d.ledger.seq); err != nil { // directly behind it
				t.Error(err)
			}
		}()
	}
	wantOK(t, d.patch(`{"name":"Lin"}`, header("If-Match", etag)))
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
	expect.Equal(t, "published", want, d.ledger.kinds())
}

func TestAReaderWaitsForTheChangeThatWasAccepted(t *testing.T) {
	d := newDoor(t, config())
	d.ledger.paused = true
	wantOK(t, d.patch(`{"name":"Ada"}`))
	go func() {
		time.Sleep(30 * time.Millisecond)
		d.ledger.mu.Lock()
		defer d.ledger.mu.Unlock()
		expect.NoError(t, d.ledger.apply(d.ledger.changes[0], 3))
	}()
	wantDocument(t, d.get(userPath), `{"id":"engine-a","name":"Ada"}`)
}
