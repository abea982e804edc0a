// Package supervise keeps the process of the ClickHouse engine running: a
// Supervisor starts it as a child, watches whether it answers, and starts it again
// when it dies; Child is the other end, in that process.
package supervise
