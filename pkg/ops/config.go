package ops

import (
	"cmp"
	"time"
)

// Config says where a Server listens and how long its answers may take.
type Config struct {
	Listen       string        // host:port; port 0 takes a free one; default 127.0.0.1:8081
	Profiles     string        // host:port of /debug/pprof/, loopback only; off when empty
	CheckTimeout time.Duration // longest one readiness check may take; default 2 s

	Version string   // of the program, for sluice_build_info; default unknown
	Commit  string   // that it was built from; default unknown
	Tracing *Tracing // of the services of the process; nil: nothing is traced
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:8081")
	c.Version, c.Commit = cmp.Or(c.Version, "unknown"), cmp.Or(c.Commit, "unknown")
	c.CheckTimeout = cmp.Or(c.CheckTimeout, 2*time.Second)
	return c
}
