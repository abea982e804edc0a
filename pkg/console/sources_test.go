package console_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sluice/pkg/console"
)

// tokenFile records changes. Changes of the source "twice" fail.
type tokenFile struct{ done []string }

func (f *tokenFile) note(what, name string) (string, error) {
	f.done = append(f.done, what+" "+name)
	if name == "twice" {
		return "", errors.New("source twice has a token")
	}
	return what + " <" + name + ">: sluice_secret", nil
}

func (f *tokenFile) Add(name string) (string, error)    { return f.note("add", name) }
func (f *tokenFile) Rotate(name string) (string, error) { return f.note("rotate", name) }
func (f *tokenFile) Remove(name string) (string, error) { return f.note("remove", name) }

// TestSourcesAreChangedByAdminsAlone: only an admin with the session's CSRF token can change
// sources, if the console allows it. A new token is shown once.
func TestSourcesAreChangedByAdminsAlone(t *testing.T) {
	t.Parallel()
	file := new(tokenFile)
	s := newSite(t, func(_ *console.Config, d *console.Deps) { d.Sources = file })
	csrf := map[string]string{}
	for _, c := range []struct {
		token, do, name, sure string
		forged                bool
		status                int
		says, done            string
	}{
		{reader, "add", "b", "", false, http.StatusForbidden, "scope admin", ""},
		{tenants, "add", "b", "", false, http.StatusForbidden, "tenants", ""},
		{admin, "add", "b", "", true, http.StatusForbidden, "belongs to another session", ""},
		{admin, "add", " ", "", false, http.StatusBadRequest, "name of the source is missing", ""},
		{admin, "own", "b", "", false, http.StatusBadRequest, "name of the source is missing", ""},
		{admin, "remove", "b", "", false, http.StatusOK, "tick the box", ""},
		{admin, "add", "twice", "", false, http.StatusOK, "Failed: <span class=\"text\">source twice has a token", "add twice"},
		{admin, "add", " b ", "", false, http.StatusOK, "add &lt;b&gt;: sluice_secret", "add b"},
		{admin, "rotate", "b", "", false, http.StatusOK, "rotate &lt;b&gt;: sluice_secret", "rotate b"},
		{admin, "remove", "b", "1", false, http.StatusOK, "remove &lt;b&gt;", "remove b"},
	} {
		if csrf[c.token] == "" {
			csrf[c.token] = s.signIn(c.token)
		}
		form, before := url.Values{"do": {c.do}, "name": {c.name}, "sure": {c.sure}, "csrf": {csrf[c.token]}}, len(file.done)
		if c.forged {
			form.Del("csrf")
		}
		res, body := s.post("/sources", form)
		wants(t, c.token+" "+c.do+" "+c.name, res, body, c.status, c.says)
		if got := strings.Join(file.done[before:], ", "); got != c.done {
			t.Errorf("%s %s %q made %q, want %q", c.token, c.do, c.name, got, c.done)
		}
	}
	if _, body := s.get("/sources"); strings.Contains(body, "sluice_secret") || !strings.Contains(body, `<button name="do" value="add">`) {
		t.Errorf("the page has the secret, or no form:\n%s", body)
	}

	s.signIn(reader)
	if _, body := s.get("/sources"); strings.Contains(body, `action="/sources"`) {
		t.Errorf("a viewer has a form:\n%s", body)
	}
	apart := newSite(t, nil)
	res, body := apart.post("/sources", url.Values{"do": {"add"}, "name": {"b"}, "csrf": {apart.signIn(admin)}})
	wants(t, "a console apart", res, body, http.StatusNotFound, "sluice source add NAME --tokens FILE")
	res, body = apart.get("/sources")
	wants(t, "its page", res, body, http.StatusOK, "sluice source add NAME --tokens FILE", "scopes: [records:write]")
}
