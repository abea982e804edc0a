package auth_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// signingKey is a private key with the published id of its public key.
type signingKey struct {
	id      string
	alg     jose.SignatureAlgorithm
	private crypto.Signer
}

func newECKey(t *testing.T, id string) signingKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	return signingKey{id, jose.ES256, key}
}

func newEdKey(t *testing.T, id string) signingKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	fatal.If(t, err)
	return signingKey{id, jose.EdDSA, key}
}

func keySet(t *testing.T, keys ...signingKey) string {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.private.Public(), KeyID: k.id, Algorithm: string(k.alg), Use: "sig"})
	}
	b, err := json.Marshal(set)
	fatal.If(t, err)
	return string(b)
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	opts := (&jose.SignerOptions{}).WithType("JWT")
	if id != "" {
		opts = opts.WithHeader("kid", id)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	fatal.If(t, err)
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	fatal.If(t, err)
	return token
}

// claimsWith are valid claims with changes; nil removes one.
func claimsWith(changes map[string]any) map[string]any {
	c := map[string]any{
		"sub": "engine-a", "iss": "https://id.example", "aud": []string{"sluice", "other"},
		"exp": time.Now().Add(time.Hour).Unix(), "scope": "records:write openid read",
	}
	for k, v := range changes {
		if c[k] = v; v == nil {
			delete(c, k)
		}
	}
	return c
}

func TestAJWTIsJudgedByItsSignatureAndClaims(t *testing.T) {
	key, other := newECKey(t, "k1"), newECKey(t, "k1")
	a := newAuth(t, auth.Config{JWT: auth.JWT{
		JWKS: tokenFile(t, keySet(t, key)), Issuer: "https://id.example", Audience: "sluice", Leeway: 10 * time.Second,
	}})
	now := time.Now()
	in := func(d time.Duration) int64 { return now.Add(d).Unix() }
	want := flow.Caller{Subject: "engine-a", Source: "engine-a", Scopes: []flow.Scope{flow.ScopeRecordsWrite, flow.ScopeRead}}
	tests := []struct {
		name    string
		changes map[string]any
		want    flow.Caller
		why     string // the reason of the refusal
	}{
		{"good", nil, want, ""},
		{"scopes as an array in scp", map[string]any{"scope": nil, "scp": []string{"read", "something"}}, flow.Caller{Subject: "engine-a", Source: "engine-a", Scopes: []flow.Scope{flow.ScopeRead}}, ""},
		{"scopes as text in scp", map[string]any{"scope": nil, "scp": "read admin"}, flow.Caller{Subject: "engine-a", Source: "engine-a", Scopes: []flow.Scope{flow.ScopeRead, flow.ScopeAdmin}}, ""},
		{"no scopes", map[string]any{"scope": nil}, flow.Caller{Subject: "engine-a", Source: "engine-a"}, ""},
		{"audience as text", map[string]any{"aud": "sluice"}, want, ""},
		{"expired within the leeway", map[string]any{"exp": in(-5 * time.Second)}, want, ""},
		{"a source of its own", map[string]any{"source": "cluster-a", "scope": "read"}, flow.Caller{Subject: "engine-a", Source: "cluster-a", Scopes: []flow.Scope{flow.ScopeRead}}, ""},
		{"a source far too long", map[string]any{"source": strings.Repeat("s", 257)}, flow.Caller{}, "source is not 1 to 256 bytes"},
		{"a source of a wrong type", map[string]any{"source": 7}, flow.Caller{}, "its claims are invalid"},
		{"expired", map[string]any{"exp": in(-time.Minute)}, flow.Caller{}, "it has expired"},
		{"never expires", map[string]any{"exp": nil}, flow.Caller{}, "it never expires"},
		{"valid since a moment ago", map[string]any{"nbf": in(-time.Minute)}, want, ""},
		{"valid in a minute", map[string]any{"nbf": in(time.Minute)}, flow.Caller{}, "it is not valid yet"},
		{"issued in the future", map[string]any{"iat": in(time.Hour)}, flow.Caller{}, "it is not valid yet"},
		{"another issuer", map[string]any{"iss": "https://evil.example"}, flow.Caller{}, "it has another issuer"},
		{"no issuer", map[string]any{"iss": nil}, flow.Caller{}, "it has another issuer"},
		{"another audience", map[string]any{"aud": []string{"other"}}, flow.Caller{}, "it is for another audience"},
		{"no audience", map[string]any{"aud": nil}, flow.Caller{}, "it is for another audience"},
		{"no subject", map[string]any{"sub": nil}, flow.Caller{}, "it has no usable subject"},
		{"a subject far too long", map[string]any{"sub": strings.Repeat("s", 257)}, flow.Caller{}, "it has no usable subject"},
		{"a subject with a control character", map[string]any{"sub": "a\x00b"}, flow.Caller{}, "it has no usable subject"},
		{"a subject with a space around it", map[string]any{"sub": "a "}, flow.Caller{}, "it has no usable subject"},
		{"a scope of a wrong type", map[string]any{"scope": 7}, flow.Caller{}, "its claims are invalid"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			token := sign(t, key.alg, key.private, key.id, claimsWith(tt.changes))
			for _, pass := range []string{"first", "from memory"} {
				got, err := a.Authenticate("Bearer " + token)
				fatal.When(t, tt.why == "" && err != nil, "%s: %v", pass, err)
				fatal.When(t, tt.why != "" && (!errors.Is(err, flow.ErrTokenInvalid) || !strings.Contains(err.Error(), tt.why)), "%s: got %v, want a refusal because %s", pass, err, tt.why)
				expect.Equal(t, fmt.Sprintf("%s: identity", pass), tt.want, got)
			}
		})
	}
	public, err := json.Marshal(jose.JSONWebKey{Key: key.private.Public()})
	fatal.If(t, err)
	forged := []struct{ name, token string }{
		{"signed by another key of the same id", sign(t, other.alg, other.private, "k1", claimsWith(nil))},
		{"signed under an unknown id", sign(t, key.alg, key.private, "k2", claimsWith(nil))},
		{"signed with the public key as a secret", sign(t, jose.HS256, public, "k1", claimsWith(nil))},
		{"not signed", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJlbmdpbmUtYSJ9."},
		{"cut off", sign(t, key.alg, key.private, key.id, claimsWith(nil))[:120]},
	}
	for _, tt := range forged {
		t.Run(tt.name, func(t *testing.T) {
			answers(t, a, "forged", tt.token, flow.ErrTokenInvalid)
		})
	}
	answers(t, a, "a good one without a key id", sign(t, key.alg, key.private, "", claimsWith(nil)), nil)
}

func TestATokenFromMemoryStillExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		secret := bytes.Repeat([]byte("s"), 32)
		a := newAuth(t, auth.Config{JWT: auth.JWT{SecretFile: tokenFile(t, string(secret)), Leeway: time.Second}})
		token := sign(t, jose.HS256, secret, "", claimsWith(map[string]any{"exp": time.Now().Add(time.Minute).Unix()}))
		answers(t, a, "before its expiry", token, nil)
		time.Sleep(2 * time.Minute)
		answers(t, a, "after its expiry", token, flow.ErrTokenInvalid)
	})
}

// answers authenticates a token, and compares the error.
func answers(t *testing.T, a *auth.Authenticator, step, token string, want error) {
	t.Helper()
	if _, err := a.Authenticate(token); !errors.Is(err, want) || (want == nil) != (err == nil) {
		t.Errorf("%s: got %v, want %v", step, err, want)
	}
}

// TestTheFileOfKeysIsFollowed for public keys and for a secret.
func TestTheFileOfKeysIsFollowed(t *testing.T) {
	key, next := newECKey(t, "k1"), newECKey(t, "k2")
	secret, second := bytes.Repeat([]byte("s"), 32), bytes.Repeat([]byte("b"), 32)
	path := tokenFile(t, keySet(t, key))
	a := newAuth(t, auth.Config{JWT: auth.JWT{JWKS: path, Issuer: "https://id.example", Audience: "sluice"}})
	token := sign(t, next.alg, next.private, next.id, claimsWith(nil))
	answers(t, a, "before its key", token, flow.ErrTokenInvalid)
	writeFile(t, path, keySet(t, key, next))
	a.Follow()
	answers(t, a, "with its key", token, nil)
	writeFile(t, path, `{"keys":[]}`)
	a.Follow()
	answers(t, a, "all keys withdrawn", token, flow.ErrTokenInvalid)

	path = tokenFile(t, string(secret)+"\n")
	a = newAuth(t, auth.Config{JWT: auth.JWT{SecretFile: path}})
	old := sign(t, jose.HS256, secret, "", claimsWith(nil))
	answers(t, a, "the first secret", old, nil)
	answers(t, a, "another secret", sign(t, jose.HS256, second, "", claimsWith(nil)), flow.ErrTokenInvalid)
	answers(t, a, "HS512 of the same secret", sign(t, jose.HS512, bytes.Repeat(secret, 2), "", claimsWith(nil)), flow.ErrTokenInvalid)
	answers(t, a, "a public key algorithm", sign(t, key.alg, key.private, "k1", claimsWith(nil)), flow.ErrTokenInvalid)
	if err := a.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	writeFile(t, path, "short")
	a.Follow()
	answers(t, a, "a secret that cannot be one leaves the first in force", old, nil)
	writeFile(t, path, string(second))
	a.Follow()
	answers(t, a, "the first secret, although its token was verified before", old, flow.ErrTokenInvalid)
	answers(t, a, "the second secret", sign(t, jose.HS256, second, "", claimsWith(nil)), nil)
}

func TestInvalidConfigurations(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	tests := []struct {
		name string
		cfg  auth.Config
		want string
	}{
		{"nothing", auth.Config{}, "tokens cannot be checked"},
		{"a token file that is not there", auth.Config{Tokens: missing}, "no such file"},
		{"a key file that is not there", auth.Config{JWT: auth.JWT{JWKS: missing, Issuer: "https://id.example", Audience: "sluice"}}, "no such file"},
		{"a secret file that is not there", auth.Config{JWT: auth.JWT{SecretFile: missing}}, "no such file"},
		{"two kinds of keys", auth.Config{JWT: auth.JWT{JWKS: missing, SecretFile: missing}}, "set one"},
		{"a short secret", auth.Config{JWT: auth.JWT{SecretFile: tokenFile(t, "short")}}, "shorter than"},
		{"keys of an issuer without a name", auth.Config{JWT: auth.JWT{JWKS: missing, Audience: "sluice"}}, "set --jwt-issuer and --jwt-audience"},
		{"keys of an issuer, for any audience", auth.Config{JWT: auth.JWT{JWKS: missing, Issuer: "https://id.example"}}, "set --jwt-issuer and --jwt-audience"},
		{"an issuer without keys", auth.Config{JWT: auth.JWT{Issuer: "https://id.example", Audience: "sluice"}}, "without keys"},
		{"keys over plain http", auth.Config{JWT: auth.JWT{JWKS: "http://id.example/keys", Issuer: "https://id.example", Audience: "sluice"}}, "must be https"},
		{"keys from a file URL", auth.Config{JWT: auth.JWT{JWKS: "file:///etc/keys", Issuer: "https://id.example", Audience: "sluice"}}, "must be https"},
		{"an audience without keys", auth.Config{Tokens: missing, JWT: auth.JWT{Audience: "sluice"}}, "without keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := auth.New(tt.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			expect.Not(t, err == nil || !strings.Contains(err.Error(), tt.want), "got %v, want an error with %q", err, tt.want)
		})
	}
}

// An issuer signs tokens of many types with the same keys.
func TestATokenForAnotherPurposeIsRefused(t *testing.T) {
	key := newECKey(t, "k1")
	a := newAuth(t, auth.Config{JWT: auth.JWT{JWKS: tokenFile(t, keySet(t, key)), Issuer: "https://id.example", Audience: "sluice"}})
	for typ, want := range map[string]error{
		"JWT": nil, "jwt": nil, "at+jwt": nil, "application/at+jwt": nil, "": nil,
		"logout+jwt": flow.ErrTokenInvalid, "dpop+jwt": flow.ErrTokenInvalid, "secevent+jwt": flow.ErrTokenInvalid,
	} {
		opts := (&jose.SignerOptions{}).WithHeader("kid", key.id)
		if typ != "" {
			opts = opts.WithType(jose.ContentType(typ))
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: key.alg, Key: key.private}, opts)
		fatal.If(t, err)
		token, err := jwt.Signed(signer).Claims(claimsWith(nil)).Serialize()
		fatal.If(t, err)
		answers(t, a, "typ "+typ, token, want)
	}
}

func TestScopesAndSubjectsHaveNamesOfTheirOwn(t *testing.T) {
	secret := bytes.Repeat([]byte("s"), 32)
	static := auth.NewToken()
	file := func(subject string) string {
		return tokenFile(t, auth.Entry{Subject: subject, SHA256: auth.Digest(static), Scopes: flow.Scopes()}.Line())
	}
	how := auth.JWT{SecretFile: tokenFile(t, string(secret)), ScopePrefix: "sluice:", SubjectPrefix: "jwt:"}
	a := newAuth(t, auth.Config{Tokens: file("engine-a"), JWT: how})
	got, err := a.Authenticate(sign(t, jose.HS256, secret, "", claimsWith(map[string]any{"scope": "sluice:read admin sluice:read", "scp": []string{"records:write", "sluice:user:write"}})))
	fatal.If(t, err)
	want := flow.Caller{Subject: "jwt:engine-a", Source: "jwt:engine-a", Scopes: []flow.Scope{flow.ScopeRead, flow.ScopeUserWrite}}
	expect.Equal(t, "identity", want, got)
	if got, err := a.Authenticate(static); err != nil || got.Subject == want.Subject {
		t.Errorf("the token of the file is %q, %v", got.Subject, err)
	}
	_, err = auth.New(auth.Config{Tokens: file("jwt:engine-a"), JWT: how}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	expect.Not(t, err == nil || !strings.Contains(err.Error(), `begins with "jwt:"`), "a token file that takes a JWT's subject: %v", err)
}

// TestAJWTMayBeForSomeTablesAndTenants: a claim that is not a list is refused, and an empty list
// means none.
func TestAJWTMayBeForSomeTablesAndTenants(t *testing.T) {
	secret := []byte(strings.Repeat("s", 32))
	file := filepath.Join(t.TempDir(), "secret")
	writeFile(t, file, string(secret))
	a := newAuth(t, auth.Config{JWT: auth.JWT{SecretFile: file}})
	for _, tt := range []struct {
		name            string
		claims          map[string]any
		tables, tenants []string
		err             error
	}{
		{"neither", map[string]any{}, nil, nil, nil},
		{"lists", map[string]any{"tables": []string{"orders", "b c"}, "tenants": []string{"acme"}}, []string{"orders", "b c"}, []string{"acme"}, nil},
		{"one name", map[string]any{"tables": "b c"}, []string{"b c"}, nil, nil},
		{"empty", map[string]any{"tables": []string{}, "tenants": ""}, []string{}, []string{}, nil},
		{"null", map[string]any{"tenants": nil}, nil, []string{}, nil},
		{"a number", map[string]any{"tables": 7}, nil, nil, flow.ErrTokenInvalid},
		{"a name that none has", map[string]any{"tenants": []string{" acme"}}, nil, nil, flow.ErrTokenInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.claims["sub"], tt.claims["exp"] = "jane", time.Now().Add(time.Hour).Unix()
			got, err := a.Authenticate(sign(t, jose.HS256, secret, "", tt.claims))
			fatal.When(t, !errors.Is(err, tt.err) || err == nil && tt.err != nil, "got %v, want %v", err, tt.err)
			expect.Equal(t, "tables and tenants", [][]string{tt.tables, tt.tenants}, [][]string{got.Tables, got.Tenants})
		})
	}
}
