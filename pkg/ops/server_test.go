package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ops"
)

func get(t *testing.T, s *ops.Server, path string, change ...func(*http.Request)) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = "127.0.0.1:40000"
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func newServer() *ops.Server {
	return ops.New(ops.Config{Listen: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	tests := []struct {
		name   string
		checks map[string]error
		code   int
		want   string
	}{
		{"nothing to check", nil, 200, `{"ready":true,"missing":[]}`},
		{"everything is there", map[string]error{"nats": nil}, 200, `{"ready":true,"missing":[]}`},
		{"one thing is missing", map[string]error{"nats": errors.New("not connected")}, 503,
			`{"ready":false,"missing":[{"name":"nats","reason":"not connected"}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer()
			for name, err := range tt.checks {
				s.AddCheck(name, func(context.Context) error { return err })
			}
			code, body := get(t, s, "/readyz")
			expect.Not(t, code != tt.code || strings.TrimSpace(body) != tt.want, "got %d %s, want %d %s", code, body, tt.code, tt.want)
			_, metrics := get(t, s, "/metrics")
			if ready := strings.Contains(metrics, "sluice_ready 1\n"); ready != (tt.code == 200) || !ready && !strings.Contains(metrics, "sluice_ready 0\n") {
				t.Errorf("sluice_ready is 1: %t, want %t", ready, tt.code == 200)
			}
		})
	}
}

func TestNotReadyUntilEveryPartHasStarted(t *testing.T) {
	s := newServer()
	first, second := s.Starting("the first listens"), s.Starting("the second listens")
	for _, step := range []struct {
		started func()
		want    string
	}{
		{func() {}, `{"ready":false,"missing":[{"name":"start","reason":"the first listens"},{"name":"start","reason":"the second listens"}]}`},
		{first, `{"ready":false,"missing":[{"name":"start","reason":"the second listens"}]}`},
		{second, `{"ready":true,"missing":[]}`},
	} {
		step.started()
		if _, body := get(t, s, "/readyz"); strings.TrimSpace(body) != step.want {
			t.Errorf("got %s, want %s", body, step.want)
		}
	}
}

func TestACheckThatHangsCountsAsMissingAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ops.New(ops.Config{CheckTimeout: 2 * time.Second}, slog.New(slog.DiscardHandler))
		release := make(chan struct{})
		s.AddCheck("stuck", func(context.Context) error { <-release; return nil })
		s.AddCheck("fine", func(context.Context) error { return nil })
		start := time.Now()
		code, body := get(t, s, "/readyz")
		close(release)
		expect.Equal(t, "answered after", 2*time.Second, time.Since(start))
		if want := `{"ready":false,"missing":[{"name":"stuck","reason":"no answer within 2s"}]}`; code != 503 || strings.TrimSpace(body) != want {
			t.Errorf("got %d %s, want 503 %s", code, body, want)
		}
	})
}

func TestAliveWhileEveryHeartbeatBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		beat := s.Heartbeat("lane 0", 10*time.Second)
		alive := func() bool {
			code, body := get(t, s, "/healthz")
			var got struct {
				Alive   bool
				Stalled []struct{ Name, Reason string }
			}
			fatal.If(t, json.Unmarshal([]byte(body), &got))
			expect.Not(t, got.Alive != (code == 200) || got.Alive != (len(got.Stalled) == 0), "got %d %s: status and body disagree", code, body)
			return got.Alive
		}
		steps := []struct {
			name string
			do   func()
			want bool
		}{
			{"just started", func() {}, true},
			{"silent for less than the stall", func() { time.Sleep(9 * time.Second) }, true},
			{"silent for longer than the stall", func() { time.Sleep(2 * time.Second) }, false},
			{"beats again", beat.Beat, true},
			{"retired and silent", func() { beat.Retire(); time.Sleep(time.Hour) }, true},
			{"started again under the same name", func() { beat = s.Heartbeat("lane 0", 10*time.Second); time.Sleep(11 * time.Second) }, false},
		}
		for _, step := range steps {
			step.do()
			if got := alive(); got != step.want {
				t.Errorf("%s: alive is %t, want %t", step.name, got, step.want)
			}
		}
	})
}

func TestRunServesUntilItsContextEnds(t *testing.T) {
	s := newServer()
	addr, err := s.Listen()
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	resp, err := http.Get("http://" + addr.String() + "/healthz")
	fatal.If(t, err)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	fatal.If(t, err)
	expect.Equal(t, "healthz", `{"alive":true,"stalled":[]}`, strings.TrimSpace(string(body)))
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: got %v, want nil", err)
	}
}

func TestAPortInUseIsAnError(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer ln.Close()
	s := ops.New(ops.Config{Listen: ln.Addr().String()}, slog.New(slog.DiscardHandler))
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Run: got %v, want address already in use", err)
	}
}
