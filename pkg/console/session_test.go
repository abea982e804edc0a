package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sluice/pkg/console"
)

func TestPagesRequireASignIn(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, path := range []string{"/", "/sources", "/process/elements?id=order", "/nothing"} {
		res, body := s.get(path)
		if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/sign-in?next="+url.QueryEscape(path) {
			t.Errorf("%s: %s to %q, want to be sent to sign in\n%s", path, res.Status, res.Header.Get("Location"), body)
		}
	}
	res, _ := s.do(http.MethodHead, "/", nil) // an open page polls its session with it
	wants(t, "HEAD", res, "", http.StatusSeeOther)
	req, err := http.NewRequest(http.MethodGet, s.url+"/records/new", nil)
	fatal(t, err)
	res, err = s.client.Do(req)
	fatal(t, err)
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("new records: %s, want 401", res.Status)
	}
}

// TestSessionsSignOutOnlyThemselves: one subject fills all sessions and continues to sign in.
func TestSessionsSignOutOnlyThemselves(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.signIn(admin)
	ofAdmin := s.client
	s.client = newBrowser()
	for range 1001 { // the bound is 1000
		if res, _ := s.post("/sign-in", url.Values{"token": {reader}}); res.StatusCode != http.StatusSeeOther {
			t.Fatal(res.Status)
		}
	}
	s.client.CloseIdleConnections()
	s.client = ofAdmin
	res, body := s.get("/sources")
	wants(t, "the admin", res, body, http.StatusOK, "root")
}

func TestATokenSignsInAsItsScopesSay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, token, text string
		status            int
	}{
		{"with read", reader, "", http.StatusSeeOther},
		{"with admin", admin, "", http.StatusSeeOther},
		{"one that only posts", poster, "neither scope read", http.StatusForbidden},
		{"an unknown one", "sluice_nobody", "is invalid", http.StatusForbidden},
		{"none", "", "Type an access token", http.StatusBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, nil)
			res, body := s.post("/sign-in", url.Values{"token": {c.token}, "next": {"//elsewhere.example/"}})
			wants(t, "sign in", res, body, c.status, c.text)
			if c.token != "" && strings.Contains(body, c.token) {
				t.Error("the page shows the token")
			}
			cookies := res.Cookies()
			if c.status != http.StatusSeeOther {
				if len(cookies) > 0 {
					t.Errorf("a cookie was set: %v", cookies)
				}
				return
			}
			if to := res.Header.Get("Location"); to != "/" {
				t.Errorf("sent to %q, want no other site", to)
			}
			if len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteStrictMode || cookies[0].Path != "/" {
				t.Errorf("cookies %v, want one that is HttpOnly and SameSite=Strict", cookies)
			}
			res, body = s.get("/")
			wants(t, "the first page", res, body, http.StatusOK, "Sign out", "Needs attention")
		})
	}
}

func TestEveryAnswerCarriesAStrictPolicy(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.signIn(reader)
	for _, path := range []string{"/", "/sign-in", "/nothing", "/assets/console.js"} {
		res, body := s.get(path)
		policy := res.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy %q lacks %q", path, policy, part)
			}
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"} {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if strings.Contains(body, " style=") && !strings.HasPrefix(path, "/assets/") || strings.Contains(body, "<script>") {
			t.Errorf("%s: it has what its policy forbids:\n%s", path, body)
		}
	}
}

func TestALinkSignsInOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	page, secret, ok := strings.Cut(s.server.Link(reader), "#once=")
	if !ok || page != "/sign-in" {
		t.Fatalf("the link is to %q, want its secret behind the #", page)
	}
	res, body := s.post("/sign-in/once", url.Values{"code": {secret}})
	wants(t, "first", res, body, http.StatusSeeOther)
	res, body = s.get("/")
	wants(t, "the first page", res, body, http.StatusOK)

	s.client = newBrowser()
	res, body = s.post("/sign-in/once", url.Values{"code": {secret}})
	wants(t, "again", res, body, http.StatusForbidden, "was used before")
}

func TestAFormOfAnotherSiteOrSessionIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	csrf := s.signIn(admin)
	for _, wrong := range []url.Values{{}, {"csrf": {"wrong"}}} {
		res, body := s.post("/sign-out", wrong)
		wants(t, "without the token of the session", res, body, http.StatusForbidden, "belongs to another session")
	}
	req, err := http.NewRequest(http.MethodPost, s.url+"/sign-out", strings.NewReader(url.Values{"csrf": {csrf}}.Encode()))
	fatal(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	res, err := s.client.Do(req)
	fatal(t, err)
	res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("from another site: %s, want 403", res.Status)
	}

	res, body := s.post("/sign-out", url.Values{"csrf": {csrf}})
	wants(t, "sign out", res, body, http.StatusSeeOther)
	res, _ = s.get("/")
	wants(t, "after that", res, "", http.StatusSeeOther)
}

func TestASessionEndsWithItsTimeAndItsToken(t *testing.T) {
	t.Parallel()
	begin := func(change func(*console.Config)) *site {
		s := newSite(t, func(c *console.Config, _ *console.Deps) { change(c) })
		res, body := s.post("/sign-in", url.Values{"token": {reader}})
		wants(t, "sign in", res, body, http.StatusSeeOther)
		return s
	}
	ends(t, begin(func(c *console.Config) { c.Session = time.Second }), "after its time")

	s := begin(func(c *console.Config) { c.Idle = 500 * time.Millisecond })
	time.Sleep(600 * time.Millisecond) // longer than Config.Idle
	res, _ := s.get("/")
	wants(t, "after it was idle", res, "", http.StatusSeeOther)

	s = begin(func(*console.Config) {})
	res, body := s.get("/processes")
	wants(t, "before its token was revoked", res, body, http.StatusOK)
	writeTokens(t, s.tokens, admin)
	ends(t, s, "after its token was revoked")
}

// ends waits until the site redirects to the sign-in page.
func ends(t *testing.T, s *site, when string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if res, _ := s.get("/processes"); res.StatusCode == http.StatusSeeOther {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s it continues", when)
			return
		}
	}
}

// TestATokenOfSomeTenantsReadsNoPageOfAll: pages that cannot be filtered by tenant are denied.
func TestATokenOfSomeTenantsReadsNoPageOfAll(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	res, _ := s.post("/sign-in", url.Values{"token": {tenants}})
	wants(t, "sign in", res, "", http.StatusSeeOther)
	res, _ = s.get("/")
	if to := res.Header.Get("Location"); to != "/processes" {
		t.Errorf("the first page leads to %q, want /processes", to)
	}
	for _, path := range []string{"/dead", "/sources"} {
		res, body := s.get(path)
		wants(t, path, res, body, http.StatusForbidden, "limited to some tenants")
	}
}
