package api_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"sluice/pkg/api"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestWhatIsIgnoredIsNamed: an OK lists the ignored members.
func TestWhatIsIgnoredIsNamed(t *testing.T) {
	const body = `{"name":"Ada","Status":true,"GRANT":{},"projects":[{"id":"p"},{"id":"q","License":{}}],"Projects":[{"id":"r","grant":{}}],"\u017ftatus":true}`
	d := newDoor(t, config())
	resp := d.patch(body, header("Authorization", "plain"))
	wantOK(t, resp)
	want := `"#/GRANT", "#/Status", "#/%C5%BFtatus", "#/Projects/0/grant", "#/projects/1/License"`
	expect.Equal(t, "Sluice-Ignored", want, resp.Header.Get("Sluice-Ignored"))
	got := text(t, d.get(userPath, header("Authorization", "plain")))
	if want := `{"Projects":[{"id":"r"}],"id":"plain","name":"Ada","projects":[{"id":"p"},{"id":"q"}]}`; got != want {
		t.Errorf("stored is %s, want %s", got, want)
	}

	resp = d.patch(body) // with the scope admin
	wantOK(t, resp)
	expect.Equal(t, "an admin was ignored", "", resp.Header.Get("Sluice-Ignored"))

	many := `{"projects":[` + strings.TrimSuffix(strings.Repeat(`{"grant":{}},`, 30), ",") + `]}`
	resp = d.patch(many, header("Authorization", "plain"))
	wantOK(t, resp)
	if got := resp.Header.Get("Sluice-Ignored"); strings.Count(got, `"#/projects/`) != 20 || !strings.HasSuffix(got, ", more") {
		t.Errorf("of 30 are named: %s", got)
	}
}

func TestHeadIsGetWithoutABody(t *testing.T) {
	d := newDoor(t, config())
	wantOK(t, d.put(fieldPath("t", "f"), `{"name":"n"}`))
	addr, _ := d.run(t)
	for _, path := range []string{userPath, fieldPath("t", "f"), fieldPath("t", "unknown"), "/openapi.json", "/docs"} {
		answers := map[string]*http.Response{}
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r := request(method, "http://"+addr+path, "")
			r.RequestURI = ""
			resp, err := http.DefaultClient.Do(r)
			fatal.If(t, err)
			if body := text(t, resp); method == http.MethodHead && body != "" {
				t.Errorf("HEAD %s has a body: %s", path, body)
			}
			answers[method] = resp
		}
		get, head := answers[http.MethodGet], answers[http.MethodHead]
		for _, name := range []string{"Content-Type", "Content-Length", "ETag", "Cache-Control"} {
			if get.Header.Get(name) != head.Header.Get(name) {
				t.Errorf("%s of %s: %q, by HEAD %q", name, path, get.Header.Get(name), head.Header.Get(name))
			}
		}
		expect.Not(t, get.StatusCode != head.StatusCode, "%s: %d, by HEAD %d", path, get.StatusCode, head.StatusCode)
	}
	r := request(http.MethodHead, "http://"+addr+"/flow/flowRecord/batch", "")
	r.RequestURI = ""
	if resp, err := http.DefaultClient.Do(r); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("HEAD of a route without GET: %v %v, want 405", resp, err)
	}
}

func TestTheClientsRequestIDIsReturned(t *testing.T) {
	for id, comesBack := range map[string]bool{
		"client-7/a=b;c": true, "client-" + strings.Repeat("x", 121): true,
		"client-" + strings.Repeat("x", 122): false, "client- with a space": false, "client-\xc3\xa9": false, "": false,
	} {
		d := newDoor(t, config())
		for _, body := range []string{`{"id":"1-1"}`, `{`} {
			resp := d.post(body, header("X-Request-Id", id))
			got := resp.Header.Get("X-Request-Id")
			expect.Not(t, comesBack != (got == id) || !comesBack && len(got) != 36, "%q came back as %q", id, got)
			if body == `{` {
				wantProblem(t, resp, 400, "invalid_json")
			}
		}
	}
	d := newDoor(t, config())
	d.stream.before = func(context.Context) error { return errors.New("a defect") }
	resp := d.post(`{"id":"1-1"}`, header("X-Request-Id", "client-7"))
	p := wantProblem(t, resp, 500, "internal")
	for _, want := range []string{"client_request_id=client-7", "request_id=" + strings.TrimPrefix(p.Instance, "urn:uuid:")} {
		expect.Not(t, !bytes.Contains(d.log.Bytes(), []byte(want)), "the log lacks %s: %s", want, d.log)
	}
}

// TestTheTypeOfAProblemIsAnAddress of the page that documents it.
func TestTheTypeOfAProblemIsAnAddress(t *testing.T) {
	d := newDoor(t, config())
	p := wantProblem(t, d.post(`{`), 400, "invalid_json")
	at, anchor, _ := strings.Cut(p.Type, "#")
	page := text(t, d.do(request(http.MethodGet, at, "")))
	if !strings.Contains(page, `id="`+anchor+`"`) {
		t.Errorf("%s does not lead anywhere", p.Type)
	}
	for _, f := range api.Failures() {
		expect.Not(t, !strings.Contains(page, `<tr id="`+f.Code+`"><td><code>`+f.Code+`</code></td><td>`+f.Status+`</td><td>`), "the page does not explain %s", f.Code)
	}
}
