package broker

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/expect"
)

// TestErrorsAreInPlainWords, and stay what they are.
func TestErrorsAreInPlainWords(t *testing.T) {
	for want, is := range map[string]error{
		"NATS answers: message not found":                                 jetstream.ErrMsgNotFound,
		"NATS does not answer: the connection is lost":                    nats.ErrReconnectBufExceeded,
		"NATS does not answer: timeout":                                   context.DeadlineExceeded,
		"NATS does not answer: JetStream has no leader or is not enabled": nats.ErrNoResponders,
		"maximum payload exceeded":                                        nats.ErrMaxPayload,
		"context canceled":                                                context.Canceled,
	} {
		err := is
		plainly(&err)
		expect.Equal(t, "text", want, err.Error())
		expect.Not(t, !errors.Is(err, is), "%v is not %v any more", err, is)
	}
}
