// Package dial connects to NATS. It reconnects after every loss, and drops connections to
// a server that hangs: one that accepts bytes and answers nothing would block all calls of
// the client.
package dial
