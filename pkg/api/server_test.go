package api_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"sluice/pkg/api"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// run serves on a free port until the test ends. stop ends it earlier and returns Run's error.
func (d *door) run(t *testing.T) (addr string, stop func() error) {
	t.Helper()
	a, err := d.Listen()
	fatal.If(t, err)
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

func TestRunFinishesRequestsInFlightAndAcceptsNoMore(t *testing.T) {
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
	expect.Equal(t, "stored", []string{`{"id":"1-1"}`}, d.stream.stored())
}

func TestRunCutsOffSlowRequests(t *testing.T) {
	cfg := config()
	cfg.Drain = 100 * time.Millisecond
	d := newDoor(t, cfg)
	addr, stop := d.run(t)
	conn, err := net.Dial("tcp", addr)
	fatal.If(t, err)
	defer conn.Close()
	fmt.Fprint(conn, head+"Content-Length: 12\r\n\r\n{")
	eventually(t, "the body is being read", func() bool { return d.held(t) > 0 })
	if err := stop(); err == nil || !strings.Contains(err.Error(), "still in flight after 100ms") {
		t.Errorf("Run: got %v, want requests still in flight", err)
	}
}

func TestAPortInUseIsAnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer ln.Close()
	cfg := config()
	cfg.Listen = ln.Addr().String()
	if err := newDoor(t, cfg).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Run: got %v, want address already in use", err)
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for want, change := range map[string]func(*api.Config){
		"set both --tls-cert and --tls-key": func(c *api.Config) { c.TLSCert = "cert.pem" },
		"no such file":                      func(c *api.Config) { c.TLSCert, c.TLSKey = "missing.pem", "missing.pem" },
		"less than four times":              func(c *api.Config) { c.InFlightBytes = 1 << 20 },
		"exceeds the longest body":          func(c *api.Config) { c.RecordBytes = 32 << 20 },
		"exceeds the message limit":         func(c *api.Config) { c.BodyBytes, c.RecordBytes, c.InFlightBytes = 32<<20, 17<<20, 128<<20 },
		"--rate is negative":                func(c *api.Config) { c.Rate = -1 },
	} {
		cfg := config()
		change(&cfg)
		if err := tryNew(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
