package stream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/broker"
	"sluice/pkg/flow"
)

// ack is the acknowledgement of a lane.
type ack = broker.Ack

// request sends a message to a lane and waits for its acknowledgement, in one attempt. Without
// an error the message is on disk.
func (s *Stream) request(ctx context.Context, lane *Lane, msg *nats.Msg) (ack, error) {
	if !s.link.up() {
		return ack{}, nats.ErrConnectionReconnecting
	}
	ctx, done := s.link.attempt(ctx, attemptLimit)
	defer done()
	got, err := s.js.Publish(ctx, msg)
	var refused *jetstream.APIError
	if err != nil && !errors.As(err, &refused) {
		return ack{}, lossCause(ctx, err)
	}
	s.link.answered()
	if err == nil && got.Stream != lane.Stream {
		err = fmt.Errorf("stream %q answered for lane %d", got.Stream, lane.Number)
	}
	return got, err
}

// holds reports whether a lane's leader has the message of this sequence and id. Sequence and time
// prove nothing about a lane that may have been set back.
func (s *Stream) holds(ctx context.Context, place flow.Place) (bool, error) {
	if !s.link.up() {
		return false, nats.ErrConnectionReconnecting
	}
	ctx, done := s.link.attempt(ctx, attemptLimit)
	defer done()
	msg, err := s.message(ctx, place.Lane, place.Seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
		return false, nil
	case err != nil:
		return false, lossCause(ctx, err)
	}
	s.link.answered()
	return first(msg.Header, headerID) == place.ID, nil
}

// lossCause is err, or errDisconnected if a lost connection ended ctx.
func lossCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// link watches the connection, so that waiting calls end as soon as their answer cannot arrive:
// nats.go does not report it.
type link struct {
	js         broker.Broker
	now        func() time.Time
	lastAnswer atomic.Int64 // last answer of a lane, unix ns

	mu         sync.Mutex
	cancelLive context.CancelCauseFunc
	live       context.Context // of the current connection; ends when it is lost
}

func newLink(js broker.Broker, now func() time.Time) *link {
	l := &link{js: js, now: now}
	l.live, l.cancelLive = context.WithCancelCause(context.Background())
	return l
}

// run watches until ctx is done.
func (l *link) run(ctx context.Context) {
	l.js.Lost(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cancelLive(errDisconnected)
		l.live, l.cancelLive = context.WithCancelCause(context.Background())
	})
}

// attempt is a context for one request to NATS: it ends after limit, with ctx, or when the
// connection is lost.
func (l *link) attempt(ctx context.Context, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	ctx, fail := context.WithCancelCause(ctx)
	stop := l.onLoss(func() { fail(errDisconnected) })
	return ctx, func() { stop(); fail(nil); cancel() }
}

// onLoss calls f once when the current connection is lost, unless stopped.
func (l *link) onLoss(f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return context.AfterFunc(l.live, f)
}

func (l *link) answered() { l.lastAnswer.Store(l.now().UnixNano()) }

// silentSince is since when no server has answered a caller that asks since begun.
func (l *link) silentSince(begun time.Time) time.Time {
	if lastAnswer := time.Unix(0, l.lastAnswer.Load()); lastAnswer.After(begun) {
		return lastAnswer
	}
	return begun
}

// up reports whether there is a connection.
func (l *link) up() bool {
	status, _ := l.js.Status()
	return status == nats.CONNECTED
}
