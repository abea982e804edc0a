package ingest

// filter holds hashes, the last ones for sure. It has two generations: when the
// current one is full it becomes the older one, whose hashes are let go of.
// Both begin small and grow up to the limit. A hash that was never added is
// taken for one that was about once in a thousand million times.
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

// reset forgets all hashes.
func (f *filter) reset() {
	clear(f.slots[0])
	clear(f.slots[1])
	f.used = 0
	f.generation++
}

// add adds a hash, and says whether it may have been there: in the older generation
// only where that is asked for.
func (f *filter) add(high, low uint64, older bool) bool {
	if f.slots[0] == nil {
		f.slots[0] = make([]uint32, slotsAtFirst)
	}
	fingerprint := max(uint32(high), 1)
	found, at := probe(f.slots[0], fingerprint, low)
	if found {
		return true
	}
	// It goes into the current generation even when the older one has it:
	// there it would be forgotten before its timestamp is.
	f.slots[0][at] = fingerprint
	if older && len(f.slots[1]) > 0 {
		found, _ = probe(f.slots[1], fingerprint, low)
	}
	if f.used++; f.used > len(f.slots[0])*5/8 {
		f.rotate()
	}
	return found
}

// probe finds the slot of a fingerprint, or the free one where it belongs.
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

// rotate begins a new generation.
func (f *filter) rotate() {
	size := len(f.slots[0])
	if most := f.limit / (2 * slotBytes); 2*size <= most {
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
