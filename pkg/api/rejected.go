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

// Rejected is a client that was rejected for its token, its rights, its rate, or its
// body, from one address for one reason.
type Rejected struct {
	Subject string    `json:"subject"` // configured, or of a good token; else unknown: a name may be a pasted token
	Address string    `json:"address"` // without the port; of a proxy, where there is one
	Code    string    `json:"code"`    // of the problem
	Status  int       `json:"status"`
	Count   int       `json:"count"` // since First
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// unknownSubject is the subject of a client that has no name.
const unknownSubject = "unknown"

// rejected are the clients that were rejected lately. Each is logged once in ten
// seconds, with the number of its other requests. Nothing here is a token, a header,
// or anything of a body.
type rejected struct {
	log     *slog.Logger
	metrics *metrics
	auth    Authenticator

	mu      sync.Mutex
	clients map[rejectedKey]*rejectedClient
}

// rejectedKey is what counts as the same.
type rejectedKey struct {
	address, subject string
	code             code
}

type rejectedClient struct {
	first, last, told time.Time
	count, others     int // others: since it was told
}

const (
	// tellEvery is how often the same is told.
	tellEvery = 10 * time.Second
	// rejectedFor is how long a client is listed that is not rejected any more.
	rejectedFor = time.Hour
	// maxRejected bounds the memory of rejected clients, and how much is told when
	// addresses change all the time.
	maxRejected = 1024
)

func newRejected(log *slog.Logger, m *metrics, auth Authenticator) *rejected {
	return &rejected{log: log, metrics: m, auth: auth, clients: make(map[rejectedKey]*rejectedClient)}
}

// ofClient tells whether the client has to change something: not whoever asks for what
// is not there, is early, or comes when there is no room.
func ofClient(f failure) bool {
	switch f.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return true
	}
	return f.Code == codeRateLimited || f.Code == codeDeadLettersFull
}

// note counts a request that was rejected, and logs it unless its like was told a
// moment ago.
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
	others, tell := j.sample(key, time.Now())
	if !tell {
		return
	}
	j.log.WarnContext(c.r.Context(), "client rejected", "security", true, "status", f.Status, "reason", string(f.Code),
		"address", key.address, "subject", key.subject, "route", c.c.FullPath(),
		"request_id", c.id, "client_request_id", c.ref, "others", others)
}

// sample tells whether a rejection is told now, and how many like it were not.
func (j *rejected) sample(key rejectedKey, now time.Time) (others int, tell bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	client, ok := j.clients[key]
	switch {
	case !ok && len(j.clients) >= maxRejected && !j.forget(now):
		return 0, false // the counter has it
	case !ok:
		client = &rejectedClient{first: now}
		j.clients[key] = client
	}
	client.last = now
	client.count++
	if now.Sub(client.told) < tellEvery {
		client.others++
		return 0, false
	}
	others, client.others, client.told = client.others, 0, now
	return others, true
}

// forget drops the clients that are not rejected any more, and tells whether there is
// room now.
func (j *rejected) forget(now time.Time) bool {
	for key, client := range j.clients {
		if now.Sub(client.last) >= tellEvery {
			delete(j.clients, key)
		}
	}
	return len(j.clients) < maxRejected
}

// Rejected are the clients that were rejected within the last hour, the latest first;
// at most 1024.
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

// logAccess logs a request, where every one is wanted.
func (s *Server) logAccess(c *call, scope flow.Scope, took time.Duration) {
	if !s.cfg.AccessLog {
		return
	}
	s.log.InfoContext(c.r.Context(), "request", "method", c.r.Method, "route", c.c.FullPath(), "status", c.c.Writer.Status(),
		"bytes_in", max(c.r.ContentLength, 0), "bytes_out", max(c.c.Writer.Size(), 0), "seconds", took.Seconds(),
		"address", addressOf(c.r), "subject", c.who.Subject, "scope", string(scope),
		"request_id", c.id, "client_request_id", c.ref)
}
