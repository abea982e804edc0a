package deployment

import "sluice/pkg/programtest"

// Process is a program of a deployment.
type Process struct {
	*programtest.Process
	Kind string // API

	// Address is where programs connect: NATS's clients, the engine's native protocol.
	// HTTP is where people and engines do: records and pages, queries of the engine,
	// monitoring of NATS. Elastic is the api's listener for Camunda's exporter.
	Address, HTTP, Elastic string

	Data string // folder of its data; empty when it has none
}
