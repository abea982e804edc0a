package api

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"mime"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"

	"sluice/pkg/accept"
	"sluice/pkg/api/budget"
	"sluice/pkg/flow"
)

// call is one request in progress.
type call struct {
	w   http.ResponseWriter
	r   *http.Request
	c   *gin.Context
	id  string      // our id of the request: in a problem and in the log
	ref string      // the client's id of the request, if any: in its answer and in the log
	who flow.Caller // zero on routes that need no token

	start time.Time // when its header had been read
	named string    // the claimed subject, even if the token is invalid
}

// elastic reports whether the call came by the second port.
func (c *call) elastic() bool { return c.c.GetBool(elasticKey) }

// handler handles a call; an error becomes a problem in the answer.
type handler func(*call) error

// noScope is the scope of routes that need no token.
const noScope flow.Scope = ""

// route is one operation.
type route struct {
	method, path string // path in gin's syntax
	scope        flow.Scope
	handle       handler
}

// table is all routes.
func (s *Server) table() []route {
	const (
		records = "/flow/flowRecord/batch"
		user    = "/spm/login/current/user"
		field   = "/ds/dataset/field/custom/:tableId/:fieldId"
	)
	return []route{
		{http.MethodPost, records, flow.ScopeRecordsWrite, s.postRecords},
		{http.MethodPatch, user, flow.ScopeUserWrite, s.patchUser},
		{http.MethodGet, user, flow.ScopeRead, s.getUser},
		{http.MethodDelete, field, flow.ScopeFieldsWrite, s.deleteField},
		{http.MethodPut, field, flow.ScopeFieldsWrite, s.putField},
		{http.MethodGet, field, flow.ScopeRead, s.getField},
		{http.MethodGet, "/openapi.json", noScope, s.getOpenAPI},
		{http.MethodGet, "/docs", noScope, s.getDocs},
	}
}

func (s *Server) routes() {
	for _, r := range s.table() {
		s.engine.Handle(r.method, r.path, s.guarded(r.method+" "+r.path, r.scope, r.handle))
		if r.method == http.MethodGet { // the HTTP server omits the body
			s.engine.Handle(http.MethodHead, r.path, s.guarded("HEAD "+r.path, r.scope, r.handle))
		}
	}
	s.engine.NoRoute(s.guarded("none", noScope, func(*call) error {
		return refuse(codeNoRoute, "/openapi.json lists the routes")
	}))
	s.engine.NoMethod(s.guarded("none", noScope, func(c *call) error {
		return refuse(codeMethod, "allowed here: "+c.w.Header().Get("Allow"))
	}))
}

func newEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	// Paths are taken literally: no redirects, and segments are decoded once, here (gin
	// would decode + as a space).
	e.RedirectTrailingSlash = false
	e.UseEscapedPath = true
	e.UnescapePathValues = false
	return e
}

// guarded wraps a handler in the common steps of requests: id, counters, token, scope, rate,
// and an answer in every case.
func (s *Server) guarded(route string, scope flow.Scope, h handler) gin.HandlerFunc {
	m := s.metrics.route(route)
	return func(c *gin.Context) {
		call := &call{w: c.Writer, r: c.Request, c: c, id: newRequestID(), ref: clientsID(c.Request.Header), start: time.Now()}
		c.Writer.Header()["X-Request-Id"] = []string{cmp.Or(call.ref, call.id)}
		s.metrics.inFlight.Inc()
		defer func() {
			s.metrics.inFlight.Dec()
			if v := recover(); v != nil {
				s.panicked(call, c.Writer.Written(), v)
			}
			took := time.Since(call.start)
			m.answered(c.Writer.Status())
			m.seconds.Observe(took.Seconds())
			s.logAccess(call, scope, took)
		}()
		err := s.admit(call, scope)
		if err == nil {
			err = h(call)
		}
		if err != nil {
			s.refuse(call, err)
		}
	}
}

// admit authenticates, authorizes, and rate-limits a call.
func (s *Server) admit(c *call, scope flow.Scope) error {
	if scope == noScope {
		return nil
	}
	if waited := budget.Waited(accept.Connection(c.r.Context())); waited > s.cfg.longest() {
		return refuse(codeOverloaded, fmt.Sprintf("the request waited %.0f s to be read, and nothing of it was stored", waited.Seconds()))
	}
	who, err := s.auth.Authenticate(c.r.Header.Get("Authorization"))
	c.named = cmp.Or(who.Subject, c.c.GetString(userKey))
	if err != nil {
		return tokenRefusal(err)
	}
	c.who = who
	if err := s.rates.admit(who, c.w.Header(), c.start); err != nil {
		return err
	}
	if !who.May(scope) {
		return &refusal{
			code:      codeScopeMissing,
			detail:    fmt.Sprintf("the access token lacks the scope %s", scope),
			challenge: fmt.Sprintf(`error="insufficient_scope", scope="%s"`, scope),
		}
	}
	if !accepts(c.r.Header, "application/json", "application/problem+json") {
		return refuse(codeNotAcceptable, "answers are application/json or application/problem+json")
	}
	return nil
}

// publishing is the context in which a call is published. A call that outlives its time, as in a
// process that was suspended, is not published any more: its client may have sent it to another
// api, and the deduplication window may have passed.
func (s *Server) publishing(c *call) (context.Context, context.CancelFunc) {
	end := time.Now().Add(s.cfg.PublishTimeout)
	if last := c.start.Add(s.cfg.longest()); last.Before(end) {
		end = last
	}
	return context.WithDeadline(c.r.Context(), end)
}

func tokenRefusal(err error) error {
	switch {
	case errors.Is(err, flow.ErrTokenMissing):
		return refuse(codeTokenMissing, "send the access token in the Authorization header, bare or after Bearer")
	case errors.Is(err, flow.ErrTokenInvalid):
		return &refusal{code: codeTokenInvalid, detail: err.Error(), challenge: `error="invalid_token"`}
	case errors.Is(err, flow.ErrTokenUnverified):
		return refuse(codeTokenUnverified, err.Error())
	}
	return err
}

// refuse answers a failure, and logs it if internal.
func (s *Server) refuse(c *call, err error) {
	r := refusalOf(err)
	s.metrics.rejections.WithLabelValues(string(r.code)).Inc()
	s.rejected.note(c, byCode(r.code))
	if r.code == codeInternal {
		s.log.ErrorContext(c.r.Context(), "request failed", "request_id", c.id, "client_request_id", c.ref, "path", c.r.URL.Path, "error", err)
	}
	if r.code == codeBodyTimeout || c.r.Context().Err() != nil {
		// The deadline that ended the body has also ended the context of later requests on
		// the connection.
		c.w.Header().Set("Connection", "close")
	}
	if c.elastic() {
		s.swallow(c)
		r.answerElastic(c.w)
		return
	}
	s.hurry(c)
	r.answer(c.w, c.id)
}

// hurry bounds the wait of the HTTP server for the rest of an unread body: it reads some of it
// before it sends the answer.
func (s *Server) hurry(c *call) {
	if c.r.ContentLength != 0 {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(s.cfg.BodyGrace)) // fails only without a connection
	}
}

// panicked answers after a panic. It is logged once, under the id that the client got.
func (s *Server) panicked(c *call, answered bool, v any) {
	if v == http.ErrAbortHandler {
		panic(v)
	}
	s.metrics.panics.Inc()
	s.metrics.rejections.WithLabelValues(string(codeInternal)).Inc()
	s.log.ErrorContext(c.r.Context(), "request panicked", "request_id", c.id, "client_request_id", c.ref, "path", c.r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	if answered {
		panic(http.ErrAbortHandler) // a partial answer must not look complete
	}
	r := refuse(codeInternal, "the request could not be handled; its id is in the log")
	if c.elastic() {
		r.answerElastic(c.w)
		return
	}
	r.answer(c.w, c.id)
}

// newRequestID makes a random UUID (RFC 9562, version 4). It protects nothing, so the fast
// generator suffices.
func newRequestID() string {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], mrand.Uint64())
	binary.NativeEndian.PutUint64(b[8:], mrand.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], b[0:4])
	hex.Encode(text[9:13], b[4:6])
	hex.Encode(text[14:18], b[6:8])
	hex.Encode(text[19:23], b[8:10])
	hex.Encode(text[24:36], b[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// clientsID is the client's own id of a request, for its logs; empty if absent or unsafe.
func clientsID(h http.Header) string {
	values := h["X-Request-Id"]
	if len(values) != 1 || len(values[0]) > 128 {
		return ""
	}
	for _, c := range []byte(values[0]) {
		if c <= 0x20 || c > 0x7e {
			return ""
		}
	}
	return values[0]
}

// accepts reports whether the Accept header allows one of the media types.
func accepts(h http.Header, offers ...string) bool {
	values := strings.Join(h["Accept"], ",")
	if values == "" || values == "*/*" {
		return true
	}
	for _, choice := range strings.Split(values, ",") {
		media, params, err := mime.ParseMediaType(choice)
		if err != nil {
			continue
		}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil && q <= 0 {
			continue
		}
		group, _ := strings.CutSuffix(media, "*")
		for _, offer := range offers {
			if media == "*/*" || media == offer || group != media && strings.HasPrefix(offer, group) {
				return true
			}
		}
	}
	return false
}

// rates limits the requests of a subject, whatever token it uses, so that fresh tokens do not
// evade the limit.
type rates struct {
	otherwise float64 // of tokens without a rate; 0: no limit

	mu       sync.Mutex
	subjects map[string]*rate.Limiter
}

func newRates(otherwise float64) *rates {
	return &rates{otherwise: otherwise, subjects: make(map[string]*rate.Limiter)}
}

// maxLimiters bounds the memory of limiters, about 2 MiB.
const maxLimiters = 10_000

// admit counts a request of the caller, reports the remaining ones in headers, and refuses it
// if there are none. The burst is the requests of one second.
func (r *rates) admit(who flow.Caller, h http.Header, now time.Time) error {
	perSecond := who.Rate
	if perSecond == 0 {
		perSecond = r.otherwise
	}
	if perSecond == 0 {
		return nil
	}
	l := r.limiter(who.Subject, perSecond, now)
	allowed := l.AllowN(now, 1)
	tokens := l.TokensAt(now)
	untilNext := time.Duration(0)
	if tokens < 1 {
		untilNext = time.Duration((1 - tokens) / perSecond * float64(time.Second))
	}
	seconds := strconv.Itoa(int(math.Ceil(untilNext.Seconds())))
	h.Set("RateLimit-Policy", `"requests";q=`+strconv.Itoa(l.Burst())+`;w=`+strconv.Itoa(window(perSecond)))
	h.Set("RateLimit", `"requests";r=`+strconv.Itoa(max(0, int(tokens)))+`;t=`+seconds)
	if !allowed {
		return &refusal{code: codeRateLimited, detail: "the subject exceeds its request rate", retry: untilNext}
	}
	return nil
}

// window is the seconds in which burst(perSecond) requests may be made.
func window(perSecond float64) int { return max(1, int(math.Ceil(1/perSecond))) }

func burst(perSecond float64) int { return max(1, int(math.Ceil(perSecond))) }

func (r *rates) limiter(subject string, perSecond float64, now time.Time) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.subjects[subject]
	if !ok {
		if len(r.subjects) >= maxLimiters {
			r.forget(now)
		}
		l = rate.NewLimiter(rate.Limit(perSecond), burst(perSecond))
		r.subjects[subject] = l
	}
	if l.Limit() != rate.Limit(perSecond) { // the token file changed
		l.SetLimitAt(now, rate.Limit(perSecond))
		l.SetBurstAt(now, burst(perSecond))
	}
	return l
}

// forget drops the limiters that are full again, or if there are none, all of them, to bound
// memory.
func (r *rates) forget(now time.Time) {
	for subject, l := range r.subjects {
		if l.TokensAt(now) >= float64(l.Burst()) {
			delete(r.subjects, subject)
		}
	}
	if len(r.subjects) >= maxLimiters {
		clear(r.subjects)
	}
}
