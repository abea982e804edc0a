package api_test

import (
	"net/http"
	"testing"
)

// TestASubjectHasSoManyFields: beyond them it may change and delete its own.
func TestASubjectHasSoManyFields(t *testing.T) {
	cfg := config()
	cfg.Fields = 2
	d := newDoor(t, cfg)
	wantOK(t, d.put(fieldPath("t", "a"), `{"name":"1"}`))
	wantOK(t, d.del(fieldPath("t", "b"))) // a tombstone is one too
	wantProblem(t, d.put(fieldPath("t", "c"), `{"name":"1"}`), http.StatusForbidden, "too_many_fields")
	wantProblem(t, d.del(fieldPath("t", "c")), http.StatusForbidden, "too_many_fields")
	wantProblem(t, d.put(fieldPath("t", "c"), `{"name":"1"}`, header("If-None-Match", "*")), http.StatusForbidden, "too_many_fields")
	wantOK(t, d.put(fieldPath("t", "a"), `{"name":"2"}`))
	wantOK(t, d.put(fieldPath("t", "b"), `{"name":"2"}`))
	wantOK(t, d.del(fieldPath("t", "a")))
	other := header("Authorization", "other")
	wantOK(t, d.put(fieldPath("t", "c"), `{"name":"1"}`, other))
	wantProblem(t, d.del(fieldPath("t", "c")), http.StatusForbidden, "too_many_fields") // it would be ours then
	wantOK(t, d.put(fieldPath("t", "b"), `{"name":"3"}`, other))                        // and this one is theirs
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
