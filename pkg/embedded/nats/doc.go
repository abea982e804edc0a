// Package nats runs a NATS server in a Sluice process: JetStream, reachable in process and
// over TCP.
//
// It is the code and the options of nats-server, so that moving to a cluster changes only
// addresses. Every stream is synced to disk before the acknowledgement, which makes a
// PubAck durable.
package nats
