package run

import (
	"context"
	"errors"

	"sluice/pkg/stream"
)

// Part is something that runs until its context ends, and then returns nil.
type Part = func(context.Context) error

// InOrder runs parts of which each needs those after it until its own end:
// when ctx ends they are stopped one after the other, the first one first. A
// part that ends by itself stops all the others in the same way.
func InOrder(ctx context.Context, parts ...Part) error {
	if len(parts) == 1 {
		return parts[0](ctx)
	}
	firstCtx, stopFirst := context.WithCancel(ctx)
	defer stopFirst()
	restCtx, stopRest := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRest()

	rest := make(chan error, 1)
	go func() {
		defer stopFirst()
		rest <- InOrder(restCtx, parts[1:]...)
	}()
	err := parts[0](firstCtx)
	stopRest()
	return errors.Join(err, <-rest)
}

// after is a part that begins once the lanes are open.
func after(lanes *stream.Stream, part Part) Part {
	return func(ctx context.Context) error {
		if err := lanes.Opened(ctx); err != nil {
			return nil // stopped before
		}
		return part(ctx)
	}
}

// unlessStopped forgets an error that came because ctx ended.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
