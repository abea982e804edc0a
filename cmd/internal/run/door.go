package run

import (
	"context"
	"sync/atomic"
	"time"

	"sluice/pkg/change"
	"sluice/pkg/record"
	"sluice/pkg/state"
	"sluice/pkg/stream"
)

// door stands before the stream and the state until they are open: an api that
// starts while NATS is away answers its clients instead of refusing their
// connections.
type door struct{ opened atomic.Pointer[behindDoor] }

type behindDoor struct {
	*stream.Stream
	*stream.Publisher
	dead *stream.DeadLetters
	*state.Store
	*state.Usage
}

// errClosed is the answer until the door opens. Nothing was published.
var errClosed = &record.RetryError{Err: record.ErrUnavailable, After: time.Second}

func (d *door) Publish(ctx context.Context, sub *record.Submission) (record.Receipt, error) {
	if open := d.opened.Load(); open != nil {
		return open.Publish(ctx, sub)
	}
	return record.Receipt{}, errClosed
}

func (d *door) Slots(ctx context.Context, source string) (int, error) {
	if open := d.opened.Load(); open != nil {
		return open.Slots(ctx, source)
	}
	return 0, errClosed
}

func (d *door) Stored(ctx context.Context, source string) error {
	if open := d.opened.Load(); open != nil {
		return open.Stored(ctx, source)
	}
	return errClosed
}

func (d *door) PublishChange(ctx context.Context, c *change.Change) (uint64, bool, error) {
	if open := d.opened.Load(); open != nil {
		return open.PublishChange(ctx, c)
	}
	return 0, false, errClosed
}

func (d *door) LastChange(ctx context.Context, t change.Target) (change.Last, error) {
	if open := d.opened.Load(); open != nil {
		return open.LastChange(ctx, t)
	}
	return change.Last{}, errClosed
}

func (d *door) Entry(ctx context.Context, t change.Target) (change.Entry, error) {
	if open := d.opened.Load(); open != nil {
		return open.Entry(ctx, t)
	}
	return change.Entry{}, errClosed
}

func (d *door) Fields(subject string, t change.Target) (n int, own, ready bool) {
	if open := d.opened.Load(); open != nil {
		return open.Fields(subject, t)
	}
	return 0, false, false
}

func (d *door) Expect(subject string, t change.Target, size int) {
	if open := d.opened.Load(); open != nil {
		open.Expect(subject, t, size)
	}
}

func (d *door) Full() bool {
	open := d.opened.Load()
	return open != nil && open.Full()
}

func (d *door) SetAside(ctx context.Context, letter record.Dead) error {
	if open := d.opened.Load(); open != nil {
		return open.dead.SetAside(ctx, letter)
	}
	return errClosed
}

func (d *door) check(ctx context.Context) error {
	if open := d.opened.Load(); open != nil {
		if err := open.Stream.Check(ctx); err != nil {
			return err
		}
		return open.Publisher.Check()
	}
	return errClosed
}
