package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/stream"
)

// view looks at NATS from outside, past the links.
type view struct {
	stage *stage
	nc    *nats.Conn
	js    jetstream.JetStream
}

func newView(s *stage) (*view, error) {
	nc, err := nats.Connect(natsURL(s.natsAddrs), nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	return &view{stage: s, nc: nc, js: js}, err
}

func (v *view) close() { v.nc.Close() }

// drained waits until everything accepted is stored.
func (v *view) drained(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var lanes *stream.Stream
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			var err error
			if lanes == nil {
				if lanes, err = stream.Open(ctx, v.nc, stream.Config{}, log, prometheus.NewRegistry()); err != nil {
					return err
				}
			}
			lags, err := lanes.Lag(ctx)
			for _, l := range lags {
				if l.Messages > 0 {
					err = errors.Join(err, fmt.Errorf("lane %d: %d messages wait after %d", l.Lane, l.Messages, l.Done))
				}
			}
			return err
		}()
		if err == nil {
			return nil
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return fmt.Errorf("not everything was stored in time: %w", err)
		}
	}
}

// void is how many records came too late to count.
func (v *view) void(ctx context.Context) (n uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	lanes, err := stream.Open(ctx, v.nc, stream.Config{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		return 0, err
	}
	for _, lane := range lanes.LaneNumbers() {
		at, err := stream.NewPositions(lanes).Read(ctx, lane)
		if err != nil {
			return 0, err
		}
		n += at.Totals.Void
	}
	return n, nil
}

// dead is how many records were set aside.
func (v *view) dead(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	letters, err := v.js.Stream(ctx, stream.DeadStream)
	if err != nil {
		return 0, err
	}
	return letters.CachedInfo().State.Msgs, nil
}
