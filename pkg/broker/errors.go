package broker

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// plain is an error of NATS in words for an operator: nats.go calls a lost connection a buffer
// limit, and prints numbers of the API.
type plain struct{ error }

// plainly rewords the error of a call. That of a caller that stopped stays as it is.
func plainly(err *error) {
	if *err != nil && !errors.Is(*err, context.Canceled) {
		*err = plain{*err}
	}
}

func (p plain) Unwrap() error { return p.error }

func (p plain) Error() string {
	is := func(all ...error) bool {
		for _, one := range all {
			if errors.Is(p.error, one) {
				return true
			}
		}
		return false
	}
	var api *jetstream.APIError
	switch {
	case errors.As(p.error, &api) && api.Description != "":
		return "NATS answers: " + api.Description
	case is(nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrDisconnected):
		return "NATS does not answer: the connection is lost"
	case is(context.DeadlineExceeded, nats.ErrTimeout):
		return "NATS does not answer: timeout"
	case is(nats.ErrNoResponders):
		return "NATS does not answer: JetStream has no leader or is not enabled"
	}
	return strings.TrimPrefix(p.error.Error(), "nats: ")
}
