// Package dial makes connections to NATS. They are made again whenever they are
// lost, and given up when a server stands still: one that takes connections and
// bytes, and answers nothing, would hold up everybody who waits for the client.
package dial
