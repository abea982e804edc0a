package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/change"
	"sluice/pkg/flow"
)

const (
	// attemptLimit bounds one request to NATS: longer than a slow disk needs, shorter
	// than a submitter waits.
	attemptLimit = 3 * time.Second

	// publishLimit bounds a Publish without a nearer deadline, and the attempts at a
	// batch.
	publishLimit = 30 * time.Second

	// patience bounds the wait of a batch for any answer of a server.
	patience = 1500 * time.Millisecond
)

var (
	errLimit   = errors.New("the outcome is unknown")
	errNotSent = errors.New("not sent: the entry before it got no answer")
	errMoved   = errors.New("not sent")
	errVoid    = errors.New("the entry is void")
)

// facts about a message that decide its answer. While either is true, it must not be reported as not stored.
type facts struct {
	inFlight bool // sent, no answer yet
	unsure   bool // an earlier attempt got no answer: the lane may hold it
}

// attempts repeats a request until its outcome is known or the time is up. Every attempt sends the same bytes to the
// same lane, so it does not matter which one arrives.
type attempts struct {
	facts
	link   *link
	cfg    *Config
	m      *metrics
	once   bool      // a second attempt could be a second change
	since  time.Time // start of a caller's wait, if before the first attempt
	silent time.Time // since when no server answers; zero while one does or may
	tries  int
}

func (p *Publisher) attempts() attempts {
	return attempts{link: p.stream.link, cfg: &p.stream.cfg, m: p.stream.m}
}

// until repeats attempt until one has an outcome.
func (a *attempts) until(ctx context.Context, attempt func() error) error {
	for {
		begun := a.cfg.Now()
		err := attempt()
		if err == nil || errors.Is(err, change.ErrStale) {
			return err
		}
		v, reason, answer := judge(err, a.facts)
		open := v == unknown || v == cut
		a.inFlight, a.unsure = false, a.unsure || a.inFlight && open
		if v == giveUp || a.once && open {
			return answer
		}
		a.m.retries.WithLabelValues(reason).Inc()
		a.tries++
		if a.quiet(v, begun) || !a.pause(ctx) {
			return answer
		}
	}
}

// send sends a message to a lane in one attempt. If the lane reports a duplicate, the message is looked up: its id may
// outlive it.
func (a *attempts) send(ctx context.Context, s *Stream, lane *Lane, msg *nats.Msg) (ack, error) {
	a.inFlight = true
	got, err := s.request(ctx, lane, msg)
	if err != nil {
		return got, err
	}
	a.inFlight, a.unsure = false, true // the lane holds it, though it may be void
	if !got.Duplicate {
		return got, nil
	}
	held, err := s.holds(ctx, flow.Place{Lane: lane.Number, Seq: got.Sequence, ID: first(msg.Header, headerID)})
	if err == nil && !held {
		err = fmt.Errorf("%w: lane %d reports it as a duplicate of message %d, which is gone", errVoid, lane.Number, got.Sequence)
	}
	return got, err
}

// quiet reports whether no server has answered for longer than a submitter should wait, after a
// failed attempt since begun. A server that is only slow answers pings and keeps the
// connection.
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
		return false // another server is connected: try it
	}
	return a.cfg.Now().Sub(a.silent) > patience
}

// pause waits between attempts, longer each time unless no server answers, and reports whether
// to continue.
func (a *attempts) pause(ctx context.Context) bool {
	wait := min(25*time.Millisecond<<min(a.tries, 6), time.Second)
	if !a.silent.IsZero() {
		wait = min(wait, 100*time.Millisecond)
	}
	return sleep(ctx, wait/2+time.Duration(a.cfg.Random()%uint64(wait/2))) && ctx.Err() == nil
}

// Error codes of JetStream.
const (
	codeAccountResources      = 10002 // resource limits exceeded for account
	codeNoSuitablePeers       = 10005 // fewer servers than the stream's replicas
	codeClusterUnavailable    = 10008
	codeClusterNotLeader      = 10009
	codeInsufficientResources = 10023
	codeMemoryResources       = 10028
	codeStorageResources      = 10047
	codeMessageTooLarge       = 10054
	codeSequenceNotMatch      = 10063 // the replicas have not agreed yet
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

// errDisconnected ends an attempt whose connection was lost: no answer can arrive.
var errDisconnected = errors.New("the connection to NATS was lost")

// verdict is the handling of a failed attempt.
type verdict int

const (
	giveUp    verdict = iota // a prompt retry would fail again
	again                    // not stored: retry
	unknown                  // perhaps stored: resend the same
	cut                      // perhaps stored, and no connection: resend the same, briefly
	unreached                // no server answers: retry briefly
)

// judge maps every answer of NATS to a publish: the verdict, a label for the metric, and the
// error for the submitter.
func judge(err error, f facts) (v verdict, reason string, answer error) {
	v, reason, answer = judgeAttempt(err)
	if (f.unsure || f.inFlight && (v == unknown || v == cut)) && !errors.Is(answer, flow.ErrUnavailable) {
		answer = unavailable(err, time.Second) // this attempt was refused; an earlier one may be stored
	}
	return v, reason, answer
}

// judgeAttempt maps the error of one attempt.
func judgeAttempt(err error) (v verdict, reason string, answer error) {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, errMoved):
		return giveUp, "moved", &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrHeld, err), After: time.Second}
	case errors.Is(err, errVoid):
		return giveUp, "void", unavailable(err, time.Second)
	case errors.Is(err, flow.ErrHeld):
		return giveUp, "held", err
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
		// A new leader may still receive the old one's message.
		return unknown, "leader", unavailable(err, 5*time.Second)
	case codeAccountResources, codeInsufficientResources, codeMemoryResources, codeStorageResources:
		return giveUp, "resources", unavailable(err, 10*time.Second)
	}
	// Sealed, or another stream on the subject: an operator must fix the server.
	return giveUp, "refused", unavailable(err, 30*time.Second)
}

func unavailable(err error, after time.Duration) error {
	return &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrUnavailable, err), After: after}
}

// held is flow.ErrHeld with a reason.
func held(after time.Duration, format string, args ...any) error {
	return &flow.RetryError{Err: fmt.Errorf("%w: source %s", flow.ErrHeld, fmt.Sprintf(format, args...)), After: after}
}

// gap is flow.ErrGap with details.
func gap(format string, args ...any) error {
	return fmt.Errorf("%w: %s", flow.ErrGap, fmt.Sprintf(format, args...))
}

// isCode reports whether err is of JetStream, with one of these codes.
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
