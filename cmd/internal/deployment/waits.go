package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/programtest"
	"sluice/pkg/stream"
)

// waitFor bounds waits that normally take seconds.
const waitFor = time.Minute

// until retries try until it succeeds. At the end of ctx it returns the last error.
func until(ctx context.Context, every time.Duration, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !Sleep(ctx, every) {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
	}
}

func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *Deployment) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	for _, p := range d.Processes {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// WaitRows waits for this number of stored records, and fails after a minute without any.
func (d *Deployment) WaitRows(ctx context.Context, records int64) error {
	var last int64
	for moved := time.Now(); last < records; time.Sleep(500 * time.Millisecond) {
		now, err := d.Number(ctx, "SELECT count() FROM flow.records")
		if err != nil {
			return err
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > waitFor {
			return fmt.Errorf("%d of %d records are stored, and none for a minute", last, records)
		}
	}
	if last > records {
		return fmt.Errorf("%d rows are stored for %d records", last, records)
	}
	return nil
}

// WaitMerged waits until the engine has merged nothing for three seconds.
func (d *Deployment) WaitMerged(ctx context.Context) error {
	for quiet := 0; quiet < 15; quiet++ {
		merges, err := d.Number(ctx, "SELECT count() FROM system.merges")
		if err != nil {
			return err
		}
		if merges > 0 {
			quiet = -1
		}
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

// JetStream returns a direct connection to NATS, without a link. Close closes it.
func (d *Deployment) JetStream() (jetstream.JetStream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.nc == nil {
		nc, err := nats.Connect(d.NATSURL, nats.MaxReconnects(-1), nats.ReconnectWait(200*time.Millisecond),
			nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1))
		if err != nil {
			return nil, err
		}
		d.nc = nc
	}
	return jetstream.New(d.nc)
}

// WaitStored waits until no lane has a backlog.
func (d *Deployment) WaitStored(ctx context.Context) error {
	js, err := d.JetStream()
	if err != nil {
		return err
	}
	var lanes *stream.Stream
	return until(ctx, 200*time.Millisecond, "every accepted record is stored", func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if lanes == nil {
			if lanes, err = stream.Open(ctx, js.Conn(), stream.Config{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err != nil {
				return err
			}
		}
		lags, err := lanes.Lag(ctx)
		for _, l := range lags {
			if l.Messages > 0 {
				err = errors.Join(err, fmt.Errorf("lane %d: backlog of %d messages after %d", l.Lane, l.Messages, l.Done))
			}
		}
		return err
	})
}

// Leader returns the NATS server that leads a stream.
func (d *Deployment) Leader(ctx context.Context, name string) (*Process, error) {
	js, err := d.JetStream()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	cluster := s.CachedInfo().Cluster
	if cluster == nil || cluster.Leader == "" || d.Process(cluster.Leader) == nil {
		return nil, fmt.Errorf("%s has no leader", name)
	}
	return d.Process(cluster.Leader), nil
}

func (d *Deployment) WaitCurrent(ctx context.Context) error {
	return until(ctx, 500*time.Millisecond, "every replica of every stream is current", func() error {
		for _, p := range d.Of(NATS) {
			if err := programtest.AnswersOK(ctx, "http://"+p.HTTP+"/healthz"); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
		}
		return d.current(ctx)
	})
}

func (d *Deployment) current(ctx context.Context) error {
	js, err := d.JetStream()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	streams, n := js.ListStreams(ctx), 0
	for info := range streams.Info() {
		n++
		if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != len(d.Of(NATS))-1 {
			return fmt.Errorf("stream %s has no leader or not all replicas", info.Config.Name)
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Offline || r.Lag > 0 {
				return fmt.Errorf("stream %s: %s is behind", info.Config.Name, r.Name)
			}
		}
	}
	if err := streams.Err(); err != nil {
		return err
	}
	if n == 0 {
		return errors.New("NATS lists no streams")
	}
	return nil
}
