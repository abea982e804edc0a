package dedup

import (
	"cmp"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// storedSet is the index of a session: enough to recognise nearly every new record without a lookup.
//
// It may report an unstored record as perhaps stored, which costs a lookup. It never misses a stored one: it is in memory, or at or
// below the floor of its day of source and partition. The floor of a new day is the mark in flow.sources; later every record that
// this lane stores is added, and no other lane stores any of the day: a source moves between lanes only with a move marker, at which
// it is forgotten here. To bound memory the floor is raised, or the day is dropped and read again.
//
// Not for concurrent use.
type storedSet struct {
	limit int // bytes for positions, and as many for the filter
	days  map[flow.SourceDay]*dayIndex
	turn  uint64 // counts blocks, for least-recently-used eviction of days

	chunks [][]page // memory of the pages of all days
	pages  int      // allocated from chunks, free ones included
	free   []int32  // pages for reuse

	contents filter
}

// dayIndex is the index of a day.
type dayIndex struct {
	floor int64  // of positions, or for partition 0 of timestamps in ms: records at or below it are not in memory
	used  uint64 // turn of the last use

	// Positions above the floor, in pages.
	held     map[int64]int32 // by number of the page
	lastPage int64           // the page used last, and its index
	last     int32           // -1: none

	// Contents: the latest timestamps in the generations of the filter, the current one
	// first.
	newest     [2]int64
	generation uint64
	salt       uint64 // separates equal contents of two sources
}

// pageBits is the number of positions of a page, one bit each.
const pageBits = 512

type page [pageBits / 64]uint64

const (
	pagesPerChunk = 1024
	pageBytes     = pageBits/8 + 32 // with its map entry
	dayBytes      = 320
	noFloor       = -1 << 63
)

func newStoredSet(limit int) *storedSet {
	k := &storedSet{limit: limit / 2, days: map[flow.SourceDay]*dayIndex{}}
	k.contents.limit = limit / 2
	return k
}

// begin starts a block, with a limit in bytes.
func (k *storedSet) begin(limit int) {
	k.turn++
	k.limit, k.contents.limit = limit/2, limit/2
}

// forgetAll empties the set, keeping its memory.
func (k *storedSet) forgetAll() {
	clear(k.days)
	k.pages, k.free = 0, k.free[:0]
	k.contents.reset()
}

// forget drops a source.
func (k *storedSet) forget(source string) {
	for s, m := range k.days {
		if s.Source == source {
			k.drop(s, m)
		}
	}
}

// bytes is the memory in use for positions.
func (k *storedSet) bytes() int {
	return (k.pages-len(k.free))*pageBytes + len(k.days)*dayBytes
}

// memory is all allocated memory.
func (k *storedSet) memory() int {
	return len(k.chunks)*pagesPerChunk*pageBytes + len(k.days)*dayBytes + k.contents.bytes()
}

// find returns the index of a day, or nil.
func (k *storedSet) find(s flow.SourceDay) *dayIndex {
	m := k.days[s]
	if m != nil {
		m.used = k.turn
	}
	return m
}

// learn adds a day with the floor from the warehouse.
func (k *storedSet) learn(s flow.SourceDay, floor int64) *dayIndex {
	m := &dayIndex{
		floor: floor, used: k.turn, last: -1,
		newest: [2]int64{noFloor, noFloor}, generation: k.contents.generation, salt: xxh3.HashString(s.Source),
	}
	k.days[s] = m
	if k.bytes() > k.limit {
		k.shrink()
	}
	return m
}

// position adds a position to its day, and reports whether it may be stored already.
func (k *storedSet) position(m *dayIndex, p int64) (ask bool) {
	if p <= m.floor {
		return true
	}
	if n := p / pageBits; m.last < 0 || n != m.lastPage {
		at, ok := m.held[n]
		if !ok {
			if at = k.newPage(m, n); p <= m.floor {
				return true // the floor was raised to free memory
			}
		}
		m.lastPage, m.last = n, at
	}
	word := &k.chunks[m.last/pagesPerChunk][m.last%pagesPerChunk][p%pageBits/64]
	bit := uint64(1) << (p % 64)
	if *word&bit != 0 {
		return true
	}
	*word |= bit
	return false
}

// newPage adds page n to a day.
func (k *storedSet) newPage(m *dayIndex, n int64) int32 {
	if k.bytes()+pageBytes > k.limit {
		k.shrink()
	}
	var at int32
	if last := len(k.free) - 1; last >= 0 {
		at, k.free = k.free[last], k.free[:last]
	} else {
		at = int32(k.pages)
		if k.pages++; k.pages > len(k.chunks)*pagesPerChunk {
			k.chunks = append(k.chunks, make([]page, pagesPerChunk))
		}
	}
	k.chunks[at/pagesPerChunk][at%pagesPerChunk] = page{}
	if m.held == nil {
		m.held = map[int64]int32{}
	}
	m.held[n] = at
	return at
}

// shrink frees memory: it drops the least recently used days, and if those of this turn exceed the limit, raises the floors of the
// largest. A day keeps its highest positions, where new records are. One absurd position takes one page, dropped last.
func (k *storedSet) shrink() {
	enough := k.limit * 3 / 4
	all := slices.SortedFunc(maps.Keys(k.days), func(a, b flow.SourceDay) int { return cmp.Compare(k.days[a].used, k.days[b].used) })
	for len(all) > 0 && k.bytes() > enough && k.days[all[0]].used < k.turn {
		k.drop(all[0], k.days[all[0]])
		all = all[1:]
	}
	for k.bytes() > enough {
		var largest *dayIndex
		for _, s := range all {
			if m := k.days[s]; largest == nil || len(m.held) > len(largest.held) {
				largest = m
			}
		}
		if largest == nil || len(largest.held) == 0 {
			return // only days: the caller bounds their number
		}
		k.raise(largest)
	}
}

// raise drops the lower half of the pages of a day.
func (k *storedSet) raise(m *dayIndex) {
	pages := slices.Sorted(maps.Keys(m.held))
	pages = pages[:(len(pages)+1)/2]
	for _, n := range pages {
		k.free = append(k.free, m.held[n])
		delete(m.held, n)
	}
	m.floor = max(m.floor, pages[len(pages)-1]*pageBits+(pageBits-1))
	m.last = -1
}

func (k *storedSet) drop(s flow.SourceDay, m *dayIndex) {
	for _, at := range m.held {
		k.free = append(k.free, at)
	}
	delete(k.days, s)
}

// content adds a content hash, and reports whether it may be stored already. A stored record of equal content has the same timestamp,
// so it is in the filter or not above the floor.
func (k *storedSet) content(m *dayIndex, ts int64, hash uint64) (ask bool) {
	m.roll(k.contents.generation)
	ask = ts <= m.floor
	// A later one is not in the older generation, which saves a memory access.
	older := ts <= m.newest[1]
	m.newest[0] = max(m.newest[0], ts)
	hash ^= m.salt
	return k.contents.add(hash>>32, hash, older) || ask
}

// roll raises the floor above the timestamps of hashes dropped by the filter.
func (m *dayIndex) roll(generation uint64) {
	switch generation - m.generation {
	case 0:
		return
	case 1:
		m.floor = max(m.floor, m.newest[1])
		m.newest = [2]int64{noFloor, m.newest[0]}
	default:
		m.floor = max(m.floor, m.newest[0], m.newest[1])
		m.newest = [2]int64{noFloor, noFloor}
	}
	m.generation = generation
}

// filter holds at least the latest hashes. It has two generations: a full current one replaces the older one, whose hashes are
// dropped. Both start small and grow up to the limit. The false positive rate is about one in a thousand million.
//
// The zero value with a limit is ready. Not for concurrent use.
type filter struct {
	limit      int // bytes
	generation uint64
	slots      [2][]uint32 // the current generation and the older one: fingerprints by linear probing, 0 is free
	used       int         // of the current one
}

const (
	slotsAtFirst = 1 << 14
	slotBytes    = 4
)

func (f *filter) bytes() int { return (len(f.slots[0]) + len(f.slots[1])) * slotBytes }

// reset drops all hashes.
func (f *filter) reset() {
	clear(f.slots[0])
	clear(f.slots[1])
	f.used = 0
	f.generation++
}

// add adds a hash, and reports whether it may have been there: in the older generation only with older.
func (f *filter) add(high, low uint64, older bool) bool {
	if f.slots[0] == nil {
		f.slots[0] = make([]uint32, slotsAtFirst)
	}
	fingerprint := max(uint32(high), 1)
	found, at := probe(f.slots[0], fingerprint, low)
	if found {
		return true
	}
	// It goes into the current generation even if the older one has it, which would drop it
	// before its timestamp.
	f.slots[0][at] = fingerprint
	if older && len(f.slots[1]) > 0 {
		found, _ = probe(f.slots[1], fingerprint, low)
	}
	if f.used++; f.used > len(f.slots[0])*5/8 {
		f.rotate()
	}
	return found
}

// probe finds the slot of a fingerprint, or the free slot for it.
func probe(slots []uint32, fingerprint uint32, low uint64) (found bool, at uint64) {
	mask := uint64(len(slots) - 1)
	for at = low & mask; ; at = (at + 1) & mask {
		switch slots[at] {
		case fingerprint:
			return true, at
		case 0:
			return false, at
		}
	}
}

// rotate starts a new generation.
func (f *filter) rotate() {
	size := len(f.slots[0])
	if maximum := f.limit / (2 * slotBytes); 2*size <= maximum {
		size *= 2
	}
	fresh := f.slots[1]
	f.slots[1] = nil
	if len(fresh) == size {
		clear(fresh)
	} else {
		fresh = make([]uint32, size)
	}
	f.slots[0], f.slots[1] = fresh, f.slots[0]
	f.used = 0
	f.generation++
}
