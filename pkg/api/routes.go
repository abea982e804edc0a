package api

import (
	"cmp"
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

	"sluice/pkg/flow"
)

// call is one request while it is handled.
type call struct {
	w   http.ResponseWriter
	r   *http.Request
	c   *gin.Context
	id  string      // of the request, ours: in a problem and in the log
	ref string      // what the client calls it, if it says so: in its answer, and in the log
	who flow.Caller // zero on routes that need no token

	named string // the subject that it may be of, whether its token is good or not
}

// elastic says whether it came where Elasticsearch is spoken.
func (c *call) elastic() bool { return c.c.GetBool(elasticKey) }

// handler handles a call; an error becomes a problem in the answer.
type handler func(*call) error

// noScope is the scope of routes that need no token.
const noScope flow.Scope = ""

// route is one operation.
type route struct {
	method, path string // the path as gin has it
	scope        flow.Scope
	handle       handler
}

// table is all there is, in one place.
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
		if r.method == http.MethodGet { // the HTTP server leaves the body out
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
	// A path means what it says: nothing is redirected, and segments are
	// decoded once, by us (gin would take + for a space).
	e.RedirectTrailingSlash = false
	e.UseEscapedPath = true
	e.UnescapePathValues = false
	return e
}

// guarded wraps a handler in what every request goes through: an id, a
// counter, the token, its scope and its rate, and an answer whatever happens.
func (s *Server) guarded(route string, scope flow.Scope, h handler) gin.HandlerFunc {
	m := s.metrics.route(route)
	return func(c *gin.Context) {
		start := time.Now()
		call := &call{w: c.Writer, r: c.Request, c: c, id: newRequestID(), ref: clientsID(c.Request.Header)}
		c.Writer.Header()["X-Request-Id"] = []string{cmp.Or(call.ref, call.id)}
		s.spans.begin(call, route)
		s.metrics.inFlight.Inc()
		defer func() {
			s.metrics.inFlight.Dec()
			if v := recover(); v != nil {
				s.panicked(call, c.Writer.Written(), v)
			}
			took := time.Since(start)
			m.answered(c.Writer.Status())
			s.spans.observe(call, m.seconds, took)
			s.logAccess(call, scope, took)
			s.spans.end(call)
		}()
		err := s.admit(call, scope, start)
		if err == nil {
			err = h(call)
		}
		if err != nil {
			s.refuse(call, err)
		}
	}
}

// admit lets a call through that may make this request, now.
func (s *Server) admit(c *call, scope flow.Scope, now time.Time) error {
	if scope == noScope {
		return nil
	}
	who, err := s.auth.Authenticate(c.r.Header.Get("Authorization"))
	c.named = cmp.Or(who.Subject, c.c.GetString(userKey))
	if err != nil {
		return tokenRefusal(err)
	}
	c.who = who
	if err := s.rates.admit(who, c.w.Header(), now); err != nil {
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
		return refuse(codeNotAcceptable, "answers are application/json, or application/problem+json")
	}
	return nil
}

func tokenRefusal(err error) error {
	switch {
	case errors.Is(err, flow.ErrTokenMissing):
		return refuse(codeTokenMissing, "send it in the Authorization header, bare or after Bearer")
	case errors.Is(err, flow.ErrTokenInvalid):
		return &refusal{code: codeTokenInvalid, detail: err.Error(), challenge: `error="invalid_token"`}
	case errors.Is(err, flow.ErrTokenUnverified):
		return refuse(codeTokenUnverified, err.Error())
	}
	return err
}

// refuse answers a failure, and logs it when it is our fault.
func (s *Server) refuse(c *call, err error) {
	r := refusalOf(err)
	s.metrics.rejections.WithLabelValues(string(r.code)).Inc()
	s.rejected.note(c, byCode(r.code))
	s.spans.refused(c, r.code, byCode(r.code).Status)
	if r.code == codeInternal {
		s.log.ErrorContext(c.r.Context(), "request failed", "request_id", c.id, "client_request_id", c.ref, "path", c.r.URL.Path, "error", err)
	}
	if r.code == codeBodyTimeout || c.r.Context().Err() != nil {
		// The deadline that ended the body, or met its end, has ended the
		// context of whatever else would come on the connection.
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

// hurry bounds how long the HTTP server waits for what is left of a body that
// is not read: it takes some of it in before it sends the answer.
func (s *Server) hurry(c *call) {
	if c.r.ContentLength != 0 {
		_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(s.cfg.BodyGrace)) // or there is no connection
	}
}

// panicked answers after a defect. The log has it once, under the id that the
// client was given.
func (s *Server) panicked(c *call, answered bool, v any) {
	if v == http.ErrAbortHandler {
		panic(v)
	}
	s.metrics.panics.Inc()
	s.metrics.rejections.WithLabelValues(string(codeInternal)).Inc()
	s.spans.refused(c, codeInternal, http.StatusInternalServerError)
	s.log.ErrorContext(c.r.Context(), "request panicked", "request_id", c.id, "client_request_id", c.ref, "path", c.r.URL.Path, "panic", v, "stack", string(debug.Stack()))
	if answered {
		panic(http.ErrAbortHandler) // half an answer must not look like a whole one
	}
	r := refuse(codeInternal, "the request could not be handled; its id is in the log")
	if c.elastic() {
		r.answerElastic(c.w)
		return
	}
	r.answer(c.w, c.id)
}

// newRequestID makes a random UUID (RFC 9562, version 4). It names a request
// and protects nothing, so the fast generator will do.
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

// clientsID is what a client calls its request, to find it again in its own
// logs; empty when it says nothing that can be repeated.
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

// accepts tells whether the Accept header leaves room for one of the media
// types.
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

// rates limits how many requests a subject makes, whatever token it uses, so
// that fresh tokens are no way around the limit.
type rates struct {
	otherwise float64 // for tokens that say nothing; 0: no limit

	mu       sync.Mutex
	subjects map[string]*rate.Limiter
}

func newRates(otherwise float64) *rates {
	return &rates{otherwise: otherwise, subjects: make(map[string]*rate.Limiter)}
}

// maxLimiters bounds the memory of limiters, about 2 MiB.
const maxLimiters = 10_000

// admit counts one request of the caller, tells it in the header how many it
// has left, and refuses it when that is none. A subject may make as many
// requests at once as it may make in a second.
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
		return &refusal{code: codeRateLimited, detail: "this subject makes more requests than it may", retry: untilNext}
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

// forget drops the limiters that are back where a new one would start. When
// there are none of those, all of them: better than growing for ever.
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
