package ingest

import "sync/atomic"

// ShareOf is the limit at which a lane closes its block when this many are active.
func ShareOf(cfg Config, lanes int32) int {
	peers := new(atomic.Int32)
	peers.Store(lanes)
	return (&lane{health: health{cfg: cfg.withDefaults()}, peers: peers}).maxBytes()
}
