// Package ops serves operators: metrics, liveness, readiness, and profiles of a process, on
// its ops port.
//
//	/metrics       Prometheus: everything registered at Server.Registry
//	/healthz       200 while every Heartbeat beats, else 503 with the stalled ones
//	/readyz        200 when every check passes, else 503 with the failed ones
//	/rejected      of an api: the clients rejected in the last hour, as JSON
//	/debug/pprof/  Go profiles, on a loopback port of their own, off by default
package ops
