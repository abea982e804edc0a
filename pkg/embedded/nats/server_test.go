package nats_test

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs a server until the test ends.
func start(t *testing.T, cfg nats.Config) *nats.Server {
	t.Helper()
	if cfg.Data == "" {
		cfg.Data = t.TempDir()
	}
	s, err := nats.Start(cfg, discard())
	fatal.When(t, err != nil, "start: %v", err)
	t.Cleanup(s.Shutdown)
	return s
}

// stream opens a stream, or creates it.
func stream(t *testing.T, nc *client.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	fatal.If(t, err)
	_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Duplicates: time.Minute})
	fatal.If(t, err)
	return js
}

func TestAServerServesInProcessAndOverTCP(t *testing.T) {
	s := start(t, nats.Config{Listen: "127.0.0.1:0"})
	inner, err := s.Connect()
	fatal.If(t, err)
	defer inner.Close()
	outer, err := client.Connect(s.ClientURL())
	fatal.If(t, err)
	defer outer.Close()
	if _, err := stream(t, inner).Publish(t.Context(), "s", []byte("x")); err != nil {
		t.Fatal(err)
	}
	ack, err := stream(t, outer).Publish(t.Context(), "s", []byte("y"))
	expect.Not(t, err != nil || ack.Sequence != 2, "got %+v, %v, want sequence 2", ack, err)
	if err := s.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
}

func TestAServerInProcessOnlyHasNoPort(t *testing.T) {
	s := start(t, nats.Config{})
	expect.Equal(t, "it listens on", "", s.ClientURL())
	nc, err := s.Connect()
	fatal.If(t, err)
	nc.Close()
}

func TestAcknowledgedRecordsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		s := start(t, nats.Config{Data: dir})
		nc, err := s.Connect()
		fatal.If(t, err)
		ack, err := stream(t, nc).Publish(t.Context(), "s", nil)
		fatal.When(t, err != nil || ack.Sequence != uint64(i+1), "start %d: got %+v, %v, want sequence %d", i, ack, err, i+1)
		nc.Close()
		s.Shutdown()
	}
}

func TestEveryServerSyncsAlways(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "nats.conf")
	write(t, conf, "listen: 127.0.0.1:-1\nhttp: 127.0.0.1:-1\njetstream { sync_interval: 2m, store_dir: \""+t.TempDir()+"\" }\n")
	for name, cfg := range map[string]nats.Config{
		"by options":                     {Monitor: "127.0.0.1:0"},
		"by a file with another setting": {ConfigFile: conf},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, cfg)
			resp, err := http.Get(s.MonitorURL() + "/jsz")
			fatal.If(t, err)
			defer resp.Body.Close()
			body := make([]byte, 64<<10)
			n, _ := resp.Body.Read(body)
			if !strings.Contains(string(body[:n]), `"sync_always": true`) {
				t.Errorf("the server does not sync always: %s", body[:n])
			}
		})
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	fatal.If(t, os.WriteFile(name, []byte(text), 0o600))
}

func TestWhatIsWrongIsSaidInWords(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer busy.Close()
	inUse := t.TempDir()
	start(t, nats.Config{Data: inUse})
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	conf := filepath.Join(t.TempDir(), "nats.conf")
	write(t, conf, "jetstream {")

	for name, c := range map[string]struct {
		cfg  nats.Config
		want string
	}{
		"a port in use":               {nats.Config{Listen: busy.Addr().String()}, "in use by another process"},
		"a monitoring port in use":    {nats.Config{Monitor: busy.Addr().String()}, "start NATS server"},
		"a folder in use":             {nats.Config{Data: inUse}, "in use by another process"},
		"an impossible folder":        {nats.Config{Data: filepath.Join(file, "data")}, "make NATS data folder"},
		"no port":                     {nats.Config{Listen: "127.0.0.1"}, "missing port"},
		"an invalid port":             {nats.Config{Listen: "127.0.0.1:http"}, "not a number"},
		"open to others, no password": {nats.Config{Listen: "0.0.0.0:0"}, "set a user and a password"},
		"monitoring open to others":   {nats.Config{Monitor: ":0"}, "use a loopback address"},
		"an invalid configuration":    {nats.Config{ConfigFile: conf}, "read NATS configuration"},
		"a missing configuration":     {nats.Config{ConfigFile: conf + "x"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.cfg.Data == "" {
				c.cfg.Data = t.TempDir()
			}
			c.cfg.Patience = 5 * time.Second
			s, err := nats.Start(c.cfg, discard())
			if err == nil {
				s.Shutdown()
				t.Fatalf("it started, want an error with %q", c.want)
			}
			expect.Not(t, !strings.Contains(err.Error(), c.want), "got %q, want an error with %q", err, c.want)
		})
	}
}

func TestAFailedStartLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	if _, err := nats.Start(nats.Config{Data: dir, Monitor: busy.Addr().String()}, discard()); err == nil {
		t.Fatal("it started")
	}
	busy.Close()
	start(t, nats.Config{Data: dir, Monitor: busy.Addr().String()})
}

func TestCredentialsAreAskedFor(t *testing.T) {
	s := start(t, nats.Config{Listen: "127.0.0.1:0", User: "sluice", Password: "secret"})
	if nc, err := client.Connect(s.ClientURL()); !errors.Is(err, client.ErrAuthorization) {
		t.Errorf("without credentials: got %v, %v", nc, err)
	}
	nc, err := client.Connect(s.ClientURL(), client.UserInfo("sluice", "secret"))
	fatal.When(t, err != nil, "with credentials: %v", err)
	nc.Close()
	if nc, err = s.Connect(); err != nil {
		t.Fatalf("in process: %v", err)
	}
	nc.Close()
}
