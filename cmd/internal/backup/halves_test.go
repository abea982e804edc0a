package backup_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/backup"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

// served is a stream on a server of its own.
func served(t *testing.T, server *natstest.Server) *stream.Stream {
	t.Helper()
	nc, err := dial.Connect(dial.Config{URL: server.URL, Name: "test"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: 16 << 20}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestADeadLetterIsSettledBetweenTheHalvesOfABackup: behind any of its copies one is
// replayed and one dropped. Its message is behind the position of the copied lane, so that
// a restored ingester dead-letters it once more, and what is left is replayed. Each record
// is then in the lane under one request, which is stored once, or was given up.
func TestADeadLetterIsSettledBetweenTheHalvesOfABackup(t *testing.T) {
	order := backup.LaterStreams(1)
	for after := -1; after < len(order); after++ {
		name := "before all copies"
		if after >= 0 {
			name = "behind the copy of " + order[after]
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natstest.Start(t)
			s := served(t, server)
			p, letters := stream.NewPublisher(s), stream.NewDeadLetters(s)
			if _, err := p.Publish(t.Context(), &flow.Submission{
				ID: "one", Hash: "1", Source: "engine", Received: time.Now(), Records: flow.Chunks{{Body: []byte(`[{"id":"r0"},{"id":"r1"}]`), Records: 2}},
			}); err != nil {
				t.Fatal(err)
			}
			setAside := func(letters *stream.DeadLetters) {
				for index := range 2 {
					m := flow.Message{Topic: stream.RecordTopic(0), Seq: 1, Incarnation: 7, Source: "engine", ID: "one", Received: time.Now(), Body: fmt.Appendf(nil, `{"id":"r%d"}`, index), Records: 1}
					if err := letters.SetAside(t.Context(), flow.Dead{Message: m, Index: index, Code: "code", Reason: "reason"}); err != nil {
						t.Fatal(err)
					}
				}
			}
			setAside(letters)
			settle := func() {
				for d, err := range letters.List(t.Context(), stream.DeadFilter{}) {
					if err == nil && d.Index == 0 {
						_, err = letters.Replay(t.Context(), p, d)
					} else if err == nil {
						err = letters.Drop(t.Context(), d)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			folder, copies := t.TempDir(), []backup.File{}
			if after < 0 {
				settle()
			}
			for i, name := range order {
				f := backup.File{Stream: name}
				if err := backup.Snapshot(t.Context(), server.Connect(), &f, folder); err != nil {
					t.Fatal(err)
				}
				copies = append(copies, f)
				if i == after {
					settle()
				}
			}

			other := natstest.Start(t)
			for _, f := range copies {
				if err := f.RestoreStream(t.Context(), other.Connect(), folder); err != nil {
					t.Fatal(err)
				}
			}
			restored := served(t, other)
			p, letters = stream.NewPublisher(restored), stream.NewDeadLetters(restored)
			setAside(letters)
			if after < 0 {
				for d := range letters.List(t.Context(), stream.DeadFilter{}) {
					t.Errorf("letter %d is back", d.Index)
				}
			}
			dropped := map[int]bool{}
			for r, err := range letters.Resolutions(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				dropped[r.Index] = dropped[r.Index] || r.Outcome == stream.OutcomeDropped
			}
			for d, err := range letters.List(t.Context(), stream.DeadFilter{}) {
				if err == nil && !dropped[d.Index] {
					_, err = letters.Replay(t.Context(), p, d)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			requests := map[string]int{}
			lane := restored.Lanes()[0]
			if err := restored.Heads(t.Context(), 0, 2, lane.Last+9, func(e *flow.Entry) error {
				for _, m := range e.Messages {
					requests[m.ID]++
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			// A drop that no copy has seen is as if it had never been.
			want := 1
			if after >= 1 {
				want = 2
			}
			if len(requests) != want {
				t.Errorf("requests of the letters in the lane: %v, want %d", requests, want)
			}
		})
	}
}
