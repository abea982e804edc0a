package api

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// Rejected is a client that was rejected for its token, rights, rate, or body, by address and
// reason.
type Rejected struct {
	Subject string    `json:"subject"` // configured, or of a valid token; else unknown: a name may be a pasted token
	Address string    `json:"address"` // without port; of the proxy, if any
	Code    string    `json:"code"`    // of the problem
	Status  int       `json:"status"`
	Count   int       `json:"count"` // since First
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// unknownSubject is the subject of unauthenticated clients.
const unknownSubject = "unknown"

// rejected tracks recently rejected clients. Each is logged once in ten seconds, with the
// number of its other requests. Nothing here is a token, a header, or anything of a body.
type rejected struct {
	log     *slog.Logger
	metrics *metrics
	auth    Authenticator

	mu      sync.Mutex
	clients map[rejectedKey]*rejectedClient
}

// rejectedKey identifies a rejected client.
type rejectedKey struct {
	address, subject string
	code             code
}

type rejectedClient struct {
	first, last, logged time.Time
	count, others       int // others: since the last log line
}

const (
	// logEvery is the interval of log lines of one client.
	logEvery = 10 * time.Second
	// rejectedFor is how long a client is listed after its last rejection.
	rejectedFor = time.Hour
	// maxRejected bounds the memory of rejected clients, and the log lines when addresses
	// keep changing.
	maxRejected = 1024
)

func newRejected(log *slog.Logger, m *metrics, auth Authenticator) *rejected {
	return &rejected{log: log, metrics: m, auth: auth, clients: make(map[rejectedKey]*rejectedClient)}
}

// ofClient reports whether the client must change something; not for missing routes, early
// requests, or overload.
func ofClient(f failure) bool {
	switch f.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return f.Code == codeRateLimited || f.Code == codeDeadLettersFull
}

// note counts a rejected request, and logs it unless its client was logged recently.
func (j *rejected) note(c *call, f failure) {
	if !ofClient(f) {
		return
	}
	name, label := c.who.Subject, unknownSubject
	if j.auth.Configured(c.named) {
		name, label = c.named, c.named
	}
	j.metrics.rejected.WithLabelValues(label, string(f.Code)).Inc()
	key := rejectedKey{addressOf(c.r), cmp.Or(name, unknownSubject), f.Code}
	others, log := j.sample(key, time.Now())
	if !log {
		return
	}
	j.log.WarnContext(c.r.Context(), "client rejected", "security", true, "status", f.Status, "reason", string(f.Code),
		"address", key.address, "subject", key.subject, "route", c.c.FullPath(),
		"request_id", c.id, "client_request_id", c.ref, "others", others)
}

// sample reports whether to log a rejection now, and how many of its client were not logged.
func (j *rejected) sample(key rejectedKey, now time.Time) (others int, log bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	client, ok := j.clients[key]
	switch {
	case !ok && len(j.clients) >= maxRejected && !j.forget(now):
		return 0, false // the counter counts it
	case !ok:
		client = &rejectedClient{first: now}
		j.clients[key] = client
	}
	client.last = now
	client.count++
	if now.Sub(client.logged) < logEvery {
		client.others++
		return 0, false
	}
	others, client.others, client.logged = client.others, 0, now
	return others, true
}

// forget drops the clients that are no longer rejected, and reports whether a slot is free.
func (j *rejected) forget(now time.Time) bool {
	for key, client := range j.clients {
		if now.Sub(client.last) >= logEvery {
			delete(j.clients, key)
		}
	}
	return len(j.clients) < maxRejected
}

// Rejected are the clients rejected within the last hour, the latest first; at most 1024.
func (s *Server) Rejected() []Rejected {
	s.rejected.mu.Lock()
	defer s.rejected.mu.Unlock()
	all := []Rejected{}
	for key, client := range s.rejected.clients {
		if time.Since(client.last) < rejectedFor {
			all = append(all, Rejected{key.subject, key.address, string(key.code), byCode(key.code).Status, client.count, client.first, client.last})
		}
	}
	slices.SortFunc(all, func(a, b Rejected) int { return b.Last.Compare(a.Last) })
	return all
}

// logAccess logs a request, if the access log is on.
func (s *Server) logAccess(c *call, scope flow.Scope, took time.Duration) {
	if !s.cfg.AccessLog {
		return
	}
	s.log.InfoContext(c.r.Context(), "request", "method", c.r.Method, "route", c.c.FullPath(), "status", c.c.Writer.Status(),
		"bytes_in", max(c.r.ContentLength, 0), "bytes_out", max(c.c.Writer.Size(), 0), "seconds", took.Seconds(),
		"address", addressOf(c.r), "subject", c.who.Subject, "scope", string(scope),
		"request_id", c.id, "client_request_id", c.ref)
}
