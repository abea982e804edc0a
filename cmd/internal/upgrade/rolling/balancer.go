package rolling

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sluice/cmd/internal/parts"
)

// balancer hands each connection to an api that is ready, the next one each time,
// as a Service of Kubernetes does: it asks /readyz, and tries another api where
// no process listens any more.
type balancer struct {
	listener net.Listener
	apis     []*backend
	next     atomic.Uint64
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool // owned by mu; nil once closed
}

type backend struct {
	address, ops string
	ready        atomic.Bool
}

// askEvery is how often the balancer asks an api whether it is ready.
const askEvery = 20 * time.Millisecond

func newBalancer(apis []*parts.Part) (*balancer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &balancer{listener: listener, stop: stop, open: map[net.Conn]bool{}}
	for _, p := range apis {
		one := &backend{address: p.HTTP, ops: p.Ops}
		one.ready.Store(true) // its start was waited for
		b.apis = append(b.apis, one)
		b.running.Go(func() { one.watch(ctx) })
	}
	b.running.Go(b.accept)
	return b, nil
}

func (b *balancer) addr() string { return b.listener.Addr().String() }

// close ends every connection, and waits for all that works here.
func (b *balancer) close() {
	b.stop()
	b.listener.Close()
	b.mu.Lock()
	open := b.open
	b.open = nil
	b.mu.Unlock()
	for conn := range open {
		conn.Close()
	}
	b.running.Wait()
}

// watch asks the api whether it is ready until ctx ends.
func (o *backend) watch(ctx context.Context) {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	for sleep(ctx, askEvery) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.ops+"/readyz", nil)
		if err != nil {
			continue
		}
		res, err := client.Do(req)
		if err == nil {
			res.Body.Close()
		}
		o.ready.Store(err == nil && res.StatusCode == http.StatusOK)
	}
}

func (b *balancer) accept() {
	for {
		near, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.running.Go(func() { b.serve(near) })
	}
}

// serve passes bytes between a client and an api until one of them closes.
func (b *balancer) serve(near net.Conn) {
	defer near.Close()
	far := b.dial()
	if far == nil {
		return
	}
	defer far.Close()
	if !b.keep(near, far) {
		return
	}
	defer b.forget(near, far)
	var both sync.WaitGroup
	both.Go(func() { pass(far, near) })
	both.Go(func() { pass(near, far) })
	both.Wait()
}

// pass copies what comes, and then says that nothing more does.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close() // a connection that broke must not look like one that has ended
		return
	}
	_ = to.(*net.TCPConn).CloseWrite() // it may be closed
}

// dial connects to an api that is ready; when none says so, to any that listens, as
// balancers do that would rather hear a refusal than make one; nil when there is none.
func (b *balancer) dial() net.Conn {
	first := b.next.Add(1)
	for _, ready := range []bool{true, false} {
		for i := range b.apis {
			one := b.apis[(first+uint64(i))%uint64(len(b.apis))]
			if one.ready.Load() != ready {
				continue
			}
			if conn, err := net.DialTimeout("tcp", one.address, time.Second); err == nil {
				return conn
			}
		}
	}
	return nil
}

// taken waits until the balancer hands connections to an api that has come back: before
// that the next one must not go.
func (b *balancer) taken(ctx context.Context, p *parts.Part) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, one := range b.apis {
		for one.address == p.HTTP && !one.ready.Load() {
			if !sleep(ctx, askEvery) {
				return fmt.Errorf("the balancer does not see that %s is ready: %w", p.Name, ctx.Err())
			}
		}
	}
	return nil
}

func (b *balancer) keep(conns ...net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		if b.open == nil {
			return false
		}
		b.open[conn] = true
	}
	return true
}

func (b *balancer) forget(conns ...net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range conns {
		delete(b.open, conn)
	}
}
