package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ack is what a lane answers to a message.
type ack struct {
	Error     *jetstream.APIError `json:"error"`
	Stream    string              `json:"stream"`
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
}

// request sends a message to a lane and waits for its answer, in one attempt.
// Once it returns without an error the message is on disk.
func (s *Stream) request(ctx context.Context, lane *Lane, msg *nats.Msg) (ack, error) {
	if !s.link.up() {
		return ack{}, nats.ErrConnectionReconnecting
	}
	ctx, done := s.link.attempt(ctx, attemptLimit)
	defer done()
	resp, err := s.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return ack{}, lossCause(ctx, err)
	}
	s.link.answered()
	return answer(lane, resp.Data)
}

// lossCause is err, or that the connection was lost when that ended ctx.
func lossCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// answer reads a lane's answer to a message.
func answer(lane *Lane, data []byte) (ack, error) {
	var a ack
	if err := json.Unmarshal(data, &a); err != nil {
		return ack{}, fmt.Errorf("read the answer of lane %d: %w", lane.Number, err)
	}
	if a.Error != nil {
		return a, a.Error
	}
	if a.Stream != lane.Stream {
		return a, fmt.Errorf("stream %q answered for lane %d", a.Stream, lane.Number)
	}
	return a, nil
}

// link watches the connection, so that what waits for an answer hears at once
// when the answer cannot come any more: NATS does not tell it.
type link struct {
	nc    *nats.Conn
	heard atomic.Int64 // when a lane has answered last, in Unix nanoseconds

	mu         sync.Mutex
	cancelLive context.CancelCauseFunc
	live       context.Context // of the present connection; ends when it is lost
}

func newLink(nc *nats.Conn) *link {
	l := &link{nc: nc}
	l.live, l.cancelLive = context.WithCancelCause(context.Background())
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
			l.cancelLive(errDisconnected)
			l.live, l.cancelLive = context.WithCancelCause(context.Background())
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

// silentSince is since when no server has answered, as seen by a caller that asks since
// begun.
func (l *link) silentSince(begun time.Time) time.Time {
	if heard := time.Unix(0, l.heard.Load()); heard.After(begun) {
		return heard
	}
	return begun
}

// up says whether there is a connection.
func (l *link) up() bool { return l.nc.Status() == nats.CONNECTED }
