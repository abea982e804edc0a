package ingest

import (
	"time"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

// Same decides as the ingester does which records are the same, for those who
// look at the tables afterwards: verify, and rebuild.
type Same struct{ same *same }

// NewSame compares rows of c.
func NewSame(c *record.Columns) Same { return Same{newSame(c)} }

// Stored adds a row of the table.
func (s Same) Stored(k *record.Known) { s.same.stored(k) }

// Add adds a row of c, which is not known by its place, and says whether the
// same record was there.
func (s Same) Add(row int) (there bool) { return s.same.add(row) }

// Requests decides as the ingester does which entries are void and which records
// without an identity of their own are repeated, for those who read a lane from
// its beginning: verify, and rebuild. It keeps every request of the window.
type Requests struct {
	clock clock
	known map[[16]byte][]place
	order []requestPlace
	whole bool // it has seen the lane from its first message on
}

type place struct {
	seq      uint64
	from, to int
}

type requestPlace struct {
	request [16]byte
	seq     uint64
}

// NewRequests begins to read a lane.
func NewRequests(window time.Duration) *Requests {
	return &Requests{clock: clock{window: window}, known: map[[16]byte][]place{}}
}

// Add adds the next message of the lane. It returns whether the message is void,
// and otherwise what says of a record without an identity of its own whether it
// was sent before: repeated for sure, or perhaps, by what the lane does not hold
// any more.
func (r *Requests) Add(e *record.Entry) (void bool, sentBefore func(m *record.Message, index int) (sure, perhaps bool)) {
	if c := &r.clock; e.Seq != c.first+uint64(len(c.times)) || c.first == 0 {
		r.whole = e.Seq == 1
	}
	r.clock.tick(e)
	for len(r.order) > 0 && r.order[0].seq < r.clock.first {
		first := r.order[0]
		if r.known[first.request] = r.known[first.request][1:]; len(r.known[first.request]) == 0 {
			delete(r.known, first.request)
		}
		r.order = r.order[1:]
	}
	before := make([][]place, len(e.Messages))
	if len(e.Table) > 0 {
		if r.clock.isVoid(e) {
			return true, nil
		}
		for i := range e.Messages {
			if m := &e.Messages[i]; toKnow(e, m) {
				id := xxh3.HashString128(m.ID + " " + m.Hash).Bytes()
				before[i] = r.known[id]
				r.known[id] = append(r.known[id], place{e.Seq, m.From, m.From + m.Records})
				r.order = append(r.order, requestPlace{id, e.Seq})
			}
		}
	}
	early := !r.whole && r.clock.times[len(r.clock.times)-1] < r.clock.window
	return false, func(m *record.Message, index int) (sure, perhaps bool) {
		if !toKnow(e, m) {
			return false, false
		}
		at := m.From + index - m.Index
		for _, p := range before[m.Ordinal] {
			if p.from <= at && at < p.to {
				return true, true
			}
		}
		return false, early
	}
}
