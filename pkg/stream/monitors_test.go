package stream_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sluice/pkg/expect"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// TestAFullDiskIsNamed whether the server runs in this process or reports its health on a
// monitoring page.
func TestAFullDiskIsNamed(t *testing.T) {
	const said = "JetStream stream '$G > FLOW_0' write error: write /data/1.blk: no space left on device"
	monitor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"status":"unavailable","status_code":503,"error":"`+said+`"}`)
			return
		}
		_, _ = io.WriteString(w, `{"storage":900,"config":{"sync_always":true,"max_storage":1000}}`)
	}))
	defer monitor.Close()
	for name, cfg := range map[string]stream.Config{
		"here":  {Trouble: func() error { return errors.New(said) }},
		"there": {Monitors: []string{monitor.URL}},
		"none":  {},
	} {
		reg := prometheus.NewRegistry()
		s := stream.NewOver(nil, cfg, slog.New(slog.DiscardHandler), reg)
		s.AskMonitors(t.Context())
		err := s.Explained(flow.ErrUnavailable)
		if full := errors.Is(err, flow.ErrDiskFull); full != (name != "none") || !errors.Is(err, flow.ErrUnavailable) {
			t.Errorf("%s: got %v", name, err)
		}
		if err := s.Explained(flow.ErrFull); !errors.Is(err, flow.ErrFull) || errors.Is(err, flow.ErrDiskFull) {
			t.Errorf("%s: a full budget is not a full disk: got %v", name, err)
		}
		if name != "there" {
			continue
		}
		want := strings.NewReplacer("SERVER", monitor.URL).Replace(`
# HELP sluice_nats_store_bytes Disk usage of a NATS server's JetStream in bytes.
# TYPE sluice_nats_store_bytes gauge
sluice_nats_store_bytes{server="SERVER"} 900
# HELP sluice_nats_store_max_bytes Disk limit of a NATS server's JetStream in bytes.
# TYPE sluice_nats_store_max_bytes gauge
sluice_nats_store_max_bytes{server="SERVER"} 1000
# HELP sluice_nats_up 1 if a NATS server of --nats-monitors is healthy, else 0.
# TYPE sluice_nats_up gauge
sluice_nats_up{server="SERVER"} 0
`)
		expect.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(want), "sluice_nats_up", "sluice_nats_store_bytes", "sluice_nats_store_max_bytes"))
	}
}
