package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/change"
	"sluice/pkg/record"
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

// attempts is something that is tried until its outcome is known, or nobody will
// know it in time. Every attempt says the same to the same lane, so that it does
// not matter which of them arrived.
type attempts struct {
	link      *link
	m         *metrics
	full      func(error) error // adds to record.ErrFull when to come back; nil where that cannot be
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
	case errors.Is(err, record.ErrHeld):
		return giveUp, "held", err
	}
	v, reason, answer := judge(err)
	switch {
	case v != giveUp || !a.uncertain:
	case errors.Is(answer, record.ErrFull), errors.Is(answer, record.ErrBusy):
		// This attempt was refused. An earlier one may have been taken.
		return v, reason, unavailable(err, time.Second)
	}
	if errors.Is(answer, record.ErrFull) && a.full != nil {
		answer = a.full(answer)
	}
	return v, reason, answer
}

// quiet says whether nobody has answered for longer than a submitter should
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

// pause waits between attempts, longer each time but not while nobody answers
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
