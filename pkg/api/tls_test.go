package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

// writeCertificate makes a certificate for 127.0.0.1 with this serial number.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal.If(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "sluice"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	fatal.If(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	fatal.If(t, err)
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		fatal.If(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
}

func TestTLSSpeaksHTTP2AndFollowsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	cfg := config()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cfg.TLSCert, cfg.TLSKey, 1)
	d := newDoor(t, cfg)
	addr, _ := d.run(t)

	// serial connects anew, posts, and returns the serial number it was shown.
	serial := func() int64 {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		r := request(http.MethodPost, "https://"+addr+"/flow/flowRecord/batch", `{"id":"1-1"}`)
		r.RequestURI = ""
		resp, err := (&http.Client{Transport: transport}).Do(r)
		fatal.If(t, err)
		wantOK(t, resp)
		if resp.ProtoMajor != 2 {
			t.Errorf("spoke %s, want HTTP/2", resp.Proto)
		}
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("serial number: got %d, want 1", got)
	}
	writeCertificate(t, cfg.TLSCert, cfg.TLSKey, 2)
	eventually(t, "the new certificate is shown", func() bool { return serial() == 2 })
	fatal.If(t, os.WriteFile(cfg.TLSKey, []byte("broken"), 0o600))
	time.Sleep(1100 * time.Millisecond) // until the files are looked at again
	if got := serial(); got != 2 {
		t.Errorf("serial number while the key is broken: got %d, want 2", got)
	}
}

func TestASlowBodyOverHTTP2IsCutOff(t *testing.T) {
	dir := t.TempDir()
	cfg := config()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cfg.BodyGrace = 200 * time.Millisecond
	writeCertificate(t, cfg.TLSCert, cfg.TLSKey, 1)
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	body, feed := io.Pipe()
	defer feed.Close()
	go func() { _, _ = feed.Write([]byte("[")) }()
	r := request(http.MethodPost, "https://"+addr+"/flow/flowRecord/batch", "")
	r.RequestURI, r.Body, r.ContentLength = "", body, -1
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(r)
	fatal.If(t, err)
	wantProblem(t, resp, 408, "body_timeout")
	eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
}
