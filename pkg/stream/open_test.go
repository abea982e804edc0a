package stream_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/pkg/change"
	"sluice/pkg/dial"
	embedded "sluice/pkg/embedded/nats"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/stream"
)

func TestEverythingIsMadeAsItMustBe(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 7 << 20, DeadMaxBytes: 3 << 20, DuplicateWindow: 90 * time.Second})
	js := w.jetStream()
	info, err := js.StreamInfo("FLOW_0")
	fatal.If(t, err)
	got := info.Config
	got.Metadata, got.Description = nil, ""
	want := nats.StreamConfig{
		Name: "FLOW_0", Subjects: []string{"flow.0.record", "flow.0.move", "flow.0.tick", "flow.0.change.>"}, Storage: nats.FileStorage, Retention: nats.LimitsPolicy,
		Discard: nats.DiscardNew, MaxBytes: 7 << 20, MaxMsgSize: 16 << 20, Duplicates: 90 * time.Second, Replicas: 1,
		MaxConsumers: -1, MaxMsgs: -1, MaxMsgsPerSubject: -1,
	}
	expect.Equal(t, "lane 0", want, got)
	for name, ttl := range map[string]time.Duration{"KV_flow_lanes": 0, "KV_flow_leases": 10 * time.Second, "KV_flow_state": 0} {
		info, err := js.StreamInfo(name)
		fatal.If(t, err)
		expect.Not(t, info.Config.AllowDirect || info.Config.MaxAge != ttl || info.Config.Storage != nats.FileStorage, "%s: %+v", name, info.Config)
	}
	if info, err = js.StreamInfo("FLOW_DEAD"); err != nil || info.Config.MaxBytes != 3<<20 || info.Config.MaxAge != 0 {
		t.Errorf("FLOW_DEAD: %+v, %v", info.Config, err)
	}
}

func TestAnExistingStreamIsCorrectedOrKept(t *testing.T) {
	w := open(t, stream.Config{MaxBytes: 7 << 20, DuplicateWindow: 90 * time.Second})
	js := w.jetStream()
	info, err := js.StreamInfo("FLOW_0")
	fatal.If(t, err)
	cfg := info.Config
	cfg.Discard, cfg.AllowDirect, cfg.MaxMsgSize = nats.DiscardOld, true, -1
	if _, err := js.UpdateStream(&cfg); err != nil {
		t.Fatal(err)
	}

	ctx := t.Context()
	if _, err := stream.Open(ctx, w.nc, stream.Config{}, quiet(), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	if info, err = js.StreamInfo("FLOW_0"); err != nil {
		t.Fatal(err)
	}
	got := info.Config
	expect.Not(t, got.Discard != nats.DiscardNew || got.AllowDirect || got.MaxMsgSize != 16<<20, "not fixed: %+v", got)
	expect.Not(t, got.MaxBytes != 7<<20 || got.Duplicates != 90*time.Second, "changed unasked: %+v", got)
	// A new lane has the configuration of the present ones, which stay unchanged.
	operator := openOn(t, w.server, stream.Config{MaxBytes: 7 << 20})
	if _, err := operator.AddLane(ctx); err != nil {
		t.Fatal(err)
	}
	for _, lane := range []string{"FLOW_0", "FLOW_1"} {
		if info, err = js.StreamInfo(lane); err != nil || info.Config.Duplicates != 90*time.Second {
			t.Errorf("the window of %s: %v, %v, want 1m30s", lane, info.Config.Duplicates, err)
		}
	}
	if _, err := stream.Open(ctx, w.nc, stream.Config{MaxBytes: 9 << 20, DuplicateWindow: 2 * time.Minute}, quiet(), prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	if info, err = js.StreamInfo("FLOW_0"); err != nil || info.Config.MaxBytes != 9<<20 || info.Config.Duplicates != 2*time.Minute {
		t.Errorf("not changed although asked: %+v, %v", info.Config, err)
	}
}

// TestProgramsThatStartAtOnceFindOneStream: the server counts the storage of a stream just created
// by one against all others.
func TestProgramsThatStartAtOnceFindOneStream(t *testing.T) {
	t.Parallel()
	const lane = 512 << 20
	for range 10 {
		server := natstest.StartWith(t, embedded.Config{MaxStore: lane + lane - 64<<20})
		var group errgroup.Group
		for range 8 {
			nc := server.Connect()
			group.Go(func() error {
				_, err := stream.Open(t.Context(), nc, stream.Config{MaxBytes: lane, DeadMaxBytes: 1 << 20}, quiet(), prometheus.NewRegistry())
				return err
			})
		}
		fatal.If(t, group.Wait())
		server.Stop()
	}
}

func TestAStreamThatWouldLoseRecordsIsRefused(t *testing.T) {
	lane := nats.StreamConfig{Name: "FLOW_0", Subjects: []string{"flow.0.record", "flow.0.change.>"}}
	for name, c := range map[string]struct {
		change func(*nats.StreamConfig)
		want   string
	}{
		"in memory":             {func(c *nats.StreamConfig) { c.Storage = nats.MemoryStorage }, "storage is not file"},
		"gone once read":        {func(c *nats.StreamConfig) { c.Retention = nats.WorkQueuePolicy }, "retention is not limits"},
		"gone after a while":    {func(c *nats.StreamConfig) { c.MaxAge = time.Hour }, "max age is 1h0m0s"},
		"of an earlier format":  {func(c *nats.StreamConfig) { c.Metadata = nil }, "has format 0, from before"},
		"of a later format":     {func(c *nats.StreamConfig) { c.Metadata = map[string]string{stream.FormatKey: "99"} }, "has format 99"},
		"without acknowledging": {func(c *nats.StreamConfig) { c.NoAck = true }, "does not acknowledge"},
	} {
		t.Run(name, func(t *testing.T) {
			server := natstest.Start(t)
			nc := server.Connect()
			js, err := nc.JetStream()
			fatal.If(t, err)
			cfg := lane
			cfg.Metadata = map[string]string{stream.FormatKey: strconv.Itoa(flow.Format)}
			c.change(&cfg)
			if _, err := js.AddStream(&cfg); err != nil {
				t.Fatal(err)
			}
			_, err = stream.Open(t.Context(), nc, stream.Config{}, quiet(), prometheus.NewRegistry())
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "FLOW_0") {
				t.Errorf("got %v, want %q of FLOW_0", err, c.want)
			}
		})
	}
}

func TestNoRoomForALaneIsSaidInWords(t *testing.T) {
	server := natstest.StartWith(t, embedded.Config{MaxStore: 1 << 20})
	_, err := stream.Open(t.Context(), server.Connect(), stream.Config{MaxBytes: 2 << 20}, quiet(), prometheus.NewRegistry())
	expect.Not(t, err == nil || !strings.Contains(err.Error(), "not enough disk") || !strings.Contains(err.Error(), "-max-bytes "), "got %v", err)
}

func TestOpenWaitsForNATSAsLongAsItMay(t *testing.T) {
	server := natstest.Start(t)
	server.Stop()
	nc, err := dial.Connect(dial.Config{URL: server.URL, Name: "test"}, quiet(), prometheus.NewRegistry())
	fatal.When(t, err != nil, "connect while no server answers: %v", err)
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := stream.Open(ctx, nc, stream.Config{}, quiet(), prometheus.NewRegistry()); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, flow.ErrUnavailable)
	}
	server.Restart()
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := stream.Open(ctx, nc, stream.Config{MaxBytes: 1 << 20}, quiet(), prometheus.NewRegistry())
	fatal.If(t, err)
	if err := s.Check(ctx); err != nil {
		t.Errorf("check: %v", err)
	}
	server.Stop()
	for nc.IsConnected() {
		time.Sleep(time.Millisecond)
	}
	if err := s.Check(ctx); !errors.Is(err, flow.ErrUnavailable) {
		t.Errorf("check while NATS is away: got %v, want %v", err, flow.ErrUnavailable)
	}
}

func TestAServerThatDoesNotSyncIsRefused(t *testing.T) {
	always := natstest.StartWith(t, embedded.Config{Monitor: "127.0.0.1:0"})
	// No server of ours is lazy: a monitoring page simulates one.
	lazy := jsz(t, `{"config": {"sync_always": false}}`)
	old := jsz(t, `{"config": {}}`)
	broken := jsz(t, `<html>`)
	for name, c := range map[string]struct {
		monitors []string
		allow    bool
		refused  bool
	}{
		"one that syncs":              {[]string{always.Embedded().MonitorURL()}, false, false},
		"one that does not":           {[]string{always.Embedded().MonitorURL(), lazy}, false, true},
		"one that does not report it": {[]string{old}, false, true},
		"one that does not, allowed":  {[]string{lazy}, true, false},
		"one that does not answer":    {[]string{"http://127.0.0.1:1"}, false, false},
		"one that is something else":  {[]string{broken}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := stream.Config{MaxBytes: 1 << 20, Monitors: c.monitors, AllowLazySync: c.allow}
			_, err := stream.Open(t.Context(), always.Connect(), cfg, quiet(), prometheus.NewRegistry())
			expect.Not(t, (err != nil) != c.refused || (err != nil && !strings.Contains(err.Error(), "sync_interval: always")), "got %v, want refused: %v", err, c.refused)
		})
	}
}

// jsz serves a monitoring page.
func jsz(t *testing.T, page string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/jsz" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestAStreamThatIsNotOpenYet: New opens nothing, earlier callers get a retryable error, and Run
// opens it.
func TestAStreamThatIsNotOpenYet(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Connect()
	s, err := stream.New(nc, stream.Config{MaxBytes: 1 << 20}, quiet(), prometheus.NewRegistry())
	fatal.If(t, err)
	p := stream.NewPublisher(s)
	for name, ask := range map[string]func() error{
		"publish":     func() error { _, err := p.Publish(t.Context(), submission("id", 10)); return err },
		"change":      func() error { _, _, err := p.PublishChange(t.Context(), patch("ann", "id", nil)); return err },
		"last change": func() error { _, err := s.LastChange(t.Context(), change.Target{User: "ann"}); return err },
		"stored":      func() error { return s.WaitStored(t.Context(), nil) },
		"check":       func() error { return s.Check(t.Context()) },
		"state":       func() error { _, err := s.State(); return err },
		"leases":      func() error { _, err := s.Leases(); return err },
		"dead-letter": func() error { return stream.NewDeadLetters(s).Publish(t.Context(), flow.Dead{}) },
	} {
		var retry *flow.RetryError
		if err := ask(); !errors.Is(err, flow.ErrUnavailable) || !errors.As(err, &retry) {
			t.Errorf("%s: got %v, want %v with a retry delay", name, err, flow.ErrUnavailable)
		}
	}
	js, err := nc.JetStream()
	fatal.If(t, err)
	for name := range js.StreamNames() {
		t.Errorf("stream %s was made", name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	fatal.If(t, s.Opened(t.Context()))
	if _, err := p.Publish(t.Context(), submission("id", 10)); err != nil {
		t.Errorf("after it is open: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}
