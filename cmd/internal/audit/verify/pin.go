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

// pinLasting is how long lanes are not purged when verify dies. It renews its pins three
// times in it.
const pinLasting = 3 * time.Minute

// errPurged says that messages were purged between two looks: by a purge that had begun
// before they were pinned. What was counted of them cannot be compared any more.
var errPurged = errors.New("messages were purged while they were verified")

// pinned calls do while the messages that it has still to read are not purged.
func (v *verifier) pinned(ctx context.Context, lanes []*lane, do func(context.Context) error) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, l := range lanes {
			_ = v.stream.Unpin(ctx, l.Lane.Lane, stream.PinVerify) // else it ends by itself
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
				_ = pin(working) // the next time; until then the pin lasts
			}
		}
	})
	defer renewing.Wait()
	defer stop()
	return do(working)
}

// orPurged is the error of reading a message: errPurged when the lane begins behind it.
func (l *lane) orPurged(ctx context.Context, seq uint64, err error) error {
	if !errors.Is(err, flow.ErrGap) {
		return err
	}
	if failed := l.stream.Refresh(ctx); failed != nil {
		return failed
	}
	for _, info := range l.stream.Lanes() {
		if info.Number == l.Lane.Lane && info.First > seq {
			return fmt.Errorf("%w: lane %d begins at %d and message %d was to be read: run it again, or let lanes keep a longer history", errPurged, info.Number, info.First, seq)
		}
	}
	return err
}
