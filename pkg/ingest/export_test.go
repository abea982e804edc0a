package ingest

import "sync/atomic"

// ShareOf is where a lane closes its block when so many are worked on.
func ShareOf(cfg Config, lanes int32) int {
	peers := new(atomic.Int32)
	peers.Store(lanes)
	return (&lane{health: health{cfg: cfg.withDefaults()}, peers: peers}).maxBytes()
}
