package api_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
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

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/api"
)

// run serves on a free port until the test ends. stop ends it earlier and
// returns what Run returned.
func (d *door) run(t *testing.T) (addr string, stop func() error) {
	t.Helper()
	a, err := d.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stopped := false
	stop = func() error {
		cancel()
		if stopped {
			return nil
		}
		stopped = true
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	return a.String(), stop
}

// raw sends bytes over a connection of its own and returns all that comes back
// until the server closes it, and how long that took.
func raw(t *testing.T, addr string, write func(net.Conn)) (string, time.Duration) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	start := time.Now()
	go write(conn)
	if err := conn.SetReadDeadline(start.Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("read: %v", err)
	}
	return string(answer), time.Since(start)
}

const head = "POST /flow/flowRecord/batch HTTP/1.1\r\nHost: a\r\nAuthorization: engine\r\nContent-Type: application/json\r\n"

func trickle(conn net.Conn, first, again string, every time.Duration) {
	_, err := io.WriteString(conn, first)
	for ; err == nil; time.Sleep(every) {
		_, err = io.WriteString(conn, again)
	}
}

func TestClientsThatKeepUsWaitingAreCutOff(t *testing.T) {
	cfg := config()
	cfg.HeaderTimeout, cfg.BodyTimeout, cfg.BodyGrace, cfg.BodyRate = 300*time.Millisecond, 1500*time.Millisecond, 300*time.Millisecond, 10_000
	tests := []struct {
		name         string
		first, again string
		every        time.Duration
		answer       string // begins with
		within       time.Duration
	}{
		{"a header that never ends", "POST / HTTP/1.1\r\n", "X-A: b\r\n", 50 * time.Millisecond, "", time.Second},
		{"a header that is too long", head, "X-A: " + strings.Repeat("b", 4000) + "\r\n", 0, "HTTP/1.1 431", time.Second},
		{"a body that never comes", head + "Content-Length: 100\r\n\r\n", "", 50 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"a body that comes byte by byte", head + "Content-Length: 1000\r\n\r\n[", " ", 20 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"chunks that come byte by byte", head + "Transfer-Encoding: chunked\r\n\r\n", "1\r\n[\r\n", 20 * time.Millisecond, "HTTP/1.1 408", 1200 * time.Millisecond},
		{"a body fast enough that never ends", head + "Transfer-Encoding: chunked\r\n\r\n", "400\r\n" + strings.Repeat(" ", 1024) + "\r\n", 20 * time.Millisecond, "HTTP/1.1 408", 2500 * time.Millisecond},
		{"a body that is faster than that and never ends", head + "Transfer-Encoding: chunked\r\n\r\n", "100000\r\n" + strings.Repeat(" ", 1<<20) + "\r\n", 0, "HTTP/1.1 413", 2500 * time.Millisecond},
		{"a body that is said to be huge", head + "Content-Length: 1000000000\r\n\r\n", " ", 20 * time.Millisecond, "HTTP/1.1 413", time.Second},
		{"chunks that are none", head + "Transfer-Encoding: chunked\r\n\r\n", "zz\r\n", 20 * time.Millisecond, "HTTP/1.1 400", time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDoor(t, cfg)
			addr, _ := d.run(t)
			answer, took := raw(t, addr, func(c net.Conn) { trickle(c, tt.first, tt.again, tt.every) })
			if !strings.HasPrefix(answer, tt.answer) || tt.answer == "" && answer != "" {
				t.Errorf("got %q, want it to begin with %q", answer, tt.answer)
			}
			if took > tt.within {
				t.Errorf("cut off after %s, want within %s", took, tt.within)
			}
			eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
			if len(d.stream.subs) != 0 {
				t.Error("something was published")
			}
		})
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 5s in vain: %s", what)
		}
	}
}

func TestAClientThatGoesAwayStoresNothing(t *testing.T) {
	d := newDoor(t, config())
	addr, _ := d.run(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, head+"Content-Length: 100\r\n\r\n[{\"id\":\"1-1\"}")
	eventually(t, "the body is being read", func() bool { return d.held(t) > 0 })
	conn.Close()
	eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
	eventually(t, "it is counted", func() bool { return d.metric(t, "sluice_api_refusals_total", "body_incomplete") == 1 })
	if len(d.stream.subs) != 0 {
		t.Error("something was published")
	}
}

func TestAClientThatMayNotIsToldBeforeItSendsItsBody(t *testing.T) {
	d := newDoor(t, config())
	addr, _ := d.run(t)
	for token, want := range map[string]string{"swordfish": "HTTP/1.1 401", "engine": "HTTP/1.1 100"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, strings.Replace(head, "engine", token, 1)+"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, want) {
			t.Errorf("%s: got %q %v, want %s", token, line, err, want)
		}
	}
}

func TestRunFinishesWhatIsInFlightAndTakesNoMore(t *testing.T) {
	d := newDoor(t, config())
	entered, leave := make(chan struct{}), make(chan struct{})
	d.stream.before = func(ctx context.Context) error {
		close(entered)
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	addr, stop := d.run(t)
	answered := make(chan string, 1)
	go func() {
		answer, _ := raw(t, addr, func(c net.Conn) { fmt.Fprint(c, head+"Content-Length: 12\r\n\r\n{\"id\":\"1-1\"}") })
		answered <- answer
	}()
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	eventually(t, "no connection is taken any more", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(leave)
	if answer := <-answered; !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Errorf("the request in flight was answered %q", answer)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run: got %v, want nil", err)
	}
	if diff := cmp.Diff([]string{`{"id":"1-1"}`}, d.stream.stored()); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestRunCutsOffWhatTakesTooLong(t *testing.T) {
	cfg := config()
	cfg.Drain = 100 * time.Millisecond
	d := newDoor(t, cfg)
	addr, stop := d.run(t)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, head+"Content-Length: 12\r\n\r\n{")
	eventually(t, "the body is being read", func() bool { return d.held(t) > 0 })
	if err := stop(); err == nil || !strings.Contains(err.Error(), "still in flight after 100ms") {
		t.Errorf("Run: got %v, want requests still in flight", err)
	}
}

func TestAPortInUseIsAnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg := config()
	cfg.Listen = ln.Addr().String()
	if err := newDoor(t, cfg).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Run: got %v, want address already in use", err)
	}
}

// writeCertificate makes a certificate for 127.0.0.1 with this serial number.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "sluice"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
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
	if err := os.WriteFile(cfg.TLSKey, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, resp, 408, "body_timeout")
	eventually(t, "the memory is given back", func() bool { return d.held(t) == 0 })
}

func TestConfigurationsThatCanNotBeMeant(t *testing.T) {
	for want, change := range map[string]func(*api.Config){
		"a TLS certificate needs its key": func(c *api.Config) { c.TLSCert = "cert.pem" },
		"no such file":                    func(c *api.Config) { c.TLSCert, c.TLSKey = "missing.pem", "missing.pem" },
		"less than four times":            func(c *api.Config) { c.InFlightBytes = 1 << 20 },
		"longer than the longest body":    func(c *api.Config) { c.RecordBytes = 32 << 20 },
		"the rate is negative":            func(c *api.Config) { c.Rate = -1 },
	} {
		cfg := config()
		change(&cfg)
		if err := tryNew(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestASlowLargeBodyIsCutOffWhenOthersWaitForItsMemory(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 2*time.Second
	d := newDoor(t, cfg)
	addr, _ := d.run(t)
	slow := make(chan string, 2)
	for range 2 { // all of the memory for large bodies
		go func() {
			answer, _ := raw(t, addr, func(c net.Conn) { fmt.Fprintf(c, "%sContent-Length: %d\r\n\r\n[", head, 4<<20) })
			slow <- answer
		}()
	}
	eventually(t, "the slow hold all there is", func() bool { return d.held(t) == 8<<20 })
	start := time.Now()
	r := request(http.MethodPost, "http://"+addr+"/flow/flowRecord/batch", `{"id":"1-1"}`+strings.Repeat(" ", 3<<20))
	r.RequestURI = ""
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	wantOK(t, resp)
	if took := time.Since(start); took > 1900*time.Millisecond {
		t.Errorf("it took %s to get the memory", took)
	}
	if answer := <-slow; !strings.HasPrefix(answer, "HTTP/1.1 408") || !strings.Contains(answer, "while others waited") {
		t.Errorf("the slow client was answered %q", answer)
	}
}

func TestWithoutMemoryARequestIsRefusedAfterItsWait(t *testing.T) {
	cfg := config()
	cfg.BodyBytes, cfg.RecordBytes, cfg.InFlightBytes, cfg.InFlightWait = 4<<20, 1<<20, 16<<20, 50*time.Millisecond
	d := newDoor(t, cfg)
	leave, entered := make(chan struct{}), make(chan struct{}, 2)
	d.stream.before = func(context.Context) error { entered <- struct{}{}; <-leave; return nil }
	large := `{"id":"1-1"}` + strings.Repeat(" ", 3<<20)
	answers := make(chan *http.Response, 2)
	for range 2 {
		go func() { answers <- d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", large)) }()
	}
	<-entered
	<-entered
	resp := d.serveOne(request(http.MethodPost, "/flow/flowRecord/batch", large))
	wantProblem(t, resp, 429, "overloaded")
	if got := resp.Header.Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After: got %q, want 1", got)
	}
	close(leave)
	for range 2 {
		wantOK(t, <-answers)
	}
	if held := d.held(t); held != 0 {
		t.Errorf("%g bytes are still held", held)
	}
}
