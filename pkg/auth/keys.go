package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"sluice/pkg/flow"
)

// keyset is the keys in force and the tokens verified by them, so that both are replaced
// together.
type keyset struct {
	raw    []byte // what it was parsed from
	keys   []jose.JSONWebKey
	secret []byte // instead of keys

	mu       sync.Mutex
	verified map[[sha256.Size]byte]verified
}

// verified is a token with a verified signature.
type verified struct {
	identity flow.Caller
	from     time.Time // not before, leeway included
	until    time.Time // expiry, leeway included
}

// maxVerified bounds the memory of verified tokens, about 1 MiB.
const maxVerified = 4096

func (k *keyset) recall(digest [sha256.Size]byte, now time.Time) (flow.Caller, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.verified[digest]
	return v.identity, ok && !now.Before(v.from) && now.Before(v.until)
}

func (k *keyset) remember(digest [sha256.Size]byte, v verified) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.verified) >= maxVerified {
		clear(k.verified) // every token in use is verified once more
	}
	k.verified[digest] = v
}

func (k *keyset) none() bool { return len(k.keys) == 0 && k.secret == nil }

// candidates are the keys that may have signed a token with this key id and algorithm.
func (k *keyset) candidates(kid, alg string) []jose.JSONWebKey {
	var found []jose.JSONWebKey
	for _, key := range k.keys {
		if (kid == "" || key.KeyID == kid) && (key.Algorithm == "" || key.Algorithm == alg) {
			found = append(found, key)
		}
	}
	return found
}

// parseKeys keeps the public signature keys of a JSON Web Key Set and skips keys of unknown
// kinds. A set without any means that all keys were withdrawn.
func parseKeys(raw []byte) (*keyset, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil || set.Keys == nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	k := &keyset{raw: raw, verified: make(map[[sha256.Size]byte]verified)}
	for _, member := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(member, &key) == nil && key.IsPublic() && key.Valid() && (key.Use == "" || key.Use == "sig") {
			k.keys = append(k.keys, key)
		}
	}
	return k, nil
}

// minSecret is the shortest HS256 secret, in bytes.
const minSecret = 32

// parseSecret makes a keyset of a shared secret.
func parseSecret(raw []byte) (*keyset, error) {
	secret := bytes.TrimSpace(raw)
	if len(secret) < minSecret {
		return nil, fmt.Errorf("the JWT secret is shorter than the %d bytes that HS256 needs", minSecret)
	}
	return &keyset{raw: raw, secret: secret, verified: make(map[[sha256.Size]byte]verified)}, nil
}

// checkURL refuses to fetch keys over a connection that others can modify.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || !trusted(u) {
		return errors.New("the JWT key URL must be https, or http on this machine")
	}
	return nil
}

func trusted(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())
	return u.Scheme == "https" || u.Scheme == "http" && local
}

// fetch gets a key set from a URL.
func fetch(ctx context.Context, client *http.Client, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the key server returned status %d", resp.StatusCode)
	}
	var body bytes.Buffer
	n, err := body.ReadFrom(io.LimitReader(resp.Body, maxFile+1))
	if err == nil && n > maxFile {
		err = fmt.Errorf("the key set is larger than %d bytes", maxFile)
	}
	return body.Bytes(), err
}

func newClient() *http.Client {
	return &http.Client{
		Timeout: 3 * time.Second,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= 3 || !trusted(req.URL) {
				return errors.New("the key server redirects too often or to a non-https address")
			}
			return nil
		},
	}
}
