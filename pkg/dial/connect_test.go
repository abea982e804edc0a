package dial_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/expect"
)

func connect(c dial.Config) (*nats.Conn, error) {
	return dial.Connect(c, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

func TestOptionsThatAreWrongAreSaid(t *testing.T) {
	for name, c := range map[string]dial.Config{
		"a CA that is not there":          {URL: "nats://127.0.0.1:1", CA: "/nowhere/ca.pem"},
		"a certificate that is not there": {URL: "nats://127.0.0.1:1", Cert: "/nowhere/cert.pem", Key: "/nowhere/key.pem"},
		"an invalid URL":                  {URL: "nats://127.0.0.1:port"},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := connect(c)
			if err == nil {
				nc.Close()
				t.Fatal("it connected")
			}
			expect.Not(t, !strings.Contains(err.Error(), "connect to NATS"), "got %v", err)
		})
	}
}

// TestNoAddressShowsAPassword: errors and logs name the server, without user and password.
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
			expect.Not(t, strings.Contains(err.Error(), secret), "%s: %v", url, err)
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
