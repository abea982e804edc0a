// Package dedup finds the stored records, the repeated requests, and the late entries of a lane. It does no I/O.
//
// # Resent records
//
// Engines deliver at least once. A record is identified by its source, partition, and position, or by its source, id,
// and content (package record), and two rows are compared member by member before one is dropped (same.go).
//
// A block is decided after the block before is stored (records.go), by at most one lookup in the warehouse for the
// records that may be stored. Most are new and need none (stored.go):
//
//   - By position: every stored position of a source, partition, and day is in memory, or not above the floor of that day. So
//     a position above the floor that is not in memory is new. The floor is the mark in flow.sources when the day is first
//     used; by then flow.sources has all that this lane has stored of it, and later positions are added.
//   - By content: the same with timestamps, and with hashes in a filter. Records of equal content have equal timestamps. When
//     the filter drops hashes, the floor is raised above their timestamps.
//
// No other lane stores records of the same source and partition, or of the same source and id: a source moves between
// lanes with a move marker in each old lane. At the marker the index drops the source, and the new lanes are used only
// once all markers are stored. Requests after the marker that were routed by an older list are void and add nothing.
//
// The decision is correct since all earlier blocks are stored and complete; if another process has taken the lane, the
// claim fails and the decision is discarded. After a crash the index is refilled from the warehouse with higher floors,
// which costs lookups, never correctness. So a session starts empty.
//
// # Resent requests
//
// Records without a deduplication key are identified by their request and their index in it, within a window of stream
// time (requests.go, window.go). The window keeps a fingerprint and the place of each request; rereading its message
// confirms a match. After a crash the window is refilled from the log.
package dedup
