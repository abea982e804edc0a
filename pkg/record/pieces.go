package record

import (
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// maxPlainBytes is the size of a piece before compression. It bounds the
// memory of its writer and its readers: records often become a tenth. A
// record larger than that is a piece alone.
const maxPlainBytes = 1 << 20

// Pieces appends to dst the messages that carry the records: JSON arrays split
// between records and by slot, as Spread said, compressed with S2 when that
// pays. Those of one slot are in order. A body is at most target bytes, unless
// it holds a single record. The same request always yields the same pieces. They
// are r's, and good until it is used again or released. The error is a
// *LimitError: a record that would not fit even alone.
func (r *Request) Pieces(target int, dst []flow.Piece) ([]flow.Piece, error) {
	r.used = 0
	list := r.records
	if len(r.sorted) > 0 {
		list = r.sorted
	}
	guess := maxPlainBytes // bytes of records that should make one piece
	for len(list) > 0 {
		to := r.upTo(list, guess)
		piece := r.piece(list[:to])
		for len(piece.Body) > target && to > 1 {
			r.used--
			guess = shrink(list[:to], len(piece.Body), target)
			to = min(to-1, r.upTo(list, guess))
			piece = r.piece(list[:to])
		}
		if len(piece.Body) > flow.MaxPieceBytes {
			return dst, &LimitError{Code: CodeRecordTooLarge, Index: r.indexOf(list[0]), Limit: flow.MaxPieceBytes, Detail: details[CodeRecordTooLarge] + ", even compressed"}
		}
		dst = append(dst, piece)
		list = list[to:]
	}
	return dst, nil
}

// upTo returns how many of the first records of the list, which are of one
// slot, fit in n bytes; at least one.
func (r *Request) upTo(list []posted, n int) int {
	to := 1
	n -= list[0].size() + len("[]")
	for ; to < len(list); to++ {
		if n -= list[to].size() + len(","); n < 0 || r.slotOf(list[to]) != r.slotOf(list[0]) {
			break
		}
	}
	return to
}

func (s span) size() int { return int(s.end - s.start) }

// slotOf is the slot of a record of the list that is cut.
func (r *Request) slotOf(p posted) int {
	if len(r.sorted) > 0 {
		return int(p.lot)
	}
	return r.slot
}

// indexOf finds a record again in the body.
func (r *Request) indexOf(p posted) int {
	return slices.IndexFunc(r.records, func(other posted) bool { return other.start == p.start })
}

// shrink returns how many bytes of records to try next, after these became
// encoded bytes: a little less than would fit at the same ratio.
func shrink(list []posted, encoded, target int) int {
	plain := 0
	for _, p := range list {
		plain += p.size() + len(",")
	}
	return int(int64(plain) * int64(target) / int64(encoded) * 15 / 16)
}

// piece encodes records.
func (r *Request) piece(list []posted) flow.Piece {
	plain := r.join(list)
	if room := s2.MaxEncodedLen(len(plain)); cap(r.encoded) < room {
		r.encoded = make([]byte, room)
	}
	body, encoding := s2.Encode(r.encoded[:cap(r.encoded)], plain), flow.EncodingS2
	if len(body) > len(plain)-len(plain)/8 {
		body, encoding = plain, ""
	}
	if r.used == len(r.bodies) {
		r.bodies = append(r.bodies, nil)
	}
	r.bodies[r.used] = append(r.bodies[r.used][:0], body...)
	r.used++
	return flow.Piece{Body: r.bodies[r.used-1], Encoding: encoding, Records: len(list), Slot: r.slotOf(list[0])}
}

// join returns the array of the records: the body itself when it is just that.
func (r *Request) join(list []posted) []byte {
	if r.array && len(list) == len(r.records) && len(r.body) <= maxPlainBytes {
		return r.body
	}
	b := append(r.joined[:0], '[')
	for i, p := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, r.body[p.start:p.end]...)
	}
	r.joined = append(b, ']')
	return r.joined
}

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
// go: Pieces cuts between them. A record with a partition goes by the partition,
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

// SlotOf is the slot of one record as it was posted, or, when it cannot be read, that
// of its request.
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
