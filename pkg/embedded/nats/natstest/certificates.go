package natstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

type CA struct {
	t    testing.TB
	root *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// Certificate is a certificate and its key in PEM.
type Certificate struct{ Cert, Key []byte }

func NewCA(t testing.TB, name string) *CA {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	fatal.If(t, err)
	root, err := x509.ParseCertificate(der)
	fatal.If(t, err)
	return &CA{t: t, root: root, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// PEM is the certificate of the CA itself.
func (ca *CA) PEM() []byte { return ca.pem }

// Server signs a certificate for a server on this machine, also for routes.
func (ca *CA) Server(name string) Certificate {
	return ca.sign(name, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

// Client signs a certificate that only a client may show.
func (ca *CA) Client(name string) Certificate { return ca.sign(name, x509.ExtKeyUsageClientAuth) }

func (ca *CA) sign(name string, usage ...x509.ExtKeyUsage) Certificate {
	ca.t.Helper()
	key := newKey(ca.t)
	template := &x509.Certificate{
		SerialNumber: serial(ca.t), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usage,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.root, &key.PublicKey, ca.key)
	fatal.If(ca.t, err)
	private, err := x509.MarshalECPrivateKey(key)
	fatal.If(ca.t, err)
	return Certificate{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 64))
	fatal.If(t, err)
	return n
}

// Write atomically writes a file in a folder, as secrets are replaced, and returns its path.
func Write(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	fatal.If(t, os.WriteFile(path+".new", content, 0o600))
	fatal.If(t, os.Rename(path+".new", path))
	return path
}
