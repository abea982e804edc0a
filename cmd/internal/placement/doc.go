// Package placement says which servers of a NATS cluster keep the streams of an
// installation: how many copies of each there are, and where. NATS copies while
// records flow; what is asked for here is waited for until every copy has all that its
// leader has. A server that runs alone cannot become one of several with what it
// holds: Carry copies that from one NATS to another.
package placement
