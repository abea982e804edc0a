package deployment_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// echo answers each line with a name and the line.
func echo(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, name+" "+line)
				}
			}()
		}
	}()
	return listener.Addr().String()
}

type client struct {
	net.Conn
	in *bufio.Reader
}

type link struct {
	*deployment.Link
	addr string
}

func dial(t *testing.T, l link) *client {
	t.Helper()
	conn, err := net.Dial("tcp", l.addr)
	fatal.If(t, err)
	t.Cleanup(func() { conn.Close() })
	return &client{conn, bufio.NewReader(conn)}
}

// ask sends a line and returns the answer, or the error within limit.
func (c *client) ask(line string, limit time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	return c.in.ReadString('\n')
}

func newLink(t *testing.T, targets ...string) link {
	t.Helper()
	l := deployment.NewLink()
	t.Cleanup(l.Close)
	addr, err := l.Listen(targets...)
	fatal.If(t, err)
	return link{l, addr}
}

func TestLink(t *testing.T) {
	t.Run("a cut ends open connections and accepts new ones", func(t *testing.T) {
		l := newLink(t, echo(t, "a"))
		c := dial(t, l)
		if _, err := c.ask("hi", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		expect.Equal(t, "cut connections", 1, l.Cut())
		if got, err := c.ask("hi", 5*time.Second); err == nil {
			t.Errorf("answered %q after the cut", got)
		}
		if _, err := dial(t, l).ask("hi", 5*time.Second); err != nil {
			t.Errorf("a new connection: %v", err)
		}
	})
	t.Run("nothing passes while it is stalled, and nothing is lost", func(t *testing.T) {
		l := newLink(t, echo(t, "a"))
		c := dial(t, l)
		l.Stall()
		if got, err := c.ask("one", 100*time.Millisecond); err == nil {
			t.Errorf("answered %q through a stalled link", got)
		}
		l.Resume()
		if got, err := c.ask("two", 5*time.Second); got != "a one\n" {
			t.Errorf("answered %q, %v, want the first line", got, err)
		}
	})
	t.Run("a trap holds a chunk with its text", func(t *testing.T) {
		l := newLink(t, echo(t, "a"))
		c := dial(t, l)
		seen := l.Trap("INSERT", true)
		if got, err := c.ask("an INSERT it is", 100*time.Millisecond); err == nil {
			t.Errorf("answered %q through a link that stalls", got)
		}
		<-seen
		l.Resume()
		if got, err := c.ask("two", 5*time.Second); got != "a an INSERT it is\n" {
			t.Errorf("answered %q, %v, want the first line", got, err)
		}
	})
	t.Run("a ready target is preferred; without one, any is used", func(t *testing.T) {
		a, b := echo(t, "a"), echo(t, "b")
		l := newLink(t, a, b)
		for ready, want := range map[string]string{b: "b hi\n", "": "a hi\n"} {
			l.Ready = func(target string) bool { return target == ready }
			for range 2 {
				got, err := dial(t, l).ask("hi", 5*time.Second)
				expect.Not(t, err != nil || ready != "" && got != want, "answered %q, %v, want %q", got, err, want)
			}
		}
	})
}
