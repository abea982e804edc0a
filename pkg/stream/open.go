package stream

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/record"
)

const (
	// openLimit ends one try to open: servers without a leader do not answer,
	// and do not come back to it when they have one.
	openLimit = 5 * time.Second

	// openPause is the pause between two tries.
	openPause = 500 * time.Millisecond
)

// untilOpen opens until it succeeds, ctx ends, or something fails that does
// not pass: the servers of a cluster answer connections before they have
// agreed on a leader, and whoever starts meanwhile is not to give up.
func (s *Stream) untilOpen(ctx context.Context) error {
	for said := false; ; said = true {
		try, cancel := context.WithTimeout(ctx, openLimit)
		err := s.open(try)
		cancel()
		if err == nil || !passes(err) {
			return err
		}
		if !said && ctx.Err() == nil {
			s.log.Warn("waiting for JetStream", "error", err)
		}
		if !sleep(ctx, openPause) {
			return err
		}
	}
}

// passes tells whether an error of opening comes from servers that are just
// starting, or from nobody.
func passes(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch api.ErrorCode {
		case codeNoSuitablePeers, codeNotEnabled, codeInsufficientResources:
			return true
		}
		v, _, _ := judgeCode(api)
		return v != giveUp
	}
	for _, transient := range []error{
		record.ErrUnavailable, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrDisconnected,
		nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, jetstream.ErrJetStreamNotEnabled,
	} {
		if errors.Is(err, transient) {
			return true
		}
	}
	return false
}
