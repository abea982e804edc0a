// Package change is what we remember besides records: users, dataset fields
// and the changes made to them, which travel through the same stream as the
// records and are applied in its order.
//
// Life of a change: a body comes in; NewUserPatch, NewFieldPut or
// NewFieldDelete checks it against its Shape, replaces its secrets (Secrets)
// and takes out what its author may not set; the Change is published; the
// ingester decodes it (Decode) and Apply makes the next Entry of it, which
// names the stream sequence it was made by, so that replays do nothing.
//
// It imports no other package of this module.
package change
