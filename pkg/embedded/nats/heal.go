package nats

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	healEvery = time.Second // how often the server is looked at
	healRoom  = 64 << 20    // bytes the disk must take before JetStream is started again
)

// heal starts JetStream again after a write has failed, as on a full disk.
// The server freezes a stream at its first failed write, for good: what was not
// acknowledged may be half written, and only a start reads the files again.
// Meanwhile every publish goes unanswered, so nothing is acknowledged and lost.
//
// Only a server of its own is healed so; one of a cluster leaves its streams to
// the others, and is its operator's business.
func (s *Server) heal(opts *server.Options) {
	defer close(s.healed)
	tick := time.NewTicker(healEvery)
	defer tick.Stop()
	said := false
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		}
		err := s.Trouble()
		if err == nil {
			said = false
			continue
		}
		if !said {
			s.log.Error("NATS cannot write; it resumes when there is room", "error", err, "folder", opts.StoreDir)
			said = true
		}
		if err := room(opts.StoreDir); err != nil {
			s.log.Debug("no room for NATS yet", "error", err)
			continue
		}
		if err := s.restartJetStream(opts); err != nil {
			s.log.Error("start JetStream again", "error", err)
			continue
		}
		s.log.Info("NATS can write again")
	}
}

// Trouble is why the server takes nothing any more, nil while it does.
func (s *Server) Trouble() error {
	if !s.server.JetStreamEnabled() {
		return fmt.Errorf("JetStream has stopped")
	}
	h := s.server.Healthz(&server.HealthzOptions{})
	if h.Status == "ok" || !strings.Contains(h.Error, "write error") {
		return nil
	}
	return fmt.Errorf("%s", h.Error)
}

// room tries whether the disk takes healRoom bytes.
func room(folder string) error {
	name := filepath.Join(folder, "sluice.room")
	defer os.Remove(name) // the next try truncates it
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close() // synced below, or of no use
	chunk := make([]byte, 1<<20)
	for range healRoom / len(chunk) {
		if _, err := f.Write(chunk); err != nil {
			return err
		}
	}
	return f.Sync()
}

func (s *Server) restartJetStream(opts *server.Options) error {
	if err := s.server.ShutdownJetStream(); err != nil {
		return err
	}
	return s.server.EnableJetStream(&server.JetStreamConfig{
		StoreDir:     opts.StoreDir,
		SyncInterval: opts.SyncInterval,
		SyncAlways:   opts.SyncAlways,
		MaxMemory:    opts.JetStreamMaxMemory,
		MaxStore:     opts.JetStreamMaxStore,
		Domain:       opts.JetStreamDomain,
		CompressOK:   true,
		UniqueTag:    opts.JetStreamUniqueTag,
		Strict:       !opts.NoJetStreamStrict,
	})
}
