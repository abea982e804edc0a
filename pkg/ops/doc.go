// Package ops is what operators see of a process: its metrics, whether it is
// alive, whether it is ready, and its profiles, on a port of their own.
//
//	/metrics       Prometheus: everything registered at Server.Registry
//	/healthz       200 while every Heartbeat beats, 503 naming those that do not
//	/readyz        200 when every check passes, 503 naming what is missing
//	/rejected      of an api: the clients that it rejected in the last hour, as JSON
//	/debug/pprof/  Go profiles, on a loopback port of their own, off unless asked for
package ops
