package auth_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// keyServer publishes a key set and counts how often it is asked.
type keyServer struct {
	*httptest.Server
	set   atomic.Pointer[string] // nil: fails
	asked atomic.Int64
}

func newKeyServer(t *testing.T) *keyServer {
	s := &keyServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		if set := s.set.Load(); set != nil {
			_, _ = w.Write([]byte(*set))
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *keyServer) publish(set string) { s.set.Store(&set) }

func TestKeysAtAURLAreFetchedCachedAndRotated(t *testing.T) {
	server := newKeyServer(t)
	old, next := newECKey(t, "2025"), newEdKey(t, "2026")
	a := newAuth(t, auth.Config{JWT: auth.JWT{JWKS: server.URL, Any: true}})
	oldToken := sign(t, old.alg, old.private, old.id, claimsWith(nil))
	nextToken := sign(t, next.alg, next.private, next.id, claimsWith(nil))
	expect(t, a, "server down", oldToken, flow.ErrTokenUnverified)
	if err := a.Check(t.Context()); err == nil {
		t.Error("Check: got nil while no keys could be had")
	}
	server.publish(keySet(t, old))
	expect(t, a, "asked a moment ago", oldToken, flow.ErrTokenUnverified)
	a.Refresh(t.Context())
	expect(t, a, "keys are there", oldToken, nil)
	if err := a.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	asked := server.asked.Load()
	for range 50 {
		expect(t, a, "from memory", oldToken, nil)
		expect(t, a, "an invented key id, asked a moment ago", nextToken, flow.ErrTokenInvalid)
	}
	if got := server.asked.Load(); got != asked {
		t.Errorf("the key server was asked %d times more, want 0", got-asked)
	}

	server.publish(keySet(t, old, next))
	a.AskedLongAgo()
	expect(t, a, "new key, fetched because of its id", nextToken, nil)
	expect(t, a, "old key still published", oldToken, nil)
	server.set.Store(nil)
	a.Refresh(t.Context())
	expect(t, a, "server down again, keys stay", oldToken, nil)
	server.publish(keySet(t, next))
	a.Refresh(t.Context())
	expect(t, a, "old key withdrawn, although its token was verified before", oldToken, flow.ErrTokenInvalid)
	expect(t, a, "new key", nextToken, nil)
	server.publish(`{"kys":[]}`)
	a.Refresh(t.Context())
	expect(t, a, "what is no key set withdraws nothing", nextToken, nil)
	server.publish(`{"keys":[]}`)
	a.Refresh(t.Context())
	expect(t, a, "all keys withdrawn", nextToken, flow.ErrTokenInvalid)
}

func TestAKeySetIsTakenForWhatIsUsableInIt(t *testing.T) {
	key := newECKey(t, "k1")
	withStrangers := strings.Replace(keySet(t, key), `{"keys":[`, `{"keys":[{"kty":"XYZ"},{"kty":"oct","k":"c2VjcmV0"},`, 1)
	tests := []struct {
		name, set, want string
	}{
		{"a key among strangers", withStrangers, ""},
		{"not JSON", "swordfish", "not a JSON Web Key Set"},
		{"no keys", `{"keys":[]}`, "holds no public key"},
		{"only a secret", `{"keys":[{"kty":"oct","k":"c3dvcmRmaXNo"}]}`, "holds no public key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := auth.New(auth.Config{JWT: auth.JWT{JWKS: tokenFile(t, tt.set), Any: true}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if tt.want == "" && err != nil {
				t.Errorf("got %v, want nil", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "swordfish")) {
				t.Errorf("got %v, want an error with %q and nothing of the file", err, tt.want)
			}
		})
	}
}

// newIssuer is a server that says its name and where its keys are.
func newIssuer(t *testing.T, keys *keyServer, name func(url string) string, at func(url string) string) string {
	mux := http.NewServeMux()
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	mux.HandleFunc("/realm/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": name(s.URL + "/realm"), "jwks_uri": at(keys.URL)})
	})
	return s.URL + "/realm"
}

func TestAnIssuerIsAskedForItsKeys(t *testing.T) {
	same := func(url string) string { return url }
	key := newECKey(t, "k1")
	tests := []struct {
		name     string
		called   func(string) string
		at       func(string) string
		want     error
		complain string
	}{
		{"an issuer as it should be", same, same, nil, ""},
		{"one that has another name", func(url string) string { return url + "/" }, same, flow.ErrTokenUnverified, "calls itself by another name"},
		{"one whose keys others can change", same, func(string) string { return "http://id.example/keys" }, flow.ErrTokenUnverified, "not https"},
		{"one without keys", same, func(string) string { return "" }, flow.ErrTokenUnverified, "not https"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			keys := newKeyServer(t)
			keys.publish(keySet(t, key))
			issuer := newIssuer(t, keys, tt.called, tt.at)
			var logged bytes.Buffer
			a, err := auth.New(auth.Config{JWT: auth.JWT{Issuer: issuer, Audience: "sluice"}}, slog.New(slog.NewTextHandler(&logged, nil)), prometheus.NewRegistry())
			fatal.If(t, err)
			token := sign(t, key.alg, key.private, key.id, claimsWith(map[string]any{"iss": issuer}))
			expect(t, a, "its token", token, tt.want)
			if !strings.Contains(logged.String(), tt.complain) {
				t.Errorf("logged %q, want %q in it", logged.String(), tt.complain)
			}
			if tt.want == nil {
				expect(t, a, "a token of another issuer", sign(t, key.alg, key.private, key.id, claimsWith(nil)), flow.ErrTokenInvalid)
			}
		})
	}
}
