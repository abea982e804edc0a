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
	// dialLimit is how long one server may take to greet a new connection.
	dialLimit = 2 * time.Second

	// dialWait is how long the client waits for a greeting at a time.
	dialWait = 100 * time.Millisecond

	// greetedFor is how long a connection that was greeted waits for the client:
	// the server closes one on which nothing comes.
	greetedFor = time.Second
)

var errNotGreeted = errors.New("the server has not answered yet")

// dialer makes the connections of a client of NATS. The client holds its lock
// while it connects and while it writes, and every call of it waits for that
// lock, whatever the context of the call says. So neither may last: the system
// takes connections and some of their bytes for a server that stands still.
type dialer struct {
	silence time.Duration // as Config's
	greets  bool          // a server speaks first; not so over websockets

	mu      sync.Mutex
	dialing map[string]chan dialed // by address; each gets exactly one
}

func newDialer(silence time.Duration, greets bool) *dialer {
	return &dialer{silence: silence, greets: greets, dialing: map[string]chan dialed{}}
}

// dialed is what became of a connection.
type dialed struct {
	conn *conn
	err  error
	at   time.Time
}

// Dial gives a connection on which a server has said something. One that takes
// its time is dialed further while the client turns to another server, and is
// there when the client comes back.
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
		_ = got.conn.Close() // too old: it was not used
	}
}

// wait waits a little for the connection to an address, and begins it if no
// other call has.
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

// connect connects to one of the machines of a name, in no order, and to the
// next one if it does not greet.
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

// greeting connects to one machine and waits until it has said something.
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
	_ = raw.SetReadDeadline(deadline) // the read tells when the connection is gone
	c.first = make([]byte, 1)
	if _, err := raw.Read(c.first); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("wait for NATS at %s: %w", address, err)
	}
	return c, nil
}

// conn is a connection that closes itself when the server says nothing for too
// long. The client asks it often enough; closing also ends a write that waits
// for a server which takes nothing.
type conn struct {
	net.Conn
	silence time.Duration
	first   []byte // read already
}

func (c *conn) Read(p []byte) (n int, err error) {
	if len(c.first) > 0 {
		n = copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	// Two halves: when it was this process that stood still, the first has
	// passed, whatever the server may have said.
	for range 2 {
		_ = c.SetReadDeadline(time.Now().Add(c.silence / 2)) // the read tells when the connection is gone
		n, err = c.Conn.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	_ = c.Close() // writers are told as well
	return 0, fmt.Errorf("NATS has said nothing for %v: %w", c.silence, err)
}
