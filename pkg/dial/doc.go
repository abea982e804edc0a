// Package dial makes connections to NATS. They are made again whenever they are
// lost, and given up when a server stands still: one that takes connections and
// bytes, and answers nothing, would hold up all calls of the client.
package dial
