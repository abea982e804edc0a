package api_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

const postPath = "/flow/flowRecord/batch"

// TestAClientMayWaitUntilItsRecordsAreStored: the answer reports whether they are, within the
// requested time.
func TestAClientMayWaitUntilItsRecordsAreStored(t *testing.T) {
	for _, tt := range []struct {
		name, query, prefer string
		behind              bool
		took                time.Duration
		stored, applied     string
	}{
		{"no wait", "", "", true, 0, "", ""},
		{"stored immediately", "?wait=stored", "", false, 0, "true", ""},
		{"not in five seconds", "?wait=stored", "", true, 5 * time.Second, "false", ""},
		{"stored, preferred", "", "wait=3", false, 0, "true", "wait=3"},
		{"not in the time preferred", "", "respond-async, Wait=7", true, 7 * time.Second, "false", "wait=7"},
		{"never longer than half a minute", "", "wait=600", true, 30 * time.Second, "false", "wait=30"},
		{"both", "?wait=stored", `wait="2"`, true, 2 * time.Second, "false", "wait=2"},
		{"no time at all", "?wait=stored", "wait=0", true, 0, "", ""},
		{"a preference that cannot be read", "", "wait=soon", true, 0, "", ""},
		{"the same beside a parameter", "?wait=stored", "wait=-1", true, 5 * time.Second, "false", ""},
		{"other parameters", "?verbose=1", "", true, 0, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			synctest.Test(t, func(t *testing.T) {
				if tt.behind {
					d.stream.behind = make(chan struct{})
				}
				r := request(http.MethodPost, postPath+tt.query, `{"id":"a"}`)
				if tt.prefer != "" {
					r.Header.Set("Prefer", tt.prefer)
				}
				begun := time.Now()
				resp := d.do(r)
				wantOK(t, resp)
				got := []string{resp.Header.Get("Sluice-Stored"), resp.Header.Get("Preference-Applied")}
				expect.Equal(t, "Sluice-Stored and Preference-Applied", []string{tt.stored, tt.applied}, got)
				if took := time.Since(begun); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
				expect.Not(t, d.held(t) != 0, "the body is still held")
				if asked := len(d.stream.waited); (asked == 1) != (tt.stored != "") || asked > 1 {
					t.Errorf("asked %d times whether it is stored", asked)
				}
			})
		})
	}
}

// TestNothingIsHeldWhileAClientWaits: neither the memory of its body nor a slot that other posts
// need.
func TestNothingIsHeldWhileAClientWaits(t *testing.T) {
	d := newDoor(t, config())
	synctest.Test(t, func(t *testing.T) {
		d.stream.behind = make(chan struct{})
		answer := make(chan *http.Response, 1)
		go func() { answer <- d.serveOne(request(http.MethodPost, postPath+"?wait=stored", `{"id":"a"}`)) }()
		synctest.Wait()
		expect.Not(t, d.held(t) != 0, "the body is held while its client waits")
		close(d.stream.behind)
		resp := <-answer
		wantOK(t, resp)
		expect.Equal(t, "Sluice-Stored", "true", resp.Header.Get("Sluice-Stored"))
	})
}

func TestAnUnsupportedWaitIsReported(t *testing.T) {
	d := newDoor(t, config())
	for _, query := range []string{"?wait=", "?wait=durable", "?wait=stored&wait=stored", "?wait=stored&x=%zz"} {
		wantProblem(t, d.serveOne(request(http.MethodPost, postPath+query, `{"id":"a"}`)), http.StatusBadRequest, "bad_parameter")
	}
	expect.Not(t, len(d.stream.stored()) != 0, "something was stored")
}

// TestNoRequestWaitsForAServerThatStops: a waiting request is answered as unknown.
func TestNoRequestWaitsForAServerThatStops(t *testing.T) {
	d := newDoor(t, config())
	d.stream.behind = make(chan struct{})
	addr, stop := d.run(t)
	r, err := http.NewRequest(http.MethodPost, "http://"+addr+postPath, strings.NewReader(`{"id":"a"}`))
	fatal.If(t, err)
	r.Header.Set("Authorization", "Bearer engine")
	r.Header.Set("Prefer", "wait=30")
	stopped := make(chan error, 1)
	go func() {
		for len(d.stream.stored()) == 0 {
			time.Sleep(time.Millisecond)
		}
		stopped <- stop()
	}()
	begun := time.Now()
	resp, err := http.DefaultClient.Do(r)
	fatal.If(t, err)
	wantOK(t, resp)
	if got := resp.Header.Get("Sluice-Stored"); got != "false" || time.Since(begun) > 5*time.Second {
		t.Errorf("Sluice-Stored %q after %v, want false immediately", got, time.Since(begun))
	}
	expect.NoError(t, <-stopped)
}
