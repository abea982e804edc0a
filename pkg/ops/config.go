package ops

import (
	"cmp"
	"time"
)

// Config configures a Server.
type Config struct {
	Listen       string        // host:port; port 0 for a free one; default 127.0.0.1:8081
	Profiles     string        // host:port of /debug/pprof/, loopback only; off when empty
	CheckTimeout time.Duration // of one readiness check; default 2 s

	Version string // for sluice_build_info; default unknown
	Commit  string // of the build; default unknown
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8081")
	c.Version, c.Commit = cmp.Or(c.Version, "unknown"), cmp.Or(c.Commit, "unknown")
	c.CheckTimeout = cmp.Or(c.CheckTimeout, 2*time.Second)
	return c
}
