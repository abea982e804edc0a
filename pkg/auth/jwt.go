package auth

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"sluice/pkg/flow"
)

// Signatures that are accepted. Public keys and a secret never share a list: a
// token signed with a public key as if it were a secret would pass otherwise.
var (
	publicAlgorithms = []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
	secretAlgorithms = []jose.SignatureAlgorithm{jose.HS256}
)

// refetch is the shortest interval of fetches caused by unknown key ids.
const refetch = 10 * time.Second

// verifier checks JWTs. Safe for concurrent use.
type verifier struct {
	cfg     JWT
	log     *slog.Logger
	metrics *metrics
	client  *http.Client
	keys    atomic.Pointer[keyset] // nil until fetched

	mu     sync.Mutex // one refresh at a time
	file   file
	asked  time.Time // time of the last fetch
	broken string    // last error, so that it is logged once
}

func newVerifier(cfg JWT, log *slog.Logger, m *metrics) (*verifier, error) {
	v := &verifier{cfg: cfg, log: log, metrics: m, client: newClient(), file: file{path: cmp.Or(cfg.JWKS, cfg.SecretFile)}}
	if !cfg.remote() {
		if v.refresh(context.Background()); v.keys.Load() == nil {
			return nil, fmt.Errorf("JWT keys of %s: %s", v.file.path, v.broken)
		}
		if v.keys.Load().none() {
			return nil, fmt.Errorf("JWT keys of %s: it has no public signature key", v.file.path)
		}
	}
	return v, nil
}

func (v *verifier) check() error {
	if v.keys.Load() == nil {
		return errors.New("the JWT keys are not fetched yet")
	}
	return nil
}

// claims are the members of a token that Sluice reads.
type claims struct {
	jwt.Claims
	Source  string `json:"source"`  // the engine whose records it may post
	Tables  names  `json:"tables"`  // dataset tables it may touch
	Tenants names  `json:"tenants"` // tenants whose records it may post
	Scope   scopes `json:"scope"`   // RFC 8693: names separated by spaces
	Scp     scopes `json:"scp"`     // an array instead, from some issuers
}

// names is an array of names, or one name. Absent it is nil: all. Empty or null: none.
type names []string

func (n *names) UnmarshalJSON(b []byte) error {
	var one string
	list := []string{}
	if json.Unmarshal(b, &one) == nil {
		if one != "" {
			list = append(list, one)
		}
	} else if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("not a name or a list of names")
	}
	*n = list
	return nil
}

// scopes is a string of names separated by spaces, or an array of names.
type scopes []string

func (s *scopes) UnmarshalJSON(b []byte) error {
	var one string
	var many []string
	if json.Unmarshal(b, &one) == nil {
		many = strings.Fields(one)
	} else if err := json.Unmarshal(b, &many); err != nil {
		return errors.New("not a string or a list of strings")
	}
	*s = append(*s, many...)
	return nil
}

// ours are the scopes of Sluice; a token may serve other services too.
func (v *verifier) ours(names []string) (found []flow.Scope) {
	for _, name := range names {
		name, ok := strings.CutPrefix(name, v.cfg.ScopePrefix)
		if scope := flow.Scope(name); ok && slices.Contains(flow.Scopes(), scope) && !slices.Contains(found, scope) {
			found = append(found, scope)
		}
	}
	return found
}

// types are the accepted values of typ: a plain JWT or an access token (RFC 9068). A token
// for another purpose, such as logout, is refused (RFC 8725, 3.11).
var types = []string{"", "jwt", "at+jwt"}

func typed(header jose.Header) bool {
	typ, _ := header.ExtraHeaders[jose.HeaderType].(string)
	return slices.Contains(types, strings.TrimPrefix(strings.ToLower(typ), "application/"))
}

// verify checks a token whose SHA-256 is digest.
func (v *verifier) verify(token string, digest [sha256.Size]byte) (flow.Caller, error) {
	now := time.Now()
	keys := v.keys.Load()
	if keys != nil {
		if id, ok := keys.recall(digest, now); ok {
			return id, nil
		}
	}
	algorithms := publicAlgorithms
	if v.cfg.SecretFile != "" {
		algorithms = secretAlgorithms
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return flow.Caller{}, fmt.Errorf("%w: not a JWT with an accepted signature algorithm", flow.ErrTokenInvalid)
	}
	if !typed(parsed.Headers[0]) {
		return flow.Caller{}, fmt.Errorf("%w: its typ is for another purpose", flow.ErrTokenInvalid)
	}
	found, keys, err := v.signed(parsed)
	if err != nil {
		return flow.Caller{}, err
	}
	ok, err := v.accept(found, now)
	if err != nil {
		return flow.Caller{}, err
	}
	keys.remember(digest, ok)
	return ok.identity, nil
}

// signed returns the claims of a token signed by one of the keys in force, and their set.
func (v *verifier) signed(token *jwt.JSONWebToken) (claims, *keyset, error) {
	var c claims
	keys := v.keys.Load()
	if v.cfg.SecretFile != "" {
		if err := token.Claims(keys.secret, &c); err != nil {
			return c, nil, fmt.Errorf("%w: its signature or claims are invalid", flow.ErrTokenInvalid)
		}
		return c, keys, nil
	}
	header := token.Headers[0]
	var candidates []jose.JSONWebKey
	if keys != nil {
		candidates = keys.candidates(header.KeyID, header.Algorithm)
	}
	if len(candidates) == 0 && v.cfg.remote() {
		// Probably signed with a key newer than the last fetch.
		v.refreshSoon()
		if keys = v.keys.Load(); keys == nil {
			return c, nil, flow.ErrTokenUnverified
		}
		candidates = keys.candidates(header.KeyID, header.Algorithm)
	}
	for _, key := range candidates {
		c = claims{}
		if token.Claims(key, &c) == nil {
			return c, keys, nil
		}
	}
	return c, nil, fmt.Errorf("%w: no key in force signed it, or its claims are invalid", flow.ErrTokenInvalid)
}

// accept checks the claims of a token with a valid signature.
func (v *verifier) accept(c claims, now time.Time) (verified, error) {
	expected := jwt.Expected{Issuer: v.cfg.Issuer, Time: now}
	if v.cfg.Audience != "" {
		expected.AnyAudience = jwt.Audience{v.cfg.Audience}
	}
	subject := v.cfg.SubjectPrefix + c.Subject
	var why string
	switch err := c.ValidateWithLeeway(expected, v.cfg.Leeway); {
	case errors.Is(err, jwt.ErrExpired):
		why = "it has expired"
	case errors.Is(err, jwt.ErrNotValidYet), errors.Is(err, jwt.ErrIssuedInTheFuture):
		why = "it is not valid yet"
	case errors.Is(err, jwt.ErrInvalidIssuer):
		why = "it has another issuer"
	case errors.Is(err, jwt.ErrInvalidAudience):
		why = "it is for another audience"
	case err != nil:
		why = "its claims are invalid"
	case c.Expiry == nil:
		why = "it never expires"
	case c.Source != "" && !validName(c.Source):
		why = "its source is not " + aName
	case checkNames(c.Tables) != nil:
		why = "its tables are not usable names"
	case checkNames(c.Tenants) != nil:
		why = "its tenants are not usable names"
	case !validName(c.Subject) || len(subject) > maxName:
		why = "it has no usable subject"
	}
	if why != "" {
		return verified{}, fmt.Errorf("%w: %s", flow.ErrTokenInvalid, why)
	}
	ok := verified{
		identity: flow.Caller{Subject: subject, Source: cmp.Or(c.Source, subject), Scopes: v.ours(append(c.Scope, c.Scp...)), Tables: c.Tables, Tenants: c.Tenants},
		until:    c.Expiry.Time().Add(v.cfg.Leeway),
	}
	if c.NotBefore != nil {
		ok.from = c.NotBefore.Time().Add(-v.cfg.Leeway)
	}
	return ok, nil
}

// refreshSoon fetches the keys unless that was done recently: tokens with invented key
// ids must not flood the key server.
func (v *verifier) refreshSoon() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asked.IsZero() || time.Since(v.asked) >= refetch {
		v.refreshLocked(context.Background())
	}
}

// refresh loads changed keys from the file or URL. If that fails, the previous keys stay
// in force.
func (v *verifier) refresh(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refreshLocked(ctx)
}

func (v *verifier) refreshLocked(ctx context.Context) {
	raw, err := v.read(ctx)
	if err == nil && raw == nil {
		return // the file has not changed
	}
	var keys *keyset
	switch {
	case err != nil:
	case v.cfg.SecretFile != "":
		keys, err = parseSecret(raw)
	default:
		keys, err = parseKeys(raw)
	}
	v.metrics.reloaded(sourceKeys, err)
	switch old := v.keys.Load(); {
	case err != nil && err.Error() != v.broken:
		v.broken = err.Error()
		v.log.Error("JWT keys are invalid; the previous keys stay in force", "error", err)
	case err != nil:
	case old == nil || !bytes.Equal(old.raw, raw):
		v.broken = ""
		v.keys.Store(keys)
		if keys.none() {
			v.log.Error("the JSON Web Key Set has no public signature key: every JWT is rejected")
			return
		}
		v.log.Info("JWT keys are in force", "keys", max(len(keys.keys), 1))
	default:
		v.broken = ""
	}
}

// read reads the keys from their file or URL; nil from an unchanged file.
func (v *verifier) read(ctx context.Context) ([]byte, error) {
	if !v.cfg.remote() {
		return v.file.changed()
	}
	v.asked = time.Now()
	return fetch(ctx, v.client, v.cfg.JWKS)
}
