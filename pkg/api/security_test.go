package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/expect"
)

// from sets the remote address of a request.
func from(address string) func(*http.Request) {
	return func(r *http.Request) { r.RemoteAddr = address }
}

// lines are the log lines that contain all parts.
func (d *door) lines(parts ...string) (found []string) {
next:
	for line := range strings.Lines(d.log.String()) {
		for _, part := range parts {
			if !strings.Contains(line, part) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}

func TestRefusalsLeaveATrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, config())
		try := func(address, token string) {
			d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", `{"id":"1-1"}`, header("Authorization", token), from(address), header("X-Request-Id", "client-1")))
		}
		for range 100 {
			try("192.0.2.7:1000", "Bearer swordfish")
		}
		try("192.0.2.8:1000", "Bearer swordfish")
		try("192.0.2.8:1000", "")
		try("192.0.2.8:1000", "Bearer reader")
		for range 5 {
			try("192.0.2.8:1000", "Bearer slow")
		}
		try("192.0.2.8:1000", "Bearer engine") // answered OK
		for _, want := range [][]string{
			{"security=true", "status=401", "reason=token_invalid", "address=192.0.2.7", "subject=unknown", "others=0", "route=/flow/flowRecord/batch", "client_request_id=client-1"},
			{"security=true", "status=401", "reason=token_invalid", "address=192.0.2.8"},
			{"security=true", "status=401", "reason=token_missing", "address=192.0.2.8"},
			{"security=true", "status=403", "reason=scope_missing", "address=192.0.2.8", "subject=reader"},
			{"security=true", "status=429", "reason=rate_limited", "address=192.0.2.8", "subject=slow"},
		} {
			if got := d.lines(want...); len(got) != 1 {
				t.Errorf("%d lines with %q, want 1:\n%s", len(got), want, d.log)
			}
		}
		if got := d.lines("security=true"); len(got) != 5 {
			t.Errorf("%d lines, want 5:\n%s", len(got), d.log)
		}
		time.Sleep(11 * time.Second)
		try("192.0.2.7:1000", "Bearer swordfish")
		if got := d.lines("address=192.0.2.7", "others=99"); len(got) != 1 {
			t.Errorf("the others are not counted:\n%s", d.log)
		}
		if got := d.lines("msg=request "); len(got) != 0 {
			t.Errorf("requests are logged without --access-log: %s", got)
		}
		expect.Not(t, strings.Contains(d.log.String(), "swordfish"), "a token is in the log:\n%s", d.log)
	})
}

// TestRefusalsCannotFloodTheLog from ever-changing addresses.
func TestRefusalsCannotFloodTheLog(t *testing.T) {
	d := newDoor(t, config())
	for i := range 3000 {
		d.serveOne(request(http.MethodGet, userPath, "", header("Authorization", "swordfish"), from(fmt.Sprintf("192.0.%d.%d:1", i/250, i%250))))
	}
	expect.Equal(t, "lines", 1024, len(d.lines("security=true")))
}

func TestTheAccessLogHasEveryRequest(t *testing.T) {
	cfg := config()
	cfg.AccessLog = true
	d := newDoor(t, cfg)
	d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", `{"id":"1-1"}`, from("192.0.2.7:1000")))
	d.serveOne(request(http.MethodGet, fieldPath("swordfish", "f"), ""))
	d.serveOne(request(http.MethodGet, "/swordfish", ""))
	for _, want := range [][]string{
		{"level=INFO", "msg=request", "method=POST", "route=/flow/flowRecord/batch", "status=200", "bytes_in=12", "bytes_out=15", "address=192.0.2.7", "subject=engine-a", "seconds="},
		{"method=GET", "route=/ds/dataset/field/custom/:tableId/:fieldId", "status=404"},
		{"method=GET", `route=""`, "status=404"},
	} {
		if got := d.lines(want...); len(got) != 1 {
			t.Errorf("%d lines with %q, want 1:\n%s", len(got), want, d.log)
		}
	}
	expect.Not(t, strings.Contains(d.log.String(), "swordfish"), "the path is in the log:\n%s", d.log)
}

// TestRejectedClientsAreListed by address, and by name if a token has that name.
func TestRejectedClientsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, config())
		for range 51 {
			d.exports(http.MethodPost, "/_bulk", "{}\n", header("Authorization", basic("engine-a", "old")), from("192.0.2.7:1000"))
		}
		time.Sleep(time.Second)
		d.exports(http.MethodPost, "/_bulk", "{}\n", header("Authorization", basic("a pasted token", "old")), from("192.0.2.8:1000"))
		time.Sleep(time.Second)
		d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", `{"id":`, from("192.0.2.9:1000")))
		d.serveOne(request(http.MethodGet, "/no/such/route", "", from("192.0.2.9:1000")))

		var got []string
		for _, r := range d.Rejected() {
			got = append(got, fmt.Sprint(r.Subject, " ", r.Address, " ", r.Code, " ", r.Status, " ", r.Count, " ", time.Since(r.Last)))
		}
		want := []string{
			"engine-a 192.0.2.9 invalid_json 400 1 0s",
			"unknown 192.0.2.8 token_invalid 401 1 1s",
			"engine-a 192.0.2.7 token_invalid 401 51 2s",
		}
		expect.Equal(t, "rejected clients", want, got)
		problems := testutil.GatherAndCompare(d.reg, strings.NewReader(`
# HELP sluice_api_rejected_clients_total Requests rejected for the client's token, rights, rate, or body, by configured subject (else unknown) and code. Addresses: /rejected of the ops port.
# TYPE sluice_api_rejected_clients_total counter
sluice_api_rejected_clients_total{code="invalid_json",subject="engine-a"} 1
sluice_api_rejected_clients_total{code="token_invalid",subject="engine-a"} 51
sluice_api_rejected_clients_total{code="token_invalid",subject="unknown"} 1
`), "sluice_api_rejected_clients_total")
		if problems != nil {
			t.Error(problems)
		}
		time.Sleep(time.Hour)
		if got := d.Rejected(); len(got) != 0 {
			t.Errorf("after an hour: %v", got)
		}
		expect.Not(t, strings.Contains(d.log.String(), "pasted"), "an unknown name is in the log:\n%s", d.log)
	})
}
