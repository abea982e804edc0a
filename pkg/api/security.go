package api

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"sluice/pkg/record"
)

// sightings leave a trace in the log of what was refused to whom, and of every request where
// that is wanted. Neither holds a token, a header or anything of a body.
//
// Refusals are sampled: a client that tries a thousand tokens a second is one
// line in ten seconds, with the number of the others.
type sightings struct {
	log    *slog.Logger
	access bool // every request, too

	mu   sync.Mutex
	told map[sighting]*told
}

// sighting is what counts as the same.
type sighting struct {
	address string // without the port
	subject string // empty when the token was not good
	code    code
}

type told struct {
	since  time.Time // when it was told last
	others int       // refusals since
}

const (
	// tellEvery is how often the same is told.
	tellEvery = 10 * time.Second
	// maxTold bounds the memory of what was told, and how much is told when
	// addresses change all the time.
	maxTold = 1024
)

func newSightings(log *slog.Logger, access bool) *sightings {
	return &sightings{log: log, access: access, told: make(map[sighting]*told)}
}

// refused notes a refusal, if it is one that operators should be able to look
// into: who may not, or may not so often.
func (t *sightings) refused(c *call, r *refusal, status int) {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
	default:
		return
	}
	seen := sighting{addressOf(c.r), c.who.Subject, r.code}
	others, tell := t.sample(seen, time.Now())
	if !tell {
		return
	}
	t.log.WarnContext(c.r.Context(), "request refused", "security", true, "status", status, "reason", string(r.code),
		"address", seen.address, "subject", seen.subject, "route", c.c.FullPath(),
		"request_id", c.id, "client_request_id", c.ref, "others", others)
}

// sample tells whether a refusal is told now, and how many like it were not.
func (t *sightings) sample(seen sighting, now time.Time) (others int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, ok := t.told[seen]
	switch {
	case ok && now.Sub(last.since) < tellEvery:
		last.others++
		return 0, false
	case ok:
		others = last.others
		*last = told{since: now}
		return others, true
	case len(t.told) >= maxTold && !t.forget(now):
		return 0, false // the counter has it
	}
	t.told[seen] = &told{since: now}
	return 0, true
}

// forget drops what was told long ago, and tells whether there is room now.
func (t *sightings) forget(now time.Time) bool {
	for seen, last := range t.told {
		if now.Sub(last.since) >= tellEvery {
			delete(t.told, seen)
		}
	}
	return len(t.told) < maxTold
}

// answered notes a request, where every one is wanted.
func (t *sightings) answered(c *call, scope record.Scope, took time.Duration) {
	if !t.access {
		return
	}
	t.log.InfoContext(c.r.Context(), "request", "method", c.r.Method, "route", c.c.FullPath(), "status", c.c.Writer.Status(),
		"bytes_in", max(c.r.ContentLength, 0), "bytes_out", max(c.c.Writer.Size(), 0), "seconds", took.Seconds(),
		"address", addressOf(c.r), "subject", c.who.Subject, "scope", string(scope),
		"request_id", c.id, "client_request_id", c.ref)
}

// addressOf is where a connection comes from. Behind a proxy that is the proxy:
// what a header says of others anybody can write.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
