// Package dedup tells what of a lane was there before: records that are stored
// already, requests that came before, and entries that came too late to count.
// It does no input or output of its own.
//
// # Records that are resent
//
// Engines send at least once. A record is known by its source and its partition
// and position, or by its source, id and content; package record says which, and
// two rows are compared member by member before one is dropped (same.go).
//
// What is known is decided when the block before is stored (records.go), by one
// lookup in the warehouse at most, about the records that may be stored already.
// Most are new, and known to be without a question (stored.go):
//
//   - By position: every position of a source, partition and day that is stored
//     is held in memory, or is not above the floor of that day. So one that is
//     above the floor and not held is new. The floor is what flow.sources says
//     when the day is first met; then this lane has stored nothing of it that
//     flow.sources has not heard of, and from then on what it stores is held.
//   - By content: the same with the timestamp in the place of the position, and a
//     filter of hashes in the place of what is held. Records of the same content
//     have the same timestamp. When the filter lets go of hashes, the floor is
//     raised over their timestamps.
//
// No other lane stores records of the same source and partition, or of the same
// source and id: a source moves between lanes behind a move marker, which is a message
// in each of its old lanes; what a lane knows of the source is forgotten there,
// and the source has new lanes only once all of these are stored. What lands behind the
// marker and was routed by an older list is void: the lane learns nothing by it.
//
// Why it may be decided so: all blocks before are stored and complete, so the
// warehouse tells the truth about them; and if another process has changed that
// since, it has changed the lane state, so that the claim fails and nothing of the
// decision is used. Why a crash may forget what is known: it is filled from
// the warehouse again, with higher floors, which costs lookups, never
// correctness. So a session begins with nothing.
//
// # Requests that are resent
//
// Records that have no identity of their own are known by their request and their
// place in it, within a window of stream time (requests.go, window.go). Where a
// request stands is remembered in a few bytes; that it is the same one is seen by
// reading its message again. After a crash the window is filled from the log.
package dedup
