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
	healEvery = time.Second // interval of checks
	healRoom  = 64 << 20    // bytes that must be writable before JetStream restarts
)

// heal restarts JetStream after a failed write, as on a full disk. The server freezes a
// stream at its first failed write: unacknowledged messages may be half written, and only
// a restart reads the files again. Until then every publish fails, so no acknowledged
// message is lost.
//
// It heals only a standalone server; in a cluster the replicas take over and the operator
// restarts the server.
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
			s.log.Error("NATS cannot write to its folder; it resumes once space is free", "error", err, "folder", opts.StoreDir)
			said = true
		}
		if err := room(opts.StoreDir); err != nil {
			s.log.Debug("no free space for NATS yet", "error", err)
			continue
		}
		if err := s.restartJetStream(opts); err != nil {
			s.log.Error("restart JetStream", "error", err)
			continue
		}
		s.log.Info("NATS can write again")
	}
}

// Trouble is why the server accepts no messages, or nil.
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

// room fails if healRoom bytes cannot be written.
func room(folder string) error {
	name := filepath.Join(folder, "sluice.room")
	defer os.Remove(name) // truncated by the next try
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close() // synced below
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
