package endtoend

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// certificate writes a new certificate of this machine, with its serial
// number, to two files.
func certificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "sluice"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTransport runs the api with TLS, keys for JWTs in a file, and little
// patience with slow clients.
func TestTransport(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.startNATS()
	dir := t.TempDir()
	cert, key, jwks := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "jwks.json")
	certificate(t, cert, key, 1)
	signing, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &signing.PublicKey, KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(jwks, set, 0o600); err != nil {
		t.Fatal(err)
	}
	api := start(t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--jwt-jwks", jwks, "--jwt-issuer", "https://issuer", "--jwt-audience", "sluice", "--tls-cert", cert, "--tls-key", key,
		"--header-timeout", "1s", "--body-timeout", "2s", "--fingerprint-key", filepath.Join(dir, "fingerprint"))
	s.waitReady(api, s.ops)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: signing, KeyID: "k1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{Subject: "jane", Issuer: "https://issuer", Audience: jwt.Audience{"sluice"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}).
		Claims(map[string]any{"scope": "records:write"}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	insecure := &tls.Config{InsecureSkipVerify: true} // the certificate is the test's own

	post := func() (*http.Response, string) {
		client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: insecure.Clone(), ForceAttemptHTTP2: true, DisableKeepAlives: true}}
		req, err := http.NewRequest("POST", "https://"+s.http+"/flow/flowRecord/batch", strings.NewReader(`{"id":"tls"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	t.Run("a JWT of the key set over HTTP/2", func(t *testing.T) {
		res, body := post()
		if err := wantOK(res, body); err != nil || res.ProtoMajor != 2 {
			t.Errorf("%s: %v", res.Proto, err)
		}
	})
	t.Run("a certificate that is replaced is used without a restart", func(t *testing.T) {
		certificate(t, cert, key, 2)
		eventually(t, 15*time.Second, func() error {
			res, _ := post()
			if n := res.TLS.PeerCertificates[0].SerialNumber.Int64(); n != 2 {
				return fmt.Errorf("serial number %d, want 2", n)
			}
			return nil
		})
	})
	t.Run("a header that does not come is not waited for", func(t *testing.T) {
		began := time.Now()
		if answer := slowly(t, s.http, insecure, "POST /flow/flowRecord/batch HTTP/1.1\r\nHost: x\r\n"); time.Since(began) > 5*time.Second || strings.Contains(answer, "200 OK") {
			t.Errorf("the connection stood for %v: %s", time.Since(began), answer)
		}
	})
	t.Run("a body that does not come is not waited for", func(t *testing.T) {
		began := time.Now()
		answer := slowly(t, s.http, insecure, "POST /flow/flowRecord/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\nAuthorization: "+token+"\r\n\r\n{")
		if err := wantText(answer, "408"); err != nil || time.Since(began) > 8*time.Second || wantText(answer, "body_timeout") != nil {
			t.Errorf("answered after %v: %.300s", time.Since(began), answer)
		}
	})
}

// slowly sends the beginning of a request, and then nothing, and returns what
// comes until the connection is closed.
func slowly(t *testing.T, addr string, config *tls.Config, beginning string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, beginning); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(conn) // an end by force is an end too
	return string(answer)
}
