// Package supervise keeps the process of the ClickHouse engine running: a Supervisor starts
// it as a child, probes it, and restarts it; Child is its counterpart in that process.
package supervise
