package run_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sluice/cmd/internal/run"
	"sluice/pkg/ops"
	"sluice/pkg/stream"
)

// Operators may ask before a part has run its first line.
func TestAPartThatHasNotBegunIsNotReady(t *testing.T) {
	for name, part := range map[string]func(*stream.Stream, *ops.Server, *slog.Logger) run.Part{
		"api": (&run.API{}).Serve,
		"ingester": func(lanes *stream.Stream, operators *ops.Server, log *slog.Logger) run.Part {
			return (&run.Ingester{}).Work(lanes, nil, operators, log)
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			operators := ops.New(ops.Config{}, log)
			part(nil, operators, log)
			w := httptest.NewRecorder()
			operators.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), `"name":"start"`) {
				t.Errorf("got %d %s, want 503 naming the start", w.Code, w.Body)
			}
		})
	}
}
