package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
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
			s.log.Warn("NATS monitoring does not answer: sync_interval cannot be checked", "url", Redact(url), "error", err)
			continue
		}
		if always {
			continue
		}
		if !s.cfg.AllowLazySync {
			return fmt.Errorf("the NATS server at %s acknowledges messages before they are on disk: set jetstream { sync_interval: always } there", Redact(url))
		}
		s.log.Warn("the NATS server acknowledges messages before they are on disk: a power failure may lose some", "url", Redact(url))
	}
	return nil
}

func syncsAlways(ctx context.Context, url string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/jsz", nil)
	if err != nil {
		return false, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close() // read to its end or given up
	var page struct {
		Config *struct {
			SyncAlways bool `json:"sync_always"`
		} `json:"config"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return false, err
	}
	if page.Config == nil {
		return false, errors.New("it says nothing about JetStream")
	}
	return page.Config.SyncAlways, nil
}
