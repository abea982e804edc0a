// Package parts runs Sluice as a deployment does: NATS, the engine, an api and
// ingesters, each a process of its own, on free ports of loopback and with all
// data in one folder. What measures Sluice from outside stands on it.
package parts
