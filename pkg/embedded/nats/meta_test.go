package nats_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/embedded/nats"
)

// TestAnInterruptedChangeOfAStreamIsFinished: killed between the two files that
// a change of the configuration replaces, the server would not know the stream.
func TestAnInterruptedChangeOfAStreamIsFinished(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	folder := filepath.Join(data, "jetstream", "$G", "streams", "S")
	change := func(window time.Duration) {
		s := start(t, nats.Config{Data: data})
		defer s.Shutdown()
		nc, err := s.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js := stream(t, nc)
		if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
			t.Fatal(err)
		}
		if _, err := js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Duplicates: window}); err != nil {
			t.Fatal(err)
		}
	}
	change(time.Minute)
	before, err := os.ReadFile(filepath.Join(folder, "meta.sum"))
	if err != nil {
		t.Fatal(err)
	}
	change(2 * time.Minute)
	if err := os.WriteFile(filepath.Join(folder, "meta.sum"), before, 0o640); err != nil {
		t.Fatal(err)
	}

	s := start(t, nats.Config{Data: data})
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	found, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatalf("the stream is gone: %v", err)
	}
	if info := found.CachedInfo(); info.State.Msgs != 2 || info.Config.Duplicates != 2*time.Minute {
		t.Errorf("%d messages, window %v, want 2 and 2m", info.State.Msgs, info.Config.Duplicates)
	}
}
