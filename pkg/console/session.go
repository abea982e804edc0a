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

// session is a user who has signed in. The token stays in this process: with
// each request it is looked at again, so that one that is revoked or has expired
// ends its sessions too.
type session struct {
	csrf    string // what a form must bring
	token   string // never shown
	begun   time.Time
	seen    time.Time // of sessions, under its lock
	subject string    // of the token, also when it is not valid any more

	identity flow.Caller // of this request
	at       time.Time   // when this request came: what its page says is as of then
}

// May reports whether the session may act, and not only look.
func (s *session) May() bool { return s.identity.May(flow.ScopeAdmin) }

// Subject is who it is.
func (s *session) Subject() string { return s.identity.Subject }

// CSRF is what a form of this session must bring.
func (s *session) CSRF() string { return s.csrf }

// Limited reports whether the session sees some tenants only.
func (s *session) Limited() bool { return s.identity.Tenants != nil }

// whole refuses what cannot be cut down to some tenants.
func (s *session) whole(what string) error {
	if s.Limited() {
		return refuse(http.StatusForbidden, what+" cannot be shown to a token of some tenants: they are of all tenants.")
	}
	return nil
}

// maxSessions bounds the sessions there are. Of the subject that has most, the one that was
// used longest ago makes place: nobody signs others out by signing in.
const maxSessions = 1000

// sessions are kept in this process only: a restart ends them all.
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
	_, _ = rand.Read(b[:]) // never fails: the process ends instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// begin makes a session and returns the value of its cookie.
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

// find returns a copy of the session of a cookie, nil when there is none, and
// notes that it was used.
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

// onceFor is how long a link may wait to be followed.
const onceFor = time.Hour

// onceCodes are the secrets of links that sign in once.
type onceCodes struct {
	failures *rate.Limiter // of wrong codes and tokens, of all together

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

// Link makes a path that signs in once, within the hour, with a token: its secret
// stands behind the #, which no browser sends, and no proxy logs.
func (s *Server) Link(token string) (path string) {
	code := random()
	s.once.mu.Lock()
	defer s.once.mu.Unlock()
	s.once.all[sha256.Sum256([]byte(code))] = onceCode{token: token, ends: time.Now().Add(onceFor)}
	return "/sign-in#once=" + code
}

// use gives the token of a code, which is used up by it.
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

// signInPage asks for a token. Its script follows a link that signs in once.
func (s *Server) signInPage(w http.ResponseWriter, r *http.Request) {
	s.showSignIn(w, r, http.StatusOK, "")
}

func (s *Server) showSignIn(w http.ResponseWriter, r *http.Request, status int, problem string) {
	s.render(w, r, nil, status, "signin", "Sign in", struct{ Problem, Next string }{problem, ownPath(r.FormValue("next"))})
}

// ownPath is a path of this site; anything else becomes the first page.
func ownPath(path string) string {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") || strings.HasPrefix(path, "/sign-") {
		return "/"
	}
	return path
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	s.enter(w, r, strings.TrimSpace(r.PostFormValue("token")), "That token is not valid here.")
}

func (s *Server) signInOnce(w http.ResponseWriter, r *http.Request) {
	token, ok := s.once.use(r.PostFormValue("code"), time.Now())
	if !ok {
		s.failed(w, r, http.StatusForbidden, "That link was used before, or is too old. Sign in with an access token; sluice up prints a new link when it starts.")
		return
	}
	s.enter(w, r, token, "The token of that link is not valid any more.")
}

// enter begins a session of a token that may look.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, token, invalid string) {
	who, err := s.auth.Authenticate(token)
	switch {
	case errors.Is(err, flow.ErrTokenMissing):
		s.showSignIn(w, r, http.StatusBadRequest, "Type an access token.")
		return
	case errors.Is(err, flow.ErrTokenUnverified):
		s.showSignIn(w, r, http.StatusServiceUnavailable, "The token cannot be checked at the moment. Try again in a while.")
		return
	case err != nil:
		s.failed(w, r, http.StatusForbidden, invalid)
		return
	case !mayLook(who):
		s.failed(w, r, http.StatusForbidden, "That token has neither the scope read nor the scope admin, so it may not look.")
		return
	}
	cookie := s.sessions.begin(token, who, time.Now())
	s.log.Info("signed in at the console", "subject", who.Subject, "address", r.RemoteAddr)
	s.setCookie(w, cookie, 0) // it goes with the browser
	http.Redirect(w, r, ownPath(r.PostFormValue("next")), http.StatusSeeOther)
}

// failed answers a sign-in that failed. Very many of them are slowed down.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, status int, problem string) {
	if !s.once.failures.Allow() {
		w.Header().Set("Retry-After", "10")
		status, problem = http.StatusTooManyRequests, "Too many sign-ins have failed. Try again in a few seconds."
	}
	s.log.Warn("a sign-in at the console failed", "address", r.RemoteAddr, "security", true)
	s.showSignIn(w, r, status, problem)
}

func (s *Server) signOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		who := s.sessions.find(cookie.Value, time.Now())
		if who != nil && !who.brings(r) {
			s.showError(w, r, who, refuse(http.StatusForbidden, "This form is not of your session. Load the page again."))
			return
		}
		s.sessions.end(cookie.Value)
	}
	s.setCookie(w, "", -1)
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// mayLook: admin includes looking, here.
func mayLook(who flow.Caller) bool {
	return who.May(flow.ScopeRead) || who.May(flow.ScopeAdmin)
}

// brings reports whether a form brings what the session has given it.
func (s *session) brings(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(s.csrf)) == 1
}

// visitor finds the session of a request; nil when there is none, or none any
// more.
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
		return nil, refuse(http.StatusServiceUnavailable, "Your token cannot be checked at the moment. Try again in a while.")
	}
	if err != nil || !mayLook(who.identity) {
		s.sessions.end(cookie.Value)
		s.log.Info("a session of the console ended with its token", "subject", who.subject)
		return nil, nil
	}
	return who, nil
}

// view answers a request of a signed-in user. It has until Config.Answer, which
// the context of the request says. What it returns as an error is shown as a
// page.
type view func(w http.ResponseWriter, r *http.Request, who *session) error

// page needs a signed-in user; a form must be of the session.
func (s *Server) page(show view) http.HandlerFunc {
	return s.signedIn(func(w http.ResponseWriter, r *http.Request, who *session) error {
		ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Answer)
		defer cancel()
		return show(w, r.WithContext(ctx), who)
	})
}

// signedIn is page for an answer that has a deadline of its own.
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
			s.showError(w, r, who, refuse(http.StatusForbidden, "This form is not of your session. Load the page again."))
			return
		}
		if err := show(w, r, who); err != nil {
			s.showError(w, r, who, err)
		}
	}
}

// actFor is how long an action of a user may take.
const actFor = 5 * time.Minute

// act is page for what changes something, and may take a while: only an admin may.
func (s *Server) act(do view) http.HandlerFunc {
	return s.signedIn(func(w http.ResponseWriter, r *http.Request, who *session) error {
		if !who.May() {
			return refuse(http.StatusForbidden, "Your token may look and not act: that takes the scope admin.")
		}
		ctx, cancel := context.WithTimeout(r.Context(), actFor)
		defer cancel()
		return do(w, r.WithContext(ctx), who)
	})
}
