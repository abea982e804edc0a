package api

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"sluice/pkg/record"
)

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
func (r *rates) admit(who record.Identity, h http.Header, now time.Time) error {
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
