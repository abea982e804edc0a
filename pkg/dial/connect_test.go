package dial_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
)

// certificates writes a CA, and a certificate for this machine signed by it,
// for a server and a client alike.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &caKey.PublicKey, caKey)
	must(err)
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &leafKey.PublicKey, caKey)
	must(err)
	keyDER, err := x509.MarshalECPrivateKey(leafKey)
	must(err)
	return write("ca.pem", "CERTIFICATE", rootDER), write("cert.pem", "CERTIFICATE", leafDER), write("key.pem", "EC PRIVATE KEY", keyDER)
}

func TestConnectingWithCertificates(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\njetstream { store_dir: %q, sync_interval: always }\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", dir, cert, key, ca)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := natstest.StartWith(t, embedded.Config{ConfigFile: conf, Listen: "127.0.0.1:0"})
	for name, c := range map[string]struct {
		connection dial.Config
		connects   bool
	}{
		"all of them":           {dial.Config{CA: ca, Cert: cert, Key: key}, true},
		"a CA nobody knows":     {dial.Config{Cert: cert, Key: key}, false},
		"without a certificate": {dial.Config{CA: ca}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.connection.URL, c.connection.Name = server.URL, "test"
			nc, err := dial.Connect(c.connection, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			deadline := time.Now().Add(time.Second)
			for !nc.IsConnected() && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
			if nc.IsConnected() != c.connects {
				t.Errorf("connected: %v, want %v: %v", nc.IsConnected(), c.connects, nc.LastError())
			}
		})
	}
}

func TestOptionsThatAreWrongAreSaid(t *testing.T) {
	for name, c := range map[string]dial.Config{
		"a CA that is not there":          {URL: "nats://127.0.0.1:1", CA: "/nowhere/ca.pem"},
		"a certificate that is not there": {URL: "nats://127.0.0.1:1", Cert: "/nowhere/cert.pem", Key: "/nowhere/key.pem"},
		"a URL that is none":              {URL: "nats://127.0.0.1:port"},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := dial.Connect(c, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err == nil {
				nc.Close()
				t.Fatal("it connected")
			}
			if !strings.Contains(err.Error(), "connect to NATS") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestNoAddressShowsAPassword: errors and logs name the server, and nothing of
// who logs in.
func TestNoAddressShowsAPassword(t *testing.T) {
	for _, url := range []string{
		"nats://api:s3cret@host:bad", "nats://api:s3cret@[::1", "nats://api:s3%zzs3cret@host", "api:s3 cret@host:1", "nats://api:x#s3cret@127.0.0.1:1",
		"nats://api:x/s3cret@127.0.0.1:1", "nats://api:s3\x7fs3cret@h:1", "nats://api:s3cret@h:1,nats://api:s3cret@h:x", "nats://api:s3cret,s3cret@h:x",
	} {
		nc, err := dial.Connect(dial.Config{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err == nil {
			nc.Close()
			t.Errorf("%s: no error", url)
			continue
		}
		for _, secret := range []string{"s3", "cret", "api", "%zz"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", url, err)
			}
		}
	}
	for url, want := range map[string]string{
		"nats://127.0.0.1:4222":                        "nats://127.0.0.1:4222",
		"nats://api:p@one:4222,tls://api:p@two:4222":   "nats://***@one:4222,tls://***@two:4222",
		"nats://token@one:4222":                        "nats://***@one:4222",
		"nats://127.0.0.1:4222, nats://127.0.0.1:4223": "nats://127.0.0.1:4222, nats://127.0.0.1:4223",
	} {
		if got := dial.Redact(url); got != want {
			t.Errorf("%s is shown as %s, want %s", url, got, want)
		}
	}
}
