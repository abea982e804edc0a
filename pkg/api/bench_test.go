package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/record"
)

// instant is a Stream that takes everything at once.
type instant struct{}

func (instant) Publish(context.Context, *record.Submission) (record.Receipt, error) {
	return record.Receipt{}, nil
}

// discard is an answer that nobody reads.
type discard struct {
	h      http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// rewound is a body that can be read again.
type rewound struct{ bytes.Reader }

func (*rewound) Close() error { return nil }

// BenchmarkPost is a request through the whole api, without network and stream.
func BenchmarkPost(b *testing.B) {
	samples, err := os.ReadFile("testdata/records.ndjson")
	if err != nil {
		b.Fatal(err)
	}
	first, _, _ := strings.Cut(string(samples), "\n")
	for _, records := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			list := make([]string, records)
			for i := range list {
				list[i] = strings.Replace(first, "1-7554", fmt.Sprintf("1-%d", i), 1)
			}
			body := []byte("[" + strings.Join(list, ",") + "]")
			s, err := api.New(api.Config{}, api.Deps{Auth: everyone, Stream: instant{}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			var again rewound
			r := httptest.NewRequest(http.MethodPost, "/flow/flowRecord/batch", nil)
			r.Header.Set("Authorization", "Bearer engine")
			r.Header.Set("Content-Type", "application/json")
			r.Body, r.ContentLength = io.ReadCloser(&again), int64(len(body))
			w := &discard{h: http.Header{}}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				again.Reset(body)
				clear(w.h)
				s.Handler().ServeHTTP(w, r)
				if w.status != 0 && w.status != http.StatusOK {
					b.Fatalf("got %d", w.status)
				}
			}
		})
	}
}
