package run_test

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/run"
	"sluice/pkg/api"
	"sluice/pkg/auth"
	"sluice/pkg/dial"
	"sluice/pkg/fatal"
	"sluice/pkg/ops"
	"sluice/pkg/programtest"
	"sluice/pkg/stream"
)

var quiet = slog.New(slog.DiscardHandler)

// A readiness check may come before a part has started.
func TestAnIngesterThatHasNotBegunIsNotReady(t *testing.T) {
	opsServer := ops.New(ops.Config{}, quiet)
	(&run.Ingester{}).Work(nil, nil, opsServer, quiet)
	wantUnready(t, opsServer, "start")
}

func TestAnAPIThatHasNotBegunListensAndIsNotReady(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	fatal.If(t, os.WriteFile(tokens, []byte("- {sha256: "+strings.Repeat("0", 64)+", subject: a, source: a, scopes: [read]}\n"), 0o600))
	nc, err := dial.Connect(dial.Config{URL: "nats://" + programtest.Address(), Name: "test"}, quiet, prometheus.NewRegistry())
	fatal.If(t, err)
	defer nc.Close()
	lanes, err := stream.New(nc, stream.Config{}, quiet, prometheus.NewRegistry())
	fatal.If(t, err)
	opsServer := ops.New(ops.Config{}, quiet)
	api := &run.API{Config: api.Config{Listen: programtest.Address()}, FingerprintKey: filepath.Join(t.TempDir(), "key"), Auth: auth.Config{Tokens: tokens}, Memory: 256 << 20}
	if _, err := api.Serve(lanes, opsServer, quiet); err != nil {
		t.Fatal(err)
	}
	wantUnready(t, opsServer, "stream")
	client, err := net.Dial("tcp", api.Config.Listen)
	fatal.If(t, err)
	client.Close()
}

// wantUnready fails unless the ops port reports the named check as missing.
func wantUnready(t *testing.T, opsServer *ops.Server, name string) {
	t.Helper()
	w := httptest.NewRecorder()
	opsServer.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"name":"`+name+`"`) {
		t.Errorf("got %d %s, want 503 naming %s", w.Code, w.Body, name)
	}
}
