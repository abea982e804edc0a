package auth_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/auth"
	"sluice/pkg/expect"
	"sluice/pkg/flow"
)

// keyServer publishes a key set and counts the requests.
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
	a := newAuth(t, auth.Config{JWT: auth.JWT{JWKS: server.URL, Issuer: "https://id.example", Audience: "sluice"}})
	oldToken := sign(t, old.alg, old.private, old.id, claimsWith(nil))
	nextToken := sign(t, next.alg, next.private, next.id, claimsWith(nil))
	answers(t, a, "server down", oldToken, flow.ErrTokenUnverified)
	if err := a.Check(t.Context()); err == nil {
		t.Error("Check: got nil while no keys could be had")
	}
	server.publish(keySet(t, old))
	answers(t, a, "asked a moment ago", oldToken, flow.ErrTokenUnverified)
	a.Refresh(t.Context())
	answers(t, a, "keys are there", oldToken, nil)
	if err := a.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
	asked := server.asked.Load()
	for range 50 {
		answers(t, a, "from memory", oldToken, nil)
		answers(t, a, "an invented key id, asked a moment ago", nextToken, flow.ErrTokenInvalid)
	}
	if got := server.asked.Load(); got != asked {
		t.Errorf("the key server was asked %d times more, want 0", got-asked)
	}

	server.publish(keySet(t, old, next))
	a.AskedLongAgo()
	answers(t, a, "new key, fetched because of its id", nextToken, nil)
	answers(t, a, "old key still published", oldToken, nil)
	server.set.Store(nil)
	a.Refresh(t.Context())
	answers(t, a, "server down again, keys stay", oldToken, nil)
	server.publish(keySet(t, next))
	a.Refresh(t.Context())
	answers(t, a, "old key withdrawn, although its token was verified before", oldToken, flow.ErrTokenInvalid)
	answers(t, a, "new key", nextToken, nil)
	server.publish(`{"kys":[]}`)
	a.Refresh(t.Context())
	answers(t, a, "an invalid key set withdraws nothing", nextToken, nil)
	server.publish(`{"keys":[]}`)
	a.Refresh(t.Context())
	answers(t, a, "all keys withdrawn", nextToken, flow.ErrTokenInvalid)
}

func TestAKeySetIsTakenForWhatIsUsableInIt(t *testing.T) {
	key := newECKey(t, "k1")
	withStrangers := strings.Replace(keySet(t, key), `{"keys":[`, `{"keys":[{"kty":"XYZ"},{"kty":"oct","k":"c2VjcmV0"},`, 1)
	tests := []struct {
		name, set, want string
	}{
		{"a key among strangers", withStrangers, ""},
		{"not JSON", "swordfish", "not a JSON Web Key Set"},
		{"no keys", `{"keys":[]}`, "has no public signature key"},
		{"only a secret", `{"keys":[{"kty":"oct","k":"c3dvcmRmaXNo"}]}`, "has no public signature key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := auth.New(auth.Config{JWT: auth.JWT{JWKS: tokenFile(t, tt.set), Issuer: "https://id.example", Audience: "sluice"}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			expect.Not(t, tt.want == "" && err != nil, "got %v, want nil", err)
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "swordfish")) {
				t.Errorf("got %v, want an error with %q and nothing of the file", err, tt.want)
			}
		})
	}
}
