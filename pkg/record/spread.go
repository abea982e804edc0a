package record

import (
	"slices"

	"github.com/zeebo/xxh3"
)

// posted is a record of a request: where it stands in the body, and what its
// lane follows from.
type posted struct {
	span
	lot uint64 // partition, or hash of the id, or 0 when it has neither; after Spread its slot
}

// lot returns what the slot of the record just read follows from: the same for
// the same record, whenever and in whatever company it is sent.
func (w *walker) lot() uint64 {
	if n, code := w.integer(w.get(fieldPartitionID)); code == "" && n >= 1 {
		return uint64(n)
	}
	if id := w.text(w.get(fieldID)); len(id) > 0 {
		return max(1, xxh3.Hash(id))
	}
	return 0
}

// slot is one of so many for a lot; a record without a lot goes where its
// request goes.
func slot(lot uint64, slots int, id string) uint64 {
	if lot == 0 {
		lot = xxh3.HashString(id)
	}
	return lot % uint64(slots)
}

// Spread says over how many slots, the lanes of its source, the records are to
// go: Parts cuts between them. A record with a partition goes by the partition,
// one without by its id, one with neither by the id of the request. The order
// of the records of one slot stays.
func (r *Request) Spread(slots int, id string) {
	r.sorted, r.slot = r.sorted[:0], 0
	if slots <= 1 || len(r.records) == 0 {
		return
	}
	r.slot = int(slot(r.records[0].lot, slots, id))
	alike := true
	for _, p := range r.records {
		p.lot = slot(p.lot, slots, id)
		alike = alike && p.lot == uint64(r.slot)
		r.sorted = append(r.sorted, p)
	}
	if alike { // as an exporter sends them: one of its own for each partition
		r.sorted = r.sorted[:0]
		return
	}
	slices.SortStableFunc(r.sorted, func(a, b posted) int { return int(a.lot) - int(b.lot) })
}

// SlotOf is the slot of one record as it was posted; of one that cannot be
// read it is that of its request.
func SlotOf(raw []byte, slots int, id string) int {
	if slots <= 1 {
		return 0
	}
	var w walker
	w.b = raw
	i := w.space(0)
	if i == len(raw) || raw[i] != '{' || w.record(i, deepest) < 0 {
		return int(slot(0, slots, id))
	}
	return int(slot(w.lot(), slots, id))
}
