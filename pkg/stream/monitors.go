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

// checkSync asks the monitoring pages of the servers whether they sync every
// message before acknowledging it. A server that does not may lose what it
// acknowledged when its machine stops.
func (s *Stream) checkSync(ctx context.Context) error {
	if len(s.cfg.Monitors) == 0 {
		s.log.Debug("no NATS monitoring URL is configured: sync_interval cannot be checked")
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
			return fmt.Errorf("the NATS server at %s acknowledges messages before they are on disk: set jetstream { sync_interval: always } there", shown(url))
		}
		s.log.Warn("the NATS server acknowledges messages before they are on disk: a power failure may lose some", "url", shown(url))
	}
	return nil
}

// shown is a URL without its password.
func shown(monitor string) string {
	parsed, err := url.Parse(monitor)
	if err != nil {
		return "of --nats-monitors that is none"
	}
	return parsed.Redacted()
}

// syncsAlways asks a server whether it syncs every message.
func syncsAlways(ctx context.Context, monitor string) (bool, error) {
	kept, err := storeOf(ctx, monitor)
	return err == nil && kept.Config.SyncAlways, err
}

// store is what a server shows of JetStream.
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
		return s, errors.New("it says nothing about JetStream")
	}
	return s, nil
}

// page reads a monitoring page. One of a server that is not healthy has a status of
// its own, and says why.
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
	defer resp.Body.Close() // read to its end or given up
	return resp.StatusCode, json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(into)
}

// askMonitors shows which servers are healthy and how full their stores are, and notes
// the one that cannot write.
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

// explained names the cause of a failure that its submitter cannot see: a server whose
// disk is full leaves what it is sent unanswered.
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
