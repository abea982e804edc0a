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
	// attemptLimit is how long one question to NATS may take before it is asked
	// again: more than a slow disk needs, less than a submitter waits.
	attemptLimit = 3 * time.Second

	// publishLimit ends a Publish whose ctx has no nearer deadline, and the
	// attempts at a batch.
	publishLimit = 30 * time.Second

	// patience is how long a batch waits for any answer of a server.
	patience = 1500 * time.Millisecond
)

var (
	errLimit   = errors.New("its outcome was not known in time")
	errNotSent = errors.New("the entry before it got no answer, and it was not sent")
	errMoved   = errors.New("it was not sent")
	errVoid    = errors.New("it does not count")
)

// facts are the two facts about a message on which the answer to its senders
// depends. While either is true, it may not be reported as not stored.
type facts struct {
	inFlight bool // it was sent, and no answer has come
	unsure   bool // an earlier attempt ended like that: the lane may hold it
}

// attempts are what is tried until its outcome is known, or cannot be known in
// time. Every attempt sends the same to the same lane, so that it does not matter
// which of them arrived.
type attempts struct {
	facts
	link   *link
	cfg    *Config
	m      *metrics
	once   bool      // a second attempt could be a second change
	since  time.Time // since when a caller waits for it, if that was before the first attempt
	silent time.Time // since when nothing answers; zero while something does or may yet
	tries  int
}

// attempts begins some of a Publisher.
func (p *Publisher) attempts() attempts {
	return attempts{link: p.stream.link, cfg: &p.stream.cfg, m: p.stream.m}
}

// until makes attempts until one has an outcome.
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

// send sends a message to a lane, in one attempt. A lane that says it has the message
// already is asked for it: its memory of ids may outlive a message that is gone.
func (a *attempts) send(ctx context.Context, s *Stream, lane *Lane, msg *nats.Msg) (ack, error) {
	a.inFlight = true
	got, err := s.request(ctx, lane, msg)
	if err != nil {
		return got, err
	}
	a.inFlight, a.unsure = false, true // the lane holds it, though it may not count
	if !got.Duplicate {
		return got, nil
	}
	held, err := s.holds(ctx, flow.Place{Lane: lane.Number, Seq: got.Sequence, ID: first(msg.Header, headerID)})
	if err == nil && !held {
		err = fmt.Errorf("%w: lane %d takes it for its message %d, which is gone", errVoid, lane.Number, got.Sequence)
	}
	return got, err
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
	return a.cfg.Now().Sub(a.silent) > patience
}

// pause waits between attempts, longer each time but not while no server answers
// at all, and says whether to go on.
func (a *attempts) pause(ctx context.Context) bool {
	wait := min(25*time.Millisecond<<min(a.tries, 6), time.Second)
	if !a.silent.IsZero() {
		wait = min(wait, 100*time.Millisecond)
	}
	return sleep(ctx, wait/2+time.Duration(a.cfg.Random()%uint64(wait/2))) && ctx.Err() == nil
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

// judge is the one table of what NATS may answer to a publish, and what follows
// from it: what to do next, a label for the metric, and the error for the submitter.
func judge(err error, f facts) (v verdict, reason string, answer error) {
	v, reason, answer = judgeAttempt(err)
	if (f.unsure || f.inFlight && (v == unknown || v == cut)) && !errors.Is(answer, flow.ErrUnavailable) {
		answer = unavailable(err, time.Second) // this attempt was refused, and an earlier one may have been taken
	}
	return v, reason, answer
}

// judgeAttempt judges one attempt by itself.
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
