// Package state keeps users and dataset fields as they stand, in a NATS
// key-value bucket: one change.Entry per target under its Key.
//
// Only the ingester writes, in the order of the stream, by compare-and-swap.
// Every entry carries the place of the last change in it, so that messages
// which come again, after a crash or from an owner that has lost its lane,
// change nothing: the bucket can always be had again from the stream's changes.
package state
