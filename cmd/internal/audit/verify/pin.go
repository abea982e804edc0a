package verify

import (
	"context"
	"errors"
	"fmt"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// errPurged: a purge that began before the pin took messages still to be read.
var errPurged = errors.New("messages were purged while they were verified")

// pinned calls do with the messages still to be read pinned against purging.
func (v *verifier) pinned(ctx context.Context, lanes []*lane, do func(context.Context) error) error {
	for _, l := range lanes {
		l.pin.Store(l.First)
	}
	return v.stream.Pinned(ctx, stream.PinVerify, func() map[int]uint64 {
		from := map[int]uint64{}
		for _, l := range lanes {
			from[l.Lane.Lane] = l.pin.Load()
		}
		return from
	}, do)
}

// orPurged replaces the error of reading a purged message by errPurged.
func (l *lane) orPurged(ctx context.Context, seq uint64, err error) error {
	if !errors.Is(err, flow.ErrGap) {
		return err
	}
	if failed := l.stream.Refresh(ctx); failed != nil {
		return failed
	}
	for _, info := range l.stream.Lanes() {
		if info.Number == l.Lane.Lane && info.First > seq {
			return fmt.Errorf("%w: lane %d begins at %d, after message %d: run sluice verify again, or keep a longer history (--history)", errPurged, info.Number, info.First, seq)
		}
	}
	return err
}
