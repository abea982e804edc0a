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

	"sluice/pkg/record"
)

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
	cut                      // the same, and nobody is there to ask: not for long
	unreached                // nobody answers: try again, not for long
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
		return giveUp, "too_large", fmt.Errorf("%w: %w", record.ErrTooLarge, err)
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
			return giveUp, "full", fmt.Errorf("%w: %w", record.ErrFull, err)
		}
		return giveUp, "store_failed", unavailable(err, 5*time.Second)
	case codeTooManyRequests:
		return giveUp, "too_many_requests", &record.RetryError{Err: fmt.Errorf("%w: %w", record.ErrBusy, err), After: time.Second}
	case codeMessageTooLarge:
		return giveUp, "too_large", fmt.Errorf("%w: %w", record.ErrTooLarge, err)
	case codeDuplicateInProcess:
		return again, "duplicate_in_process", unavailable(err, time.Second)
	case codeClusterUnavailable, codeClusterNotLeader, codeSequenceNotMatch, codeSubjectNotReady,
		codeStreamOffline, codeStreamOfflineReason:
		// A new leader may come to have what the old one was given.
		return unknown, "leader", unavailable(err, 5*time.Second)
	case codeAccountResources, codeInsufficientResources, codeMemoryResources, codeStorageResources:
		return giveUp, "resources", unavailable(err, 10*time.Second)
	}
	// Sealed, or another stream on the subject: somebody must mend the server.
	return giveUp, "refused", unavailable(err, 30*time.Second)
}

func unavailable(err error, after time.Duration) error {
	return &record.RetryError{Err: fmt.Errorf("%w: %w", record.ErrUnavailable, err), After: after}
}

// held is record.ErrHeld with the reason.
func held(after time.Duration, format string, args ...any) error {
	return &record.RetryError{Err: fmt.Errorf("%w: source %s", record.ErrHeld, fmt.Sprintf(format, args...)), After: after}
}

// gap is record.ErrGap with what is missing.
func gap(format string, args ...any) error {
	return fmt.Errorf("%w: %s", record.ErrGap, fmt.Sprintf(format, args...))
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
