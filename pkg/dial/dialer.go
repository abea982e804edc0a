package dial

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// dialLimit bounds the wait for a server's greeting (INFO).
	dialLimit = 2 * time.Second

	// dialWait bounds one call of Dial.
	dialWait = 100 * time.Millisecond

	// greetedFor is how long a greeted connection is kept for the client: the server
	// closes idle ones.
	greetedFor = time.Second
)

var errNotGreeted = errors.New("no greeting from the server yet")

// dialer makes the connections of a NATS client. The client holds its lock while it dials
// and writes, and every call waits for that lock, whatever its context. So neither may
// block: the kernel accepts connections and some bytes for a server that hangs.
type dialer struct {
	silence time.Duration // as Config's
	greets  bool          // the server speaks first; not over websockets

	mu      sync.Mutex
	dialing map[string]chan dialed // by address; each channel gets one value
}

func newDialer(silence time.Duration, greets bool) *dialer {
	return &dialer{silence: silence, greets: greets, dialing: map[string]chan dialed{}}
}

// dialed is the result of dialing.
type dialed struct {
	conn *conn
	err  error
	at   time.Time
}

// Dial returns a connection on which the server has sent its greeting. A slow one is
// continued in the background while the client tries other servers, and returned by a
// later call.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	for {
		got, done := d.wait(network, address)
		switch {
		case !done:
			return nil, fmt.Errorf("dial %s: %w", address, errNotGreeted)
		case got.err != nil:
			return nil, got.err
		case time.Since(got.at) < greetedFor:
			return got.conn, nil
		}
		_ = got.conn.Close() // idle for too long
	}
}

// wait waits briefly for the connection to an address, and starts dialing if no other call
// has.
func (d *dialer) wait(network, address string) (dialed, bool) {
	d.mu.Lock()
	result := d.dialing[address]
	if result == nil {
		result = make(chan dialed, 1)
		d.dialing[address] = result
		go func() {
			conn, err := d.connect(network, address)
			result <- dialed{conn, err, time.Now()}
		}()
	}
	d.mu.Unlock()
	select {
	case got := <-result:
		d.mu.Lock()
		delete(d.dialing, address)
		d.mu.Unlock()
		return got, true
	case <-time.After(dialWait):
		return dialed{}, false
	}
}

// connect dials the addresses of a host in random order until one greets.
func (d *dialer) connect(network, address string) (c *conn, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	machines, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(machines), func(i, j int) { machines[i], machines[j] = machines[j], machines[i] })
	for _, machine := range machines {
		if c, err = d.greeting(network, net.JoinHostPort(machine, port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// greeting dials one address and waits for the greeting.
func (d *dialer) greeting(network, address string) (*conn, error) {
	deadline := time.Now().Add(dialLimit)
	raw, err := (&net.Dialer{Deadline: deadline}).Dial(network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, silence: d.silence}
	if !d.greets {
		return c, nil
	}
	_ = raw.SetReadDeadline(deadline) // the read reports a closed connection
	c.first = make([]byte, 1)
	if _, err := raw.Read(c.first); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("wait for NATS at %s: %w", address, err)
	}
	return c, nil
}

// conn closes itself when the server is silent for too long: the client pings often
// enough. Closing also ends a write that a hung server blocks.
type conn struct {
	net.Conn
	silence time.Duration
	first   []byte // already read
}

func (c *conn) Read(p []byte) (n int, err error) {
	if len(c.first) > 0 {
		n = copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	// Two halves: after a pause of this process the first has passed, whatever the server
	// sent.
	for range 2 {
		_ = c.SetReadDeadline(time.Now().Add(c.silence / 2)) // the read reports a closed connection
		n, err = c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	_ = c.Close() // ends blocked writes too
	return 0, fmt.Errorf("no message from NATS for %v: %w", c.silence, err)
}
