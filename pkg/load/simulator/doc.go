// Package simulator plays a workflow engine: it writes the records that Zeebe
// writes while it runs process instances, and keeps the truth about what they
// tell, so that what is made of the records can be compared with it.
//
// An Engine is a discrete-event simulation. What happens next stands in an
// agenda, ordered by time; each step is a batch as an engine processes it: one
// command that comes from outside, and the events and commands that follow from
// it, all of them with its position as their source. Positions and keys are
// counted per partition, commands take a position whether they are exported or
// not. The same Config gives the same bytes.
//
// The files follow a record from its cause to its text:
//
//	models.go      what is run: processes, their elements, what may go wrong
//	engine.go      the agenda, and the records that come out
//	partition.go   keys, positions, batches
//	flow.go        the life of an element, from sequence flow to sequence flow
//	jobs.go        service tasks: activated, failed, timed out, completed
//	waits.go       user tasks, timers, messages
//	decisions.go   business rule tasks, and the decisions that they call
//	scopes.go      sub-processes, call activities, multi-instance bodies, gateways
//	operators.go   incidents resolved, instances canceled and migrated
//	variables.go   variables and their scopes
//	values.go      the JSON of each kind of record
//	diagram.go     the BPMN of each process, with its picture
//	truth.go       what is so
package simulator
