package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Progress tells how far records are stored. *stream.Stream is the real one.
//
// Stored returns nil once everything that was published for the source before
// the call can be queried, or is set aside, and an error when ctx ends before.
type Progress interface {
	Stored(ctx context.Context, source string) error
}

const (
	defaultWait = 5 * time.Second  // of ?wait=stored
	longestWait = 30 * time.Second // whatever a client prefers
)

// waitOf is how long the answer may wait until what was posted is stored, 0 for
// not at all: ?wait=stored asks for it, and so does Prefer: wait=N, which also
// says for how many seconds.
func waitOf(r *http.Request) (wait time.Duration, preferred bool, err error) {
	if r.URL.RawQuery != "" {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if values, ok := query["wait"]; ok || err != nil {
			if err != nil || len(values) != 1 || values[0] != "stored" {
				return 0, false, refuse(codeBadParameter, "of the parameters of the address only wait=stored means something here")
			}
			wait = defaultWait
		}
	}
	if text, ok := preference(r.Header, "wait"); ok { // one that cannot be read is no preference (RFC 7240)
		if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
			wait, preferred = min(time.Duration(seconds)*time.Second, longestWait), true
		}
	}
	return wait, preferred, nil
}

// waited waits until what the caller has posted is stored, and says in the
// answer whether it is. It holds nothing of the request meanwhile. The records
// are durable in any case: a client that goes away changes nothing.
func (s *Server) waited(c *call, wait time.Duration, preferred bool) {
	// The time to write the answer begins when there is one.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(wait + 15*time.Second)) // or there is no connection
	ctx, cancel := context.WithTimeout(c.r.Context(), wait)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	stored, outcome := s.progress.Stored(ctx, c.who.Source) == nil, "late"
	if stored {
		outcome = "stored"
	}
	s.metrics.waits.WithLabelValues(outcome).Inc()
	c.w.Header()["Sluice-Stored"] = []string{strconv.FormatBool(stored)}
	if preferred {
		c.w.Header()["Preference-Applied"] = []string{"wait=" + strconv.Itoa(int(wait/time.Second))}
	}
}
