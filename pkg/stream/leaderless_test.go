package stream_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
)

// TestOpenWaitsForALeader: one server of three accepts connections, but nothing can be looked up
// or created until there are two.
func TestOpenWaitsForALeader(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	for i := range 3 {
		cluster.Stop(i)
	}
	cluster.Start(0)
	reg := prometheus.NewRegistry()
	nc, err := dial.Connect(dial.Config{URL: cluster.URL, Name: "early"}, quiet(), reg)
	fatal.If(t, err)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		_, err := stream.Open(ctx, nc, stream.Config{Replicas: 3, MaxBytes: 64 << 20}, quiet(), reg)
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opened without a leader: %v", err)
	case <-time.After(6 * time.Second): // one look-up takes five
	}
	cluster.Start(1)
	cluster.Start(2)
	if err := <-opened; err != nil {
		t.Errorf("open: %v", err)
	}
}
