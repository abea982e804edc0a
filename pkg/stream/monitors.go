package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"sluice/pkg/flow"
)

// checkSync reads from the monitoring pages whether the servers sync every message before the
// acknowledgement. Otherwise a power failure may lose acknowledged messages.
func (s *Stream) checkSync(ctx context.Context) error {
	if len(s.cfg.Monitors) == 0 {
		s.log.Debug("sync_interval is not checked: set --nats-monitors")
		return nil
	}
	for _, url := range s.cfg.Monitors {
		always, err := syncsAlways(ctx, url)
		if err != nil {
			s.log.Warn("NATS monitoring does not answer: sync_interval cannot be checked", "url", shown(url), "error", err)
			continue
		}
		if always {
			continue
		}
		if !s.cfg.AllowLazySync {
			return fmt.Errorf("the NATS server at %s acknowledges messages before syncing them: set jetstream { sync_interval: always }", shown(url))
		}
		s.log.Warn("the NATS server acknowledges messages before syncing them: a power failure may lose some", "url", shown(url))
	}
	return nil
}

// shown is a URL without its password.
func shown(monitor string) string {
	parsed, err := url.Parse(monitor)
	if err != nil {
		return "of --nats-monitors, which is invalid"
	}
	return parsed.Redacted()
}

// syncsAlways reads whether a server syncs every message.
func syncsAlways(ctx context.Context, monitor string) (bool, error) {
	kept, err := storeOf(ctx, monitor)
	return err == nil && kept.Config.SyncAlways, err
}

// store is the JetStream part of a monitoring page.
type store struct {
	Bytes  float64 `json:"storage"`
	Config *struct {
		SyncAlways bool    `json:"sync_always"`
		MaxBytes   float64 `json:"max_storage"`
	} `json:"config"`
}

func storeOf(ctx context.Context, monitor string) (s store, err error) {
	if _, err := page(ctx, monitor, "/jsz", &s); err != nil {
		return s, err
	}
	if s.Config == nil {
		return s, errors.New("the page has no JetStream data")
	}
	return s, nil
}

// page reads a monitoring page. An unhealthy server's has its own status and a reason.
func page(ctx context.Context, monitor, path string, into any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(monitor, "/")+path, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() // read to its end or abandoned
	return resp.StatusCode, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into)
}

// askMonitors sets the metrics of servers, and records one that cannot write.
func (s *Stream) askMonitors(ctx context.Context) {
	var all sync.WaitGroup
	troubles := make([]string, len(s.cfg.Monitors))
	for i, monitor := range s.cfg.Monitors {
		all.Go(func() {
			server := shown(monitor)
			var health struct {
				Error string `json:"error"`
			}
			up := 0.0
			if status, err := page(ctx, monitor, "/healthz", &health); err == nil && status == http.StatusOK {
				up = 1
			}
			troubles[i] = health.Error
			s.m.serverUp.WithLabelValues(server).Set(up)
			if kept, err := storeOf(ctx, monitor); err == nil {
				s.m.storeBytes.WithLabelValues(server).Set(kept.Bytes)
				s.m.storeMax.WithLabelValues(server).Set(kept.Config.MaxBytes)
			}
		})
	}
	all.Wait()
	trouble := strings.Join(troubles, "; ")
	s.trouble.Store(&trouble)
}

// explained adds the cause of an unanswered publish: a server with a full disk does not answer.
func (s *Stream) explained(err error) error {
	if !errors.Is(err, flow.ErrUnavailable) {
		return err
	}
	trouble := ""
	if said := s.trouble.Load(); said != nil {
		trouble = *said
	}
	if s.cfg.Trouble != nil {
		if why := s.cfg.Trouble(); why != nil {
			trouble = why.Error()
		}
	}
	if !strings.Contains(trouble, "no space left") && !strings.Contains(trouble, "disk quota exceeded") {
		return err
	}
	return &flow.RetryError{Err: fmt.Errorf("%w: %w", flow.ErrDiskFull, err), After: 15 * time.Second}
}
