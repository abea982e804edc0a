// Package nats is the NATS server inside a Sluice process: JetStream with
// every acknowledged message on disk, reachable in process and over TCP.
//
// It runs the same server as a nats-server of its own, through the same
// options, so that moving from one machine to a cluster changes where clients
// connect and nothing else. Every stream of this server is synced to disk
// before it acknowledges: this is what makes a PubAck durable.
package nats
