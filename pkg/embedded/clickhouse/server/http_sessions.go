package server

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"time"

	"sluice/pkg/embedded/clickhouse/library"
)

const (
	defaultSessionTime = 60 * time.Second
	maxSessionTime     = time.Hour
	maxSessions        = 256 // persistent sessions at a time: each holds an engine connection
)

// sessions are the sessions with an id over HTTP: they keep settings, the current database,
// and temporary tables between requests.
type sessions struct {
	mu   sync.Mutex
	kept map[sessionKey]*keptSession
}

// sessionKey: a session belongs to one user.
type sessionKey struct{ user, id string }

type keptSession struct {
	session *session
	busy    bool
	expires *time.Timer // while it is idle
}

func newSessions() *sessions { return &sessions{kept: map[sessionKey]*keptSession{}} }

// take returns the session of a request and its release. Without an id it is a new one.
func (k *sessions) take(ctx context.Context, e *engine, ask *request, who user) (*session, func(), error) {
	if ask.session == "" {
		s, err := newSession(ctx, e, ask.database, who, ask.readonly)
		if err != nil {
			return nil, nil, err
		}
		return s, s.close, nil
	}
	key := sessionKey{who.Name, ask.session}
	k.mu.Lock()
	kept := k.kept[key]
	switch {
	case kept != nil && kept.busy:
		k.mu.Unlock()
		return nil, nil, library.Exceptionf("SESSION_IS_LOCKED", "Session %.64s is locked by a concurrent client", ask.session)
	case kept != nil:
		kept.expires.Stop()
	case ask.sessionCheck:
		k.mu.Unlock()
		return nil, nil, library.Exceptionf("SESSION_NOT_FOUND", "Session %.64s not found", ask.session)
	case len(k.kept) >= maxSessions:
		k.mu.Unlock()
		return nil, nil, library.Exceptionf("TOO_MANY_SIMULTANEOUS_QUERIES", "Too many sessions. Maximum: %d", maxSessions)
	default:
		kept = &keptSession{}
		k.kept[key] = kept
	}
	kept.busy = true
	k.mu.Unlock()

	giveBack := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		kept.busy = false
		if kept.session == nil {
			delete(k.kept, key)
			return
		}
		kept.session.readonly = false
		kept.expires = time.AfterFunc(ask.sessionTime, func() { k.expire(key, kept) })
	}
	if kept.session == nil {
		s, err := newSession(ctx, e, ask.database, who, false)
		if err != nil {
			giveBack()
			return nil, nil, err
		}
		kept.session = s
	} else if ask.database != "" && ask.database != kept.session.database {
		if err := kept.session.use(ctx, ask.database); err != nil {
			giveBack()
			return nil, nil, err
		}
	}
	kept.session.readonly = ask.readonly
	return kept.session, giveBack, nil
}

// expire closes a session after its timeout.
func (k *sessions) expire(key sessionKey, kept *keptSession) {
	k.mu.Lock()
	if kept.busy || k.kept[key] != kept {
		k.mu.Unlock()
		return
	}
	delete(k.kept, key)
	k.mu.Unlock()
	kept.session.close()
}

// close closes all sessions, after the last request
func (k *sessions) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, kept := range k.kept {
		if kept.expires != nil && kept.expires.Stop() {
			kept.session.close()
		}
		delete(k.kept, key)
	}
}

// readSession reads the session parameters of a request.
func (r *request) readSession(values url.Values) error {
	r.session = values.Get("session_id")
	r.sessionCheck = values.Get("session_check") == "1"
	r.sessionTime = defaultSessionTime
	text := values.Get("session_timeout")
	if text == "" {
		return nil
	}
	seconds, err := strconv.ParseUint(text, 10, 31)
	if err != nil || time.Duration(seconds)*time.Second > maxSessionTime {
		return library.Exceptionf("INVALID_SESSION_TIMEOUT", "Invalid session timeout: '%.32s'. Maximum: %d", text, int(maxSessionTime/time.Second))
	}
	r.sessionTime = time.Duration(seconds) * time.Second
	return nil
}
