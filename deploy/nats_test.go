package deploy_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/record"
	"sluice/pkg/stream"
)

func TestNATSSyncsBeforeItAcknowledges(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "n1e5")
	opts, err := server.ProcessConfigFile("nats.conf")
	if err != nil {
		t.Fatal(err)
	}
	if !opts.JetStream || !opts.SyncAlways {
		t.Errorf("JetStream %t, sync always %t; want both", opts.JetStream, opts.SyncAlways)
	}
	if opts.MaxPayload != 16<<20 || opts.MaxPending != 256<<20 || opts.JetStreamMaxStore < 8<<30 {
		t.Errorf("messages of %d bytes, %d pending, store of %d", opts.MaxPayload, opts.MaxPending, opts.JetStreamMaxStore)
	}
	if opts.Username != "sluice" || opts.Password != "n1e5" {
		t.Errorf("the server lets in %q with %q", opts.Username, opts.Password)
	}
	if opts.StoreDir != "" {
		t.Errorf("the folder %s is named here and by whoever starts the server", opts.StoreDir)
	}
}

// startNATS starts a server with this configuration, on ports of its own.
func startNATS(t *testing.T) *embedded.Server {
	t.Helper()
	config := filepath.Join(t.TempDir(), "nats.conf")
	content := append(read(t, "nats.conf"), "\nlisten: \"127.0.0.1:-1\"\nhttp: \"127.0.0.1:-1\"\n"...)
	if err := os.WriteFile(config, content, 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := embedded.Start(embedded.Config{Data: t.TempDir(), ConfigFile: config}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return srv
}

func TestSluiceWorksOnTheNATSOfCompose(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "n1e5")
	srv := startNATS(t)
	if nc, err := nats.Connect(srv.ClientURL()); err == nil {
		nc.Close()
		t.Error("the server lets in who has no password")
	}
	nc, err := nats.Connect(srv.ClientURL(), nats.UserInfo("sluice", "n1e5"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lanes, err := stream.Open(ctx, nc, stream.Config{Monitors: []string{srv.MonitorURL()}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	publisher := stream.NewPublisher(lanes)
	_, err = publisher.Publish(ctx, &record.Submission{
		ID: "engine.1", Hash: "00", Subject: "engine", Received: time.Now(),
		Parts: []record.Part{{Body: []byte(`[{"id":"1-1"}]`), Records: 1}},
	})
	if err != nil {
		t.Errorf("publish: %v", err)
	}
}
