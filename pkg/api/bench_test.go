package api_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/benchtest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
)

// instant is a Stream that cuts every request and publishes it at once.
type instant struct{}

func (instant) Publish(_ context.Context, sub *flow.Submission) (flow.Receipt, error) {
	_, err := sub.Records.Cut(1)
	return flow.Receipt{}, err
}

// discard is a ResponseWriter that drops the response.
type discard struct {
	h      http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

type rewound struct{ bytes.Reader }

func (*rewound) Close() error { return nil }

// BenchmarkPost is a request through the whole api, without network and NATS.
func BenchmarkPost(b *testing.B) {
	benchtest.Requests(b, func(b *testing.B, bodies [][]byte, records int) {
		s, err := api.New(api.Config{}, api.Deps{Auth: allSubjects, Stream: instant{}, Dead: &letters{}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		fatal.If(b, err)
		var again rewound
		r := httptest.NewRequest(http.MethodPost, "/flow/flowRecord/batch", nil)
		r.Header.Set("Authorization", "Bearer engine")
		r.Header.Set("Content-Type", "application/json")
		r.Body = io.ReadCloser(&again)
		w := &discard{h: http.Header{}}
		benchtest.Records(b, bodies, records, func(i int) {
			again.Reset(bodies[i])
			r.ContentLength = int64(len(bodies[i]))
			clear(w.h)
			s.Handler().ServeHTTP(w, r)
			fatal.When(b, w.status != 0 && w.status != http.StatusOK, "got %d", w.status)
		})
	})
}
