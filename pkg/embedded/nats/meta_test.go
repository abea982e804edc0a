package nats_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"sluice/pkg/embedded/nats"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestAnInterruptedChangeOfAStreamIsFinished: a configuration change replaces two files; after a
// kill between them, the server would lose the stream.
func TestAnInterruptedChangeOfAStreamIsFinished(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	folder := filepath.Join(data, "jetstream", "$G", "streams", "S")
	change := func(window time.Duration) {
		s := start(t, nats.Config{Data: data})
		defer s.Shutdown()
		nc, err := s.Connect()
		fatal.If(t, err)
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
	fatal.If(t, err)
	change(2 * time.Minute)
	fatal.If(t, os.WriteFile(filepath.Join(folder, "meta.sum"), before, 0o640))

	s := start(t, nats.Config{Data: data})
	nc, err := s.Connect()
	fatal.If(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	fatal.If(t, err)
	found, err := js.Stream(t.Context(), "S")
	fatal.When(t, err != nil, "the stream is gone: %v", err)
	if info := found.CachedInfo(); info.State.Msgs != 2 || info.Config.Duplicates != 2*time.Minute {
		t.Errorf("%d messages, window %v, want 2 and 2m", info.State.Msgs, info.Config.Duplicates)
	}
}

// TestAServerThatRanAloneJoinsNoCluster: NATS would delete its streams.
func TestAServerThatRanAloneJoinsNoCluster(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	alone := start(t, nats.Config{Data: data})
	nc, err := alone.Connect()
	fatal.If(t, err)
	js := stream(t, nc)
	if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	alone.Shutdown()

	conf := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("server_name: n1\nlisten: \"127.0.0.1:-1\"\njetstream { store_dir: %q }\ncluster { name: c, listen: \"127.0.0.1:-1\", routes: [\"nats://127.0.0.1:1\"] }\n", data)
	fatal.If(t, os.WriteFile(conf, []byte(text), 0o600))
	s, err := nats.Start(nats.Config{ConfigFile: conf}, discard())
	if err == nil {
		s.Shutdown()
	}
	if err == nil || !strings.Contains(err.Error(), "standalone") || !strings.Contains(err.Error(), "sluice backup and restore") {
		t.Errorf("as one of several: got %v, want that it would delete its stream", err)
	}

	again := start(t, nats.Config{Data: data})
	if nc, err = again.Connect(); err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	info, err := stream(t, nc).Stream(t.Context(), "S")
	expect.Not(t, err != nil || info.CachedInfo().State.Msgs != 1, "alone again, the stream has lost its message: %+v, %v", info, err)
}
