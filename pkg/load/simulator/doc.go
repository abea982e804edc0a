// Package simulator simulates a workflow engine: it writes the records of Zeebe while it runs process instances, and keeps the
// truth, with which results computed from the records can be compared.
//
// An Engine is a discrete-event simulation. Its agenda orders the next steps by time. Each step is a batch: one external command,
// and the events and commands that follow, all with its position as their source. Positions and keys are counted per partition;
// commands take a position whether exported or not. The same Config gives the same bytes.
//
// The files follow a record from its cause to its text:
//
//	models.go      processes, their elements, possible failures
//	engine.go      the agenda and the records
//	partition.go   keys, positions, batches
//	flow.go        the life of an element, from sequence flow to sequence flow
//	jobs.go        service tasks: activated, failed, timed out, completed
//	waits.go       user tasks, timers, messages
//	decisions.go   business rule tasks and their decisions
//	scopes.go      sub-processes, call activities, multi-instance bodies, gateways
//	operators.go   incidents resolved, instances canceled and migrated
//	variables.go   variables and their scopes
//	values.go      the JSON of each kind of record
//	diagram.go     the BPMN of each process, with its diagram
//	truth.go       the true state
package simulator
