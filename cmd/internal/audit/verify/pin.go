package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// pinLasting is the lifetime of a pin when verify dies; each is renewed after a third.
const pinLasting = 3 * time.Minute

// errPurged: a purge that began before the pin took messages still to be read.
var errPurged = errors.New("messages were purged while they were verified")

// pinned calls do with the messages still to be read pinned against purging.
func (v *verifier) pinned(ctx context.Context, lanes []*lane, do func(context.Context) error) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, l := range lanes {
			_ = v.stream.Unpin(ctx, l.Lane.Lane, stream.PinVerify) // else it expires
		}
	}()
	pin := func(ctx context.Context) error {
		for _, l := range lanes {
			if err := v.stream.Pin(ctx, l.Lane.Lane, stream.PinVerify, l.pin.Load(), pinLasting); err != nil {
				return err
			}
		}
		return nil
	}
	for _, l := range lanes {
		l.pin.Store(l.First)
	}
	if err := pin(ctx); err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for {
			select {
			case <-working.Done():
				return
			case <-time.After(pinLasting / 3):
				_ = pin(working) // the next attempt comes before the pin expires
			}
		}
	})
	defer renewing.Wait()
	defer stop()
	return do(working)
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
