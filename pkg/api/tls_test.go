package api_test

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// writeCertificate makes another certificate for 127.0.0.1.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	made := natstest.NewCA(t, "test").Server("sluice")
	natstest.Write(t, dir, "cert.pem", made.Cert)
	natstest.Write(t, dir, "key.pem", made.Key)
}

func TestTLSSpeaksHTTP2AndFollowsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	cfg := config()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, dir)
	d := newDoor(t, cfg)
	addr, _ := d.run(t)

	// serial opens a new connection, posts, and returns the certificate's serial number.
	serial := func() string {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		r := request(http.MethodPost, "https://"+addr+"/flow/flowRecord/batch", `{"id":"1-1"}`)
		r.RequestURI = ""
		resp, err := (&http.Client{Transport: transport}).Do(r)
		fatal.If(t, err)
		wantOK(t, resp)
		expect.Not(t, resp.ProtoMajor != 2, "spoke %s, want HTTP/2", resp.Proto)
		return resp.TLS.PeerCertificates[0].SerialNumber.String()
	}
	first := serial()
	writeCertificate(t, dir)
	eventually(t, "the new certificate is shown", func() bool { return serial() != first })
	second := serial()
	fatal.If(t, os.WriteFile(cfg.TLSKey, []byte("broken"), 0o600))
	time.Sleep(1100 * time.Millisecond) // until the files are reloaded
	expect.Equal(t, "serial number while the key is broken", second, serial())
}

func TestASlowBodyOverHTTP2IsCutOff(t *testing.T) {
	dir := t.TempDir()
	cfg := config()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cfg.BodyGrace = 200 * time.Millisecond
	writeCertificate(t, dir)
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

// TestARapidResetOverHTTP2LeavesOthersAlone opens requests and cancels each at once
// (CVE-2023-44487): other clients are unaffected, and concurrency stays bounded.
func TestARapidResetOverHTTP2LeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	cfg := config()
	cfg.TLSCert, cfg.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, dir)
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	fatal.If(t, err)
	defer conn.Close()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	frame := func(kind, flags byte, stream uint32, payload ...byte) []byte {
		head := []byte{0, 0, byte(len(payload)), kind, flags}
		return append(binary.BigEndian.AppendUint32(head, stream), payload...)
	}
	_, err = conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0)...))
	fatal.If(t, err)
	sent := make(chan int)
	go func() {
		n := 0
		for stream := uint32(1); stream < 2_000_000; stream += 2 { // GET https://a/, and RST_STREAM with CANCEL
			if _, err := conn.Write(append(frame(1, 5, stream, 0x82, 0x87, 0x84, 0x41, 1, 'a'), frame(3, 0, stream, 0, 0, 0, 8)...)); err != nil {
				break
			}
			n++
		}
		sent <- n
	}()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for begun := time.Now(); ; {
		r := request(http.MethodPost, "https://"+addr+"/flow/flowRecord/batch", `{"id":"1-1"}`)
		r.RequestURI = ""
		start := time.Now()
		resp, err := (&http.Client{Transport: transport}).Do(r)
		fatal.If(t, err)
		wantOK(t, resp)
		if took := time.Since(start); took > time.Second*slowdown {
			t.Errorf("a client waited %s beside it", took)
		}
		if got := d.metric(t, "sluice_api_requests_in_flight", ""); got > 130 {
			t.Errorf("%v requests are in flight at a time, want 128 of one connection at most", got)
		}
		select {
		case n := <-sent:
			t.Logf("%d requests were opened and reset in %s", n, time.Since(begun))
			return
		default:
		}
	}
}
