// Package change holds users, dataset fields, and the changes to them, which pass through
// the same stream as records and are applied in its order.
//
// Life of a change: NewUserPatch, NewFieldPut, or NewFieldDelete checks a body against its
// Shape, replaces its secrets (Secrets), and removes members that its author may not set.
// The api publishes the Change. The ingester decodes it (Decode), and Apply makes the next
// Entry, which names the sequence of the change: a replay has no effect.
//
// It imports no other package of this module.
package change
