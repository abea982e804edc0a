package stream

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// link watches the connection, so that what waits for an answer hears at once
// when the answer can not come any more: NATS does not tell it.
type link struct {
	nc    *nats.Conn
	heard atomic.Int64 // when a lane has answered last, in Unix nanoseconds

	mu   sync.Mutex
	lost context.CancelCauseFunc // ends live
	live context.Context         // of the present connection; ends when it is lost
}

func newLink(nc *nats.Conn) *link {
	l := &link{nc: nc}
	l.live, l.lost = context.WithCancelCause(context.Background())
	return l
}

// run watches until ctx is done.
func (l *link) run(ctx context.Context) {
	changes := l.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer l.nc.RemoveStatusListener(changes)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
			l.mu.Lock()
			l.lost(errDisconnected)
			l.live, l.lost = context.WithCancelCause(context.Background())
			l.mu.Unlock()
		}
	}
}

// attempt is a context for one question to NATS: it ends after limit, with
// ctx, or when the present connection is lost.
func (l *link) attempt(ctx context.Context, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	ctx, fail := context.WithCancelCause(ctx)
	stop := l.onLoss(func() { fail(errDisconnected) })
	return ctx, func() { stop(); fail(nil); cancel() }
}

// onLoss calls f once when the present connection is lost, unless stopped
// before.
func (l *link) onLoss(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return context.AfterFunc(l.live, f)
}

// answered notes that a lane has answered.
func (l *link) answered() { l.heard.Store(time.Now().UnixNano()) }

// silentSince is since when nobody has answered, as seen by one who asks since
// begun.
func (l *link) silentSince(begun time.Time) time.Time {
	if heard := time.Unix(0, l.heard.Load()); heard.After(begun) {
		return heard
	}
	return begun
}

// up says whether there is a connection.
func (l *link) up() bool { return l.nc.Status() == nats.CONNECTED }
