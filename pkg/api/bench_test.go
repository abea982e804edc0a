package api_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/api"
	"sluice/pkg/benchtest"
	"sluice/pkg/flow"
	"sluice/pkg/load"
	"sluice/pkg/load/camunda"
)

// instant is a Stream that takes everything at once.
type instant struct{}

func (instant) Slots(context.Context, string) (int, error) { return 1, nil }

func (instant) Publish(context.Context, *flow.Submission) (flow.Receipt, error) {
	return flow.Receipt{}, nil
}

// discard is an answer that is not read.
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
	benchtest.Requests(b, func(b *testing.B, bodies [][]byte, records int) {
		s, err := api.New(api.Config{}, api.Deps{Auth: allSubjects, Stream: instant{}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			b.Fatal(err)
		}
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
			if w.status != 0 && w.status != http.StatusOK {
				b.Fatalf("got %d", w.status)
			}
		})
	})
}

// BenchmarkDoor compares the doors: the same thousand records as an array, and
// as a bulk of Camunda's exporters, whose answer names every item.
func BenchmarkDoor(b *testing.B) {
	const records = 1000
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: 1, Envelope: load.FullEnvelope})
	if err != nil {
		b.Fatal(err)
	}
	array, bulk := []byte("["), []byte(nil)
	for i := range records {
		if i > 0 {
			array = append(array, ',')
		}
		start := len(array)
		array = g.Append(array)
		bulk = camunda.Append(bulk, 1, array[start:])
	}
	array = append(array, ']')
	s, err := api.New(api.Config{}, api.Deps{Auth: allSubjects, Stream: instant{}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	doors := []*struct {
		name, path, authorization string
		handler                   http.Handler
		body                      []byte
		took                      time.Duration
	}{
		{name: "array", path: "/flow/flowRecord/batch", authorization: "Bearer engine", handler: s.Handler(), body: array},
		{name: "bulk", path: "/_bulk", authorization: basic("cluster-a", "engine"), handler: s.ElasticHandler(), body: bulk},
	}
	var again rewound
	w := &discard{h: http.Header{}}
	for b.Loop() {
		for _, door := range doors { // in turns, so that whatever else the machine does falls on both
			r := httptest.NewRequest(http.MethodPost, door.path, nil)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Authorization", door.authorization)
			r.Body, r.ContentLength = io.ReadCloser(&again), int64(len(door.body))
			again.Reset(door.body)
			clear(w.h)
			began := time.Now()
			door.handler.ServeHTTP(w, r)
			door.took += time.Since(began)
			if w.status != 0 && w.status != http.StatusOK {
				b.Fatalf("%s: got %d", door.name, w.status)
			}
		}
	}
	for _, door := range doors {
		b.ReportMetric(float64(door.took.Nanoseconds())/float64(b.N)/records, door.name+"-ns/record")
	}
	b.ReportMetric(float64(doors[1].took)/float64(doors[0].took), "bulk/array")
}
