package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/flow"
	"sluice/pkg/option"
)

// Authenticator authenticates tokens. Authenticate is safe for concurrent use at any time.
type Authenticator struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	tokens  atomic.Pointer[table] // nil without a token file
	jwt     *verifier             // nil without JWTs

	mu     sync.Mutex // guards the fields below
	file   file
	broken string // last error of the file, so that it is logged once
}

// New reads the token file and the key file. Keys at a URL are fetched on first use.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Authenticator, error) {
	option.Defaults(&cfg)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	a := &Authenticator{cfg: cfg, log: log, metrics: newMetrics(reg), file: file{path: cfg.Tokens}}
	if cfg.Tokens != "" {
		if _, err := a.reload(); err != nil {
			return nil, fmt.Errorf("token file %s: %w", cfg.Tokens, err)
		}
	}
	if cfg.JWT.enabled() {
		v, err := newVerifier(cfg.JWT, log, a.metrics)
		if err != nil {
			return nil, err
		}
		a.jwt = v
	}
	return a, nil
}

// Authenticate returns the caller of an Authorization header: a token, bare or after
// "Bearer ". Its errors wrap flow.ErrTokenMissing, flow.ErrTokenInvalid, or
// flow.ErrTokenUnverified; that of an expired static token comes with its subject.
func (a *Authenticator) Authenticate(header string) (flow.Caller, error) {
	token := bare(header)
	if token == "" {
		return flow.Caller{}, flow.ErrTokenMissing
	}
	if len(token) > maxToken {
		return flow.Caller{}, flow.ErrTokenInvalid
	}
	digest := sha256.Sum256([]byte(token))
	e, ok := a.tokens.Load().find(digest)
	switch {
	case ok:
	case a.jwt != nil && strings.Count(token, ".") == 2:
		return a.jwt.verify(token, digest)
	default:
		if e, ok = a.added(digest); !ok {
			return flow.Caller{}, flow.ErrTokenInvalid
		}
	}
	if !e.expires.IsZero() && !time.Now().Before(e.expires) {
		return flow.Caller{Subject: e.identity.Subject}, fmt.Errorf("%w: it has expired", flow.ErrTokenInvalid)
	}
	return e.identity, nil
}

// added finds a token that was added to the file after the last check, so that the first
// request of a new engine is accepted. An unknown token costs one stat of the file.
func (a *Authenticator) added(digest [sha256.Size]byte) (entry, bool) {
	if a.cfg.Tokens == "" {
		return entry{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followTokens()
	return a.tokens.Load().find(digest)
}

// Configured reports whether the subject has a static token, expired or not.
func (a *Authenticator) Configured(subject string) bool {
	tokens := a.tokens.Load()
	return tokens != nil && tokens.subjects[subject]
}

// Tokens are the unexpired static tokens, unordered and without digests.
func (a *Authenticator) Tokens() []Entry {
	tokens := a.tokens.Load()
	if tokens == nil {
		return nil
	}
	var all []Entry
	now := time.Now()
	for _, e := range tokens.entries {
		if !e.expires.IsZero() && !now.Before(e.expires) {
			continue
		}
		i := e.identity
		all = append(all, Entry{Subject: i.Subject, Source: i.Source, Scopes: i.Scopes, Tables: i.Tables, Tenants: i.Tenants, Rate: i.Rate, Exclude: i.Exclude, Expires: e.expires})
	}
	return all
}

// maxToken bounds what is hashed and parsed for an unauthenticated caller.
const maxToken = 8 << 10

// bare strips the Bearer scheme, which is case-insensitive (RFC 9110, 11.1).
func bare(header string) string {
	header = strings.Trim(header, " \t")
	const scheme = "bearer"
	if len(header) >= len(scheme) && strings.EqualFold(header[:len(scheme)], scheme) {
		rest := header[len(scheme):]
		if rest == "" || rest[0] == ' ' || rest[0] == '\t' {
			return strings.Trim(rest, " \t")
		}
	}
	return header
}

// Check fails while tokens cannot be checked, for readiness.
func (a *Authenticator) Check(context.Context) error {
	if a.jwt != nil {
		return a.jwt.check()
	}
	return nil
}

// Run reloads the token file and the keys until ctx ends, then returns nil.
func (a *Authenticator) Run(ctx context.Context) error {
	reload := time.NewTicker(a.cfg.Reload)
	defer reload.Stop()
	refresh := time.NewTicker(a.cfg.JWT.Refresh)
	defer refresh.Stop()
	if a.jwt != nil {
		a.jwt.refresh(ctx)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reload.C:
			a.follow()
		case <-refresh.C:
			if a.jwt != nil && a.cfg.JWT.remote() {
				a.jwt.refresh(ctx)
			}
		}
	}
}

// follow reloads changed files.
func (a *Authenticator) follow() {
	if a.cfg.Tokens != "" {
		a.mu.Lock()
		a.followTokens()
		a.mu.Unlock()
	}
	if a.jwt != nil && !a.cfg.JWT.remote() {
		a.jwt.refresh(context.Background())
	}
}

// followTokens reloads the token file if it changed. A corrupt file is logged once; the last
// valid tokens stay in force. The caller holds mu.
func (a *Authenticator) followTokens() {
	changed, err := a.reload()
	switch {
	case err != nil && err.Error() != a.broken:
		a.broken = err.Error()
		a.log.Error("token file is invalid; the previous tokens stay in force", "path", a.cfg.Tokens, "error", err)
	case err == nil && changed:
		a.broken = ""
		a.log.Info("token file reloaded", "path", a.cfg.Tokens, "tokens", len(a.tokens.Load().entries))
	}
}

// reload loads the token file if it changed and is valid.
func (a *Authenticator) reload() (changed bool, err error) {
	content, err := a.file.changed()
	if err == nil && content == nil {
		return false, nil
	}
	var tokens *table
	if err == nil {
		tokens, err = parseTable(content, a.cfg.JWT.reserved())
	}
	a.metrics.reloaded(sourceTokens, err)
	if err != nil {
		return false, err
	}
	a.tokens.Store(tokens)
	a.metrics.tokens.Set(float64(len(tokens.entries)))
	return true, nil
}
