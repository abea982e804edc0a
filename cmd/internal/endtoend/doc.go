// Package endtoend holds the tests that run the built programs as processes:
// real NATS, the real engine, real ports, real kills.
package endtoend
