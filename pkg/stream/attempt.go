package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

const (
	// attemptLimit is how long one question to NATS may take before it is asked
	// again: more than a slow disk needs, less than a submitter waits.
	attemptLimit = 3 * time.Second

	// publishLimit ends a Publish whose ctx has no nearer deadline.
	publishLimit = 30 * time.Second

	// patience is how long a Publish waits for any answer.
	patience = 1500 * time.Millisecond
)

var (
	errLimit   = errors.New("its outcome was not known in time")
	errNotSent = errors.New("the time was up before it was sent")
	errMoved   = errors.New("the source has other lanes by now")
	errAnew    = errors.New("it was not sent, and must be routed anew")
	errVoid    = errors.New("it came too late to count")
)

// attempts is something that is tried until its outcome is known, or cannot
// be known in time. Every attempt says the same to the same lane, so that it does
// not matter which of them arrived.
type attempts struct {
	link      *link
	m         *metrics
	full      func(error) error // adds to flow.ErrFull when to come back; nil where that cannot be
	once      bool              // a second attempt could be a second change
	uncertain bool              // an earlier attempt may have arrived
	since     time.Time         // since when a caller waits for it, if that was before the first attempt
	silent    time.Time         // since when nothing answers; zero while something does or may yet
	tries     int
}

// attempts begins some of a Publisher.
func (p *Publisher) attempts() attempts {
	return attempts{link: p.stream.link, m: p.stream.m}
}

// until makes attempts until one has an outcome.
func (a *attempts) until(ctx context.Context, attempt func() error) error {
	for {
		begun := time.Now()
		err := attempt()
		if err == nil || errors.Is(err, change.ErrStale) || errors.Is(err, errAnew) {
			return err
		}
		v, reason, answer := a.judge(err)
		if v == giveUp || a.once && (v == unknown || v == cut) {
			return answer
		}
		a.m.retries.WithLabelValues(reason).Inc()
		a.tries++
		if v == unknown || v == cut {
			a.uncertain = true
		}
		if a.quiet(v, begun) || !a.pause(ctx) {
			return answer
		}
	}
}

// judge is the package's, with what NATS does not know.
func (a *attempts) judge(err error) (verdict, string, error) {
	switch {
	case errors.Is(err, errMoved):
		return giveUp, "moved", unavailable(err, time.Second)
	case errors.Is(err, errVoid):
		return giveUp, "void", unavailable(err, time.Second)
	case errors.Is(err, flow.ErrHeld):
		return giveUp, "held", err
	}
	v, reason, answer := judge(err)
	switch {
	case v != giveUp || !a.uncertain:
	case errors.Is(answer, flow.ErrFull), errors.Is(answer, flow.ErrBusy):
		// This attempt was refused. An earlier one may have been taken.
		return v, reason, unavailable(err, time.Second)
	}
	if errors.Is(answer, flow.ErrFull) && a.full != nil {
		answer = a.full(answer)
	}
	return v, reason, answer
}

// quiet says whether no server has answered for longer than a submitter should
// wait, after an attempt since begun that failed. A server that is only slow
// answers the client's pings, and keeps the connection.
func (a *attempts) quiet(v verdict, begun time.Time) bool {
	up := a.link.up()
	if up && v != unreached && v != cut {
		a.silent = time.Time{}
		return false
	}
	if a.silent.IsZero() {
		if !a.since.IsZero() {
			begun = a.since
		}
		a.silent = a.link.silentSince(begun)
	}
	if up && v == cut {
		return false // another server is there already: ask it
	}
	return time.Since(a.silent) > patience
}

// pause waits between attempts, longer each time but not while no server answers
// at all, and says whether to go on.
func (a *attempts) pause(ctx context.Context) bool {
	wait := min(25*time.Millisecond<<min(a.tries, 6), time.Second)
	if !a.silent.IsZero() {
		wait = min(wait, 100*time.Millisecond)
	}
	return sleep(ctx, wait/2+rand.N(wait/2)) && ctx.Err() == nil
}

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
		return ack{}, lost(ctx, err)
	}
	s.link.answered()
	return answer(lane, resp.Data)
}

// lost is err, or that the connection was lost when that ended ctx.
func lost(ctx context.Context, err error) error {
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

// Error codes of JetStream that decide something here.
const (
	codeAccountResources      = 10002 // resource limits exceeded for account
	codeNoSuitablePeers       = 10005 // fewer servers are there than a stream wants replicas
	codeClusterUnavailable    = 10008
	codeClusterNotLeader      = 10009
	codeInsufficientResources = 10023
	codeMemoryResources       = 10028
	codeStorageResources      = 10047
	codeMessageTooLarge       = 10054
	codeSequenceNotMatch      = 10063 // the replicas do not agree yet
	codeWrongLastSequence     = 10071
	codeNotEnabled            = 10076 // JetStream of a server is not up
	codeStoreFailed           = 10077 // full, when the text says maximum
	codeStreamOffline         = 10118
	codeDuplicateInProcess    = 10158 // the first copy of this id is still being stored
	codeSubjectNotReady       = 10163
	codeWrongLastSequenceR3   = 10164
	codeTooManyRequests       = 10167
	codeStreamOfflineReason   = 10194
)

// errDisconnected ends an attempt whose connection was lost: the answer will
// not come any more.
var errDisconnected = errors.New("the connection to NATS was lost")

// verdict is what to do about a failed attempt.
type verdict int

const (
	giveUp    verdict = iota // it will not get better by trying again soon
	again                    // not stored: try again
	unknown                  // perhaps stored: send the same again
	cut                      // the same, and no server is there to ask: not for long
	unreached                // no server answers: try again, not for long
)

// judge is the one table of what NATS may answer to a publish. The error is
// what the submitter hears when it comes to that; the reason labels the metric.
func judge(err error) (v verdict, reason string, answer error) {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, errStale):
		return unreached, "lanes", unavailable(err, 2*time.Second)
	case errors.As(err, &api):
		return judgeCode(api)
	case errors.Is(err, nats.ErrMaxPayload):
		return giveUp, "too_large", fmt.Errorf("%w: %w", flow.ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders):
		return unreached, "no_responders", unavailable(err, 2*time.Second)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting):
		return unreached, "disconnected", unavailable(err, 2*time.Second)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return giveUp, "closed", unavailable(err, 5*time.Second)
	case isCut(err):
		return cut, "disconnected", unavailable(err, 2*time.Second)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.Canceled):
		return unknown, "timeout", unavailable(err, 2*time.Second)
	}
	return unknown, "other", unavailable(err, 5*time.Second)
}

// isCut tells whether the connection failed under an attempt, or while it was
// written.
func isCut(err error) bool {
	var network *net.OpError
	return errors.Is(err, errDisconnected) || errors.Is(err, nats.ErrDisconnected) ||
		errors.Is(err, net.ErrClosed) || errors.As(err, &network)
}

func judgeCode(err *jetstream.APIError) (verdict, string, error) {
	switch err.ErrorCode {
	case codeStoreFailed:
		if strings.Contains(err.Description, "maximum") {
			return giveUp, "full", fmt.Errorf("%w: %w", flow.ErrFull, err)
		}
		return giveUp, "store_failed", unavailable(err, 5*time.Second)
	case codeTooManyRequests:
		return giveUp, "too_many_requests", &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrBusy, err), After: time.Second}
	case codeMessageTooLarge:
		return giveUp, "too_large", fmt.Errorf("%w: %w", flow.ErrTooLarge, err)
	case codeDuplicateInProcess:
		return again, "duplicate_in_process", unavailable(err, time.Second)
	case codeClusterUnavailable, codeClusterNotLeader, codeSequenceNotMatch, codeSubjectNotReady,
		codeStreamOffline, codeStreamOfflineReason:
		// A new leader may come to have what the old one was given.
		return unknown, "leader", unavailable(err, 5*time.Second)
	case codeAccountResources, codeInsufficientResources, codeMemoryResources, codeStorageResources:
		return giveUp, "resources", unavailable(err, 10*time.Second)
	}
	// Sealed, or another stream on the subject: an operator must mend the
	// server.
	return giveUp, "refused", unavailable(err, 30*time.Second)
}

func unavailable(err error, after time.Duration) error {
	return &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrUnavailable, err), After: after}
}

// held is flow.ErrHeld with the reason.
func held(after time.Duration, format string, args ...any) error {
	return &flow.RetryError{Err: fmt.Errorf("%w: source %s", flow.ErrHeld, fmt.Sprintf(format, args...)), After: after}
}

// gap is flow.ErrGap with what is missing.
func gap(format string, args ...any) error {
	return fmt.Errorf("%w: %s", flow.ErrGap, fmt.Sprintf(format, args...))
}

// isCode says whether err is JetStream's with one of these codes.
func isCode(err error, codes ...jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	for _, code := range codes {
		if api.ErrorCode == code {
			return true
		}
	}
	return false
}

// link watches the connection, so that what waits for an answer hears at once
// when the answer cannot come any more: NATS does not tell it.
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
