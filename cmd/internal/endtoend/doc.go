// Package endtoend tests the built programs as processes, with the real NATS, the real
// engine, real ports, and real kills.
package endtoend
