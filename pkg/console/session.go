package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sluice/pkg/flow"
)

// session is a signed-in user. The token stays in this process and is verified with
// each request: revocation or expiry of a token ends its sessions.
type session struct {
	csrf    string // anti-CSRF token of forms
	token   string // never shown
	begun   time.Time
	seen    time.Time // last use; guarded by sessions.mu
	subject string    // of the token, also after it becomes invalid

	identity flow.Caller // of this request
	at       time.Time   // time of this request; its page is as of then
}

// May reports whether the session has the scope admin.
func (s *session) May() bool { return s.identity.May(flow.ScopeAdmin) }

func (s *session) Subject() string { return s.identity.Subject }

func (s *session) CSRF() string { return s.csrf }

// Limited reports whether the session sees some tenants only.
func (s *session) Limited() bool { return s.identity.Tenants != nil }

// whole rejects limited sessions on pages that cannot be filtered by tenant.
func (s *session) whole(what string) error {
	if s.Limited() {
		return refuse(http.StatusForbidden, what+" cannot be shown to a token limited to some tenants.")
	}
	return nil
}

// maxSessions bounds the number of sessions. Beyond it, the least recently used session of
// the subject with the most is evicted: one user cannot sign others out by signing in.
const maxSessions = 1000

// sessions are in memory only: a restart ends them all.
type sessions struct {
	idle, longest time.Duration

	mu  sync.Mutex
	all map[[sha256.Size]byte]*session // by the hash of the cookie
}

func newSessions(idle, longest time.Duration) *sessions {
	return &sessions{idle: idle, longest: longest, all: map[[sha256.Size]byte]*session{}}
}

func random() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: rand.Read crashes the process instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// begin creates a session and returns the value of its cookie.
func (s *sessions) begin(token string, who flow.Caller, now time.Time) string {
	cookie := random()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string]int{}
	for key, other := range s.all {
		if s.ended(other, now) {
			delete(s.all, key)
			continue
		}
		of[other.subject]++
	}
	if len(s.all) >= maxSessions {
		var oldest [sha256.Size]byte
		var at *session
		for key, other := range s.all {
			if at == nil || cmp.Or(cmp.Compare(of[other.subject], of[at.subject]), at.seen.Compare(other.seen)) > 0 {
				oldest, at = key, other
			}
		}
		delete(s.all, oldest)
	}
	s.all[sha256.Sum256([]byte(cookie))] = &session{csrf: random(), token: token, begun: now, seen: now, subject: who.Subject}
	return cookie
}

func (s *sessions) ended(x *session, now time.Time) bool {
	return now.Sub(x.seen) > s.idle || now.Sub(x.begun) > s.longest
}

// find returns a copy of the session of a cookie and updates its last use. It returns
// nil when there is none.
func (s *sessions) find(cookie string, now time.Time) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sha256.Sum256([]byte(cookie))
	found := s.all[key]
	if found == nil {
		return nil
	}
	if s.ended(found, now) {
		delete(s.all, key)
		return nil
	}
	found.seen = now
	its := *found
	return &its
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, sha256.Sum256([]byte(cookie)))
}

// onceFor is the lifetime of a sign-in link.
const onceFor = time.Hour

// onceCodes are the secrets of one-time sign-in links.
type onceCodes struct {
	failures *rate.Limiter // failed sign-ins of all clients

	mu  sync.Mutex
	all map[[sha256.Size]byte]onceCode
}

type onceCode struct {
	token string
	ends  time.Time
}

func newOnceCodes() *onceCodes {
	return &onceCodes{failures: rate.NewLimiter(5, 50), all: map[[sha256.Size]byte]onceCode{}}
}

// Link makes a one-time path that signs in with a token within an hour. The secret is in
// the fragment, which browsers do not send and proxies do not log.
func (s *Server) Link(token string) (path string) {
	code := random()
	s.once.mu.Lock()
	defer s.once.mu.Unlock()
	s.once.all[sha256.Sum256([]byte(code))] = onceCode{token: token, ends: time.Now().Add(onceFor)}
	return "/sign-in#once=" + code
}

// use returns the token of a code and removes the code.
func (o *onceCodes) use(code string, now time.Time) (token string, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := sha256.Sum256([]byte(code))
	found, ok := o.all[key]
	delete(o.all, key)
	return found.token, ok && now.Before(found.ends)
}

const cookieName = "sluice_console"

func (s *Server) setCookie(w http.ResponseWriter, value string, age int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age,
		HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: s.cfg.Secure,
	})
}

// signInPage asks for a token. Its script redeems one-time links.
func (s *Server) signInPage(w http.ResponseWriter, r *http.Request) {
	s.showSignIn(w, r, http.StatusOK, "")
}

func (s *Server) showSignIn(w http.ResponseWriter, r *http.Request, status int, problem string) {
	s.render(w, r, nil, status, "signin", "Sign in", struct{ Problem, Next string }{problem, ownPath(r.FormValue("next"))})
}

// ownPath prevents open redirects: anything but a path of this site becomes "/".
func ownPath(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") || strings.HasPrefix(path, "/sign-") {
		return "/"
	}
	return path
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	s.enter(w, r, strings.TrimSpace(r.PostFormValue("token")), "The token is invalid.")
}

func (s *Server) signInOnce(w http.ResponseWriter, r *http.Request) {
	token, ok := s.once.use(r.PostFormValue("code"), time.Now())
	if !ok {
		s.failed(w, r, http.StatusForbidden, "The link was used before or has expired. Sign in with an access token; sluice up prints a new link when it starts.")
		return
	}
	s.enter(w, r, token, "The token of the link is no longer valid.")
}

// enter begins a session if the token has the scope read or admin.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, token, invalid string) {
	who, err := s.auth.Authenticate(token)
	switch {
	case errors.Is(err, flow.ErrTokenMissing):
		s.showSignIn(w, r, http.StatusBadRequest, "Type an access token.")
		return
	case errors.Is(err, flow.ErrTokenUnverified):
		s.showSignIn(w, r, http.StatusServiceUnavailable, "The token cannot be checked now. Retry later.")
		return
	case err != nil:
		s.failed(w, r, http.StatusForbidden, invalid)
		return
	case !mayLook(who):
		s.failed(w, r, http.StatusForbidden, "The token has neither scope read nor scope admin.")
		return
	}
	cookie := s.sessions.begin(token, who, time.Now())
	s.log.Info("console: signed in", "subject", who.Subject, "address", r.RemoteAddr)
	s.setCookie(w, cookie, 0) // a session cookie
	http.Redirect(w, r, ownPath(r.PostFormValue("next")), http.StatusSeeOther)
}

// failed responds to a failed sign-in, with 429 when there are too many.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, status int, problem string) {
	if !s.once.failures.Allow() {
		w.Header().Set("Retry-After", "10")
		status, problem = http.StatusTooManyRequests, "Too many failed sign-ins: retry in a few seconds."
	}
	s.log.Warn("console: sign-in failed", "address", r.RemoteAddr, "security", true)
	s.showSignIn(w, r, status, problem)
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		who := s.sessions.find(cookie.Value, time.Now())
		if who != nil && !who.brings(r) {
			s.showError(w, r, who, refuse(http.StatusForbidden, "The form belongs to another session. Reload the page."))
			return
		}
		s.sessions.end(cookie.Value)
	}
	s.setCookie(w, "", -1)
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// mayLook: in the console, admin includes read.
func mayLook(who flow.Caller) bool {
	return who.May(flow.ScopeRead) || who.May(flow.ScopeAdmin)
}

// brings reports whether a form has the CSRF token of the session.
func (s *session) brings(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(s.csrf)) == 1
}

// visitor finds the session of a request and verifies its token; nil when there is no
// valid session.
func (s *Server) visitor(r *http.Request) (*session, error) {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return nil, nil
	}
	who := s.sessions.find(cookie.Value, time.Now())
	if who == nil {
		return nil, nil
	}
	who.at = time.Now()
	who.identity, err = s.auth.Authenticate(who.token)
	if errors.Is(err, flow.ErrTokenUnverified) {
		return nil, refuse(http.StatusServiceUnavailable, "Your token cannot be checked now. Retry later.")
	}
	if err != nil || !mayLook(who.identity) {
		s.sessions.end(cookie.Value)
		s.log.Info("console: session ended with its token", "subject", who.subject)
		return nil, nil
	}
	return who, nil
}

// view handles a request of a signed-in user. Its returned error is shown as a page.
type view func(w http.ResponseWriter, r *http.Request, who *session) error

// page is signedIn with the timeout Config.Answer.
func (s *Server) page(show view) http.HandlerFunc {
	return s.signedIn(func(w http.ResponseWriter, r *http.Request, who *session) error {
		ctx, cancel := timed(r.Context(), s.cfg.Answer, "page")
		defer cancel()
		if r.FormValue("refresh") != "" {
			who.at = who.at.Truncate(refreshEvery)
			ctx = s.shared.asOf(ctx, who.at)
		}
		return show(w, r.WithContext(ctx), who)
	})
}

// signedIn requires a signed-in user, and the CSRF token unless the method is GET or HEAD.
func (s *Server) signedIn(show view) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.visitor(r)
		switch {
		case err != nil:
			s.showError(w, r, nil, err)
			return
		case who == nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html"):
			http.Redirect(w, r, "/sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		case who == nil:
			http.Error(w, "sign in first", http.StatusUnauthorized)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead && !who.brings(r):
			s.showError(w, r, who, refuse(http.StatusForbidden, "The form belongs to another session. Reload the page."))
			return
		}
		if err := show(w, r, who); err != nil {
			s.showError(w, r, who, err)
		}
	}
}

const actFor = 5 * time.Minute

// act is signedIn for actions: it requires the scope admin and has the timeout actFor.
func (s *Server) act(do view) http.HandlerFunc {
	return s.signedIn(func(w http.ResponseWriter, r *http.Request, who *session) error {
		if !who.May() {
			return refuse(http.StatusForbidden, "Your token is read-only: this action requires the scope admin.")
		}
		ctx, cancel := context.WithTimeout(r.Context(), actFor)
		defer cancel()
		return do(w, r.WithContext(ctx), who)
	})
}
