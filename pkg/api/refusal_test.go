package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

func TestPathsAndMethodsThatAreNotThere(t *testing.T) {
	tests := []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/", 404, "no_such_route", ""},
		{"POST", "/flow/flowRecord/batch/", 404, "no_such_route", ""},
		{"POST", "//flow/flowRecord/batch", 404, "no_such_route", ""},
		{"POST", "/flow/flowrecord/batch", 404, "no_such_route", ""},
		{"GET", "/flow/flowRecord/batch", 405, "method_not_allowed", "POST"},
		{"DELETE", "/spm/login/current/user", 405, "method_not_allowed", "PATCH, GET, HEAD"},
		{"POST", "/ds/dataset/field/custom/t/f", 405, "method_not_allowed", "GET, HEAD, DELETE, PUT"},
		{"OPTIONS", "/openapi.json", 405, "method_not_allowed", "GET, HEAD"},
		{"BREW", "/docs", 405, "method_not_allowed", "GET, HEAD"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			resp := newDoor(t, config()).do(request(tt.method, tt.path, ""))
			wantProblem(t, resp, tt.status, tt.code)
			got, want := strings.Split(resp.Header.Get("Allow"), ", "), strings.Split(tt.allow, ", ")
			expect.Equal(t, "Allow", sorted(want), sorted(got))
		})
	}
}

func TestAcceptIsHeeded(t *testing.T) {
	for accept, status := range map[string]int{
		"": 200, "*/*": 200, "application/json": 200, "application/*;q=0.1": 200, "text/html, */*;q=0.8": 200,
		"application/problem+json": 200, "Application/JSON; charset=utf-8": 200, ";;": 406,
		"text/html": 406, "application/json;q=0": 406, "application/json; q=0.000, text/plain": 406, "application/jsonp": 406, "text/*": 406,
	} {
		t.Run(accept, func(t *testing.T) {
			resp := newDoor(t, config()).post(`{"id":"1-1"}`, header("Accept", accept))
			if status == 200 {
				wantOK(t, resp)
			} else {
				wantProblem(t, resp, 406, "not_acceptable")
			}
		})
	}
}

func TestFailuresOfTheStreamBecomeStatuses(t *testing.T) {
	after := func(err error, d time.Duration) error { return &flow.RetryError{Err: err, After: d} }
	tests := []struct {
		name   string
		err    error
		status int
		code   string
		retry  string
	}{
		{"full", flow.ErrFull, 429, "stream_full", "5"},
		{"dead letters", flow.ErrDeadShare, 429, "dead_letters_full", "60"},
		{"full, with a retry delay", after(flow.ErrFull, 2400*time.Millisecond), 429, "stream_full", "3"},
		{"busy", flow.ErrBusy, 429, "stream_busy", "1"},
		{"busy for an instant", after(flow.ErrBusy, time.Millisecond), 429, "stream_busy", "1"},
		{"away", flow.ErrUnavailable, 503, "stream_unavailable", "2"},
		{"without disk space", fmt.Errorf("%w: %w", flow.ErrDiskFull, flow.ErrUnavailable), 503, "disk_full", "15"},
		{"away, electing", after(fmt.Errorf("no leader: %w", flow.ErrUnavailable), 5*time.Second), 503, "stream_unavailable", "5"},
		{"held", flow.ErrHeld, 503, "source_held", "10"},
		{"held for an instant", after(flow.ErrHeld, time.Second), 503, "source_held", "1"},
		{"key used before", flow.ErrKeyReused, 422, "idempotency_key_reused", ""},
		{"message too large", flow.ErrTooLarge, 413, "record_too_large", ""},
		{"an unknown error", errors.New("swordfish"), 500, "internal", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			d.stream.before = func(context.Context) error { return fmt.Errorf("publish: %w", tt.err) }
			resp := d.post(`{"id":"1-1"}`)
			p := wantProblem(t, resp, tt.status, tt.code)
			expect.Equal(t, "Retry-After", tt.retry, resp.Header.Get("Retry-After"))
			expect.Not(t, strings.Contains(fmt.Sprint(p), "swordfish"), "the answer quotes the error: %+v", p)
			expect.Equal(t, "counted refusals of this code", 1, d.metric(t, "sluice_api_rejections_total", tt.code))
			logged := strings.Count(d.log.String(), "level=ERROR")
			if want := map[bool]int{true: 1}[tt.status == 500]; logged != want {
				t.Errorf("logged %d errors, want %d: %s", logged, want, d.log)
			}
		})
	}
}

func TestAStreamThatDoesNotAnswerIsGivenUpWithinTwoSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, config())
		d.stream.before = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		resp := d.post(`{"id":"1-1"}`)
		wantProblem(t, resp, 503, "stream_unavailable")
		if took := time.Since(start); took >= 2*time.Second || resp.Header.Get("Retry-After") == "" {
			t.Errorf("answered after %s with Retry-After %q", took, resp.Header.Get("Retry-After"))
		}
	})
}

func TestADefectIsAnsweredAndLoggedOnce(t *testing.T) {
	d := newDoor(t, config())
	d.stream.before = func(context.Context) error { panic("a defect") }
	resp := d.post(`{"id":"1-1","worker":"swordfish"}`)
	wantProblem(t, resp, 500, "internal")
	id := resp.Header.Get("X-Request-Id")
	if logged := d.log.String(); strings.Count(logged, id) != 1 || !strings.Contains(logged, "a defect") || strings.Contains(logged, "engine") || strings.Contains(logged, "swordfish") {
		t.Errorf("log: %s", logged)
	}
	expect.Equal(t, "counted panics", 1, d.metric(t, "sluice_api_panics_total", ""))
	expect.Equal(t, "bytes are still held", 0, d.held(t))
	d.stream.before = nil
	wantOK(t, d.post(`{"id":"1-1"}`))
}

func TestTheRateOfASubjectIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, config())
		slow := header("Authorization", "Bearer slow") // two requests per second
		post := func() *http.Response { return d.post(`[]`, slow) }
		for i := range 2 {
			resp := post()
			wantOK(t, resp)
			expect.Equal(t, "RateLimit", fmt.Sprintf(`"requests";r=%d;t=%d`, 1-i, i), resp.Header.Get("RateLimit"))
			expect.Equal(t, "RateLimit-Policy", `"requests";q=2;w=1`, resp.Header.Get("RateLimit-Policy"))
		}
		resp := post()
		wantProblem(t, resp, 429, "rate_limited")
		expect.Equal(t, "Retry-After", "1", resp.Header.Get("Retry-After"))
		wantOK(t, d.post(`[]`)) // another subject, without a rate
		time.Sleep(time.Second)
		wantOK(t, post())
		wantOK(t, post())
		wantProblem(t, post(), 429, "rate_limited")
	})
}

func TestTheDefaultRateHoldsForTokensWithoutOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Rate = 0.5
		d := newDoor(t, cfg)
		wantOK(t, d.post(`[]`))
		resp := d.post(`[]`)
		wantProblem(t, resp, 429, "rate_limited")
		expect.Equal(t, "Retry-After", "2", resp.Header.Get("Retry-After"))
	})
}

func TestMetricsAreWellNamedAndCountWhatPasses(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.post(`[{"id":"1-1","timestamp":5},{"id":"1-2","more":1}]`))
	wantOK(t, d.post(gzipped(t, `[{"id":"1-3"}]`), header("Content-Encoding", "gzip")))
	wantProblem(t, d.post(`[7]`), 422, "invalid_records")
	for name, want := range map[string]float64{
		"sluice_api_records_total": 3, "sluice_api_records_bad_timestamp_total": 3, "sluice_api_unknown_members_total": 1,
		"sluice_api_requests_in_flight": 0, "sluice_api_body_bytes_total": 50 + 14 + 3,
	} {
		if got := d.metric(t, name, ""); got != want {
			t.Errorf("%s is %g, want %g", name, got, want)
		}
	}
	problems, err := testutil.GatherAndLint(d.reg)
	expect.Not(t, err != nil || len(problems) > 0, "lint: %v %v", problems, err)
}
