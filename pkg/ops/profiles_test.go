package ops_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"sluice/pkg/fatal"
	"sluice/pkg/ops"
)

func TestProfilesAreNotOnTheOperatorsPort(t *testing.T) {
	if code, body := get(t, newServer(), "/debug/pprof/cmdline"); code != http.StatusNotFound {
		t.Errorf("got %d %s, want 404", code, body)
	}
}

func TestProfilesListenOnLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.7:0", "example.org:0", "127.0.0.1"} {
		s := ops.New(ops.Config{Listen: "127.0.0.1:0", Profiles: address}, slog.New(slog.DiscardHandler))
		if _, err := s.Listen(); err == nil || !strings.Contains(err.Error(), "profiles") {
			t.Errorf("%s: got %v, want a refusal", address, err)
		}
	}
}

func TestProfilesAreForTheSameMachineOnly(t *testing.T) {
	s := ops.New(ops.Config{Listen: "127.0.0.1:0", Profiles: "127.0.0.1:0"}, slog.New(slog.DiscardHandler))
	if _, err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
	})
	_, port, err := net.SplitHostPort(s.ProfilesAddr().String())
	fatal.If(t, err)
	tests := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"by the address", func(*http.Request) {}, 200},
		{"by localhost", func(r *http.Request) { r.Host = "localhost:" + port }, 200},
		{"by the IPv6 address", func(r *http.Request) { r.Host = "[::1]:" + port }, 200},
		{"typed into a browser", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 200},
		{"by a name that a page gave to this address", func(r *http.Request) { r.Host = "rebound.example:" + port }, 403},
		{"by a page of another site", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"by a script of another site", func(r *http.Request) { r.Header.Set("Origin", "https://example.org") }, 403},
		{"forwarded by a proxy here", func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2.7") }, 403},
		{"forwarded by a newer proxy here", func(r *http.Request) { r.Header.Set("Forwarded", "for=192.0.2.7") }, 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/debug/pprof/cmdline", nil)
			fatal.If(t, err)
			tt.change(r)
			answer, err := http.DefaultClient.Do(r)
			fatal.If(t, err)
			defer answer.Body.Close()
			if body, _ := io.ReadAll(answer.Body); answer.StatusCode != tt.want {
				t.Errorf("got %d %s, want %d", answer.StatusCode, body, tt.want)
			}
		})
	}
}
