package dial_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// listen accepts connections and sends the greeting, if any, and nothing else.
func listen(t *testing.T, greeting string) (address string, taken func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	var mu sync.Mutex
	var open []net.Conn
	taken = func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(open)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
		for _, c := range open {
			c.Close()
		}
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			_, _ = c.Write([]byte(greeting)) // a client that has gone does not need it
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	return l.Addr().String(), taken
}

// TestTheClientAnswersWhileItConnects: reading its state does not wait for the server.
func TestTheClientAnswersWhileItConnects(t *testing.T) {
	t.Parallel()
	address, taken := listen(t, "")
	nc, err := connect(dial.Config{URL: "nats://" + address, Name: "test"})
	fatal.If(t, err)
	defer nc.Close()
	var longest time.Duration
	for begun := time.Now(); time.Since(begun) < 3*time.Second; time.Sleep(10 * time.Millisecond) {
		asked := time.Now()
		fatal.When(t, nc.IsConnected(), "it is connected without a server")
		longest = max(longest, time.Since(asked))
	}
	expect.Not(t, longest > 500*time.Millisecond, "the client answered after %v", longest)
	if n := taken(); n < 2 || n > 3 {
		t.Errorf("%d connections were made in 3 s, want one every 2 s", n)
	}
}

func TestAServerThatDoesNotGreetIsPassedOver(t *testing.T) {
	address, _ := listen(t, "")
	server := natstest.Start(t)
	for range 6 { // clients begin with any of them
		begun := time.Now()
		byName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
		nc, err := connect(dial.Config{URL: "nats://" + address + "," + byName, Name: "test"})
		fatal.If(t, err)
		defer nc.Close()
		for !nc.IsConnected() && time.Since(begun) < 10*time.Second {
			time.Sleep(5 * time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second || nc.ConnectedUrl() != byName {
			t.Errorf("connected to %q after %v, want %q within 1 s", nc.ConnectedUrl(), took, byName)
		}
	}
}

// TestAnAbandonedConnectionIsNotUsed: the server has closed it meanwhile.
func TestAnAbandonedConnectionIsNotUsed(t *testing.T) {
	t.Parallel()
	address, taken := listen(t, "INFO {}\r\n")
	d := dial.NewDialer(time.Minute)
	first, err := d.Dial("tcp", address)
	fatal.If(t, err)
	first.Close()
	d.Forget("tcp", address)
	time.Sleep(1500 * time.Millisecond)
	second, err := d.Dial("tcp", address)
	fatal.If(t, err)
	defer second.Close()
	for begun := time.Now(); taken() < 3 && time.Since(begun) < 10*time.Second; {
		time.Sleep(5 * time.Millisecond) // the server takes a connection after it was made
	}
	expect.Equal(t, "connections were made", 3, taken())
	text := make([]byte, 100)
	if n, err := second.Read(text[:1]); err != nil || string(text[:n]) != "I" {
		t.Errorf("read %q, %v, want the begin of the greeting", text[:n], err)
	}
}

// TestASilentConnectionEnds, for readers and for writers.
func TestASilentConnectionEnds(t *testing.T) {
	address, _ := listen(t, "+")
	c, err := dial.NewDialer(300*time.Millisecond).Dial("tcp", address)
	fatal.If(t, err)
	begun := time.Now()
	written := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				written <- err
				return
			}
		}
	}()
	text := make([]byte, 1)
	if _, err := c.Read(text); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(text)
	if took := time.Since(begun); err == nil || took < 300*time.Millisecond || took > time.Second {
		t.Errorf("read: got %v after %v, want an error after 300ms", err, took)
	}
	if err := <-written; !errors.Is(err, net.ErrClosed) {
		t.Errorf("write: got %v, want %v", err, net.ErrClosed)
	}
}
