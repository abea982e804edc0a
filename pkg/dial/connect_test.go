package dial_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
)

func connect(c dial.Config) (*nats.Conn, error) {
	return dial.Connect(c, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// certificates writes a CA, and a certificate for this machine signed by it,
// for a server and a client alike.
func certificates(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir, root := t.TempDir(), natstest.NewCA(t, "test")
	own := root.Server("test")
	return natstest.Write(t, dir, "ca.pem", root.PEM()), natstest.Write(t, dir, "cert.pem", own.Cert), natstest.Write(t, dir, "key.pem", own.Key)
}

func TestConnectingWithCertificates(t *testing.T) {
	t.Parallel()
	ca, cert, key := certificates(t)
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\njetstream { store_dir: %q, sync_interval: always }\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", dir, cert, key, ca)
	fatal.If(t, os.WriteFile(conf, []byte(text), 0o600))
	server := natstest.StartWith(t, embedded.Config{ConfigFile: conf, Listen: "127.0.0.1:0"})
	for name, c := range map[string]struct {
		connection dial.Config
		connects   bool
	}{
		"all of them":           {dial.Config{CA: ca, Cert: cert, Key: key}, true},
		"an unknown CA":         {dial.Config{Cert: cert, Key: key}, false},
		"without a certificate": {dial.Config{CA: ca}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.connection.URL, c.connection.Name = server.URL, "test"
			nc, err := connect(c.connection)
			fatal.If(t, err)
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

// TestWhatIsReplacedIsTakenUp replaces the password, the certificates and who signs
// them on both sides, one after the other, as an operator does. The client reads
// its files whenever it connects, and goes on though it is refused meanwhile.
func TestWhatIsReplacedIsTakenUp(t *testing.T) {
	t.Parallel()
	dir, before, after := t.TempDir(), natstest.NewCA(t, "before"), natstest.NewCA(t, "after")
	write := func(name string, content []byte) string { return natstest.Write(t, dir, name, content) }
	free, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	address := free.Addr().String()
	free.Close()
	conf := write("nats.conf", fmt.Appendf(nil, `listen: %q
		include "password.conf"
		authorization { users: [{user: api, password: $API}] }
		jetstream { store_dir: %q, sync_interval: always }
		tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }`, address, dir, dir+"/s.pem", dir+"/s.key", dir+"/s.ca"))
	server := func(ca []byte, c natstest.Certificate, password string) {
		write("s.ca", ca)
		write("s.pem", c.Cert)
		write("s.key", c.Key)
		write("password.conf", []byte("API: "+password+"\n"))
	}
	client := func(ca []byte, c natstest.Certificate, password string) dial.Config {
		return dial.Config{Name: "api", User: "api", CA: write("c.ca", ca), Cert: write("c.pem", c.Cert), Key: write("c.key", c.Key), PasswordFile: write("c.password", []byte(password+"\n"))}
	}
	server(before.PEM(), before.Server("s"), "first")
	s := natstest.StartWith(t, embedded.Config{ConfigFile: conf})
	c := client(before.PEM(), before.Client("c"), "first")
	c.URL = "nats://" + address
	var log logged
	reg := prometheus.NewRegistry()
	nc, err := dial.Connect(c, slog.New(slog.NewTextHandler(&log, nil)), reg)
	fatal.If(t, err)
	defer nc.Close()
	both := bytes.Join([][]byte{before.PEM(), after.PEM()}, nil)
	connected := func(step string) {
		t.Helper()
		for begun := time.Now(); nc.Flush() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > 20*time.Second || nc.IsClosed() {
				t.Fatalf("%s: not connected, %v: %v\n%s", step, nc.Status(), nc.LastError(), log.text())
			}
		}
	}
	connected("at first")

	client(both, before.Client("c"), "first")
	server(both, before.Server("s"), "first")
	s.Restart()
	connected("both CAs are known")
	client(both, after.Client("c"), "first")
	server(both, after.Server("s"), "first")
	s.Restart()
	connected("certificates of the new one")
	client(after.PEM(), after.Client("c"), "first")
	server(after.PEM(), after.Server("s"), "second")
	s.Restart()
	const refusals = 5
	for begun := time.Now(); total(t, reg, "sluice_stream_connection_errors_total") < refusals; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second || nc.IsClosed() {
			t.Fatalf("the old password is not refused and tried again:\n%s", log.text())
		}
	}
	client(after.PEM(), after.Client("c"), "second")
	connected("the new password")
	if n := strings.Count(strings.ToLower(log.text()), "authorization violation"); n == 0 || n >= refusals || strings.Contains(log.text(), "second") {
		t.Errorf("%d refusals or more are logged %d times, or a password is:\n%s", refusals, n, log.text())
	}
}

// total is the value of a counter.
func total(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	fatal.If(t, err)
	for _, family := range all {
		if family.GetName() == name {
			return family.Metric[0].Counter.GetValue()
		}
	}
	return 0
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.Write(b)
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said.String()
}

func TestOptionsThatAreWrongAreSaid(t *testing.T) {
	for name, c := range map[string]dial.Config{
		"a CA that is not there":          {URL: "nats://127.0.0.1:1", CA: "/nowhere/ca.pem"},
		"a certificate that is not there": {URL: "nats://127.0.0.1:1", Cert: "/nowhere/cert.pem", Key: "/nowhere/key.pem"},
		"a URL that is none":              {URL: "nats://127.0.0.1:port"},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := connect(c)
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
		nc, err := connect(dial.Config{URL: url})
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
