package record

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// What makes a row the same record as another one of the same source
// (docs/identity.md). The kind is decided by the record alone.
const (
	// ByPosition: the record names a partition and a position of at least 1
	// itself, and has a timestamp that can be right. Its identity is empty.
	ByPosition uint8 = 1 + iota

	// ByContent: it has an id. Its identity is half of the hash of all it says,
	// ContentBytes of it: the rest of its sorting key holds its id, its time and
	// what it is about, so that only records that agree in all of these are told
	// apart by the hash alone.
	ByContent

	// ByPlace: it has neither. Its identity is where it came in, so that it is
	// never the same as another one: lane.incarnation.sequence.index.
	ByPlace
)

// ContentBytes is how long the identity of a record is that is known by its
// content. A hash does not compress: each byte of it is one on the disk.
const ContentBytes = 8

// kind says what the record just read is known by.
func (c *Columns) kind(row int, positioned bool) uint8 {
	switch id := c.reader.get(fieldID); {
	case positioned && c.TS[row] != 0:
		return ByPosition
	case id.kind > kindNull && len(c.reader.text(id)) > 0:
		return ByContent
	}
	return ByPlace
}

// positioned says of the record just read whether it will be known by its
// position.
func (w *walker) positioned(received int64) bool {
	for _, f := range [...]field{fieldPartitionID, fieldPosition} {
		v := w.get(f)
		if v.kind <= kindNull {
			return false
		}
		if n, code := w.integer(v); code != "" || n < 1 {
			return false
		}
	}
	v := w.get(fieldTimestamp)
	ms, _ := w.time(v)
	return v.kind > kindNull && plausible(ms, received)
}

// identity adds what makes the record just read the same as another one. All
// else of its row was added before; its fields add outer and inner to its
// content, and its id follows from partition and position or not.
func (c *Columns) identity(m *Message, row int, kind uint8, follows bool, outer, inner xxh3.Uint128) {
	r := &c.reader
	c.Kind = append(c.Kind, kind)
	r.expect(kind)
	switch kind {
	case ByContent:
		sum := r.content(outer, inner).Bytes()
		c.Identity.set(row, sum[len(sum)-ContentBytes:])
	case ByPlace:
		c.place(m, row)
		start := len(c.OwnID.Buf)
		c.OwnID.Buf = r.contentID(c.OwnID.Buf, r.content(outer, inner))
		c.OwnID.close(row, start)
		return
	}
	if !follows {
		c.OwnID.set(row, r.text(r.get(fieldID)))
	}
}

// appendPlace appends the id that follows from a partition and a position.
func appendPlace(dst []byte, partition, position int64) []byte {
	dst = strconv.AppendInt(dst, partition, 10)
	return strconv.AppendInt(append(dst, '-'), position, 10)
}

// place adds the identity of a record that has only the place it came in at.
func (c *Columns) place(m *Message, row int) {
	start := len(c.Identity.Buf)
	b := strconv.AppendInt(c.Identity.Buf, int64(m.Lane), 10)
	b = strconv.AppendUint(append(b, '.'), m.Incarnation, 10)
	b = strconv.AppendUint(append(b, '.'), m.Seq, 10)
	b = strconv.AppendInt(append(b, '.'), int64(c.reader.index), 10)
	c.Identity.Buf = b
	c.Identity.close(row, start)
}

// AppendID appends the id of a row as queries give it: its own, or partition
// and position.
func (c *Columns) AppendID(dst []byte, row int) []byte {
	if id := c.OwnID.Value(row); len(id) > 0 {
		return append(dst, id...)
	}
	return appendPlace(dst, c.PartitionID[row], c.Position[row])
}

// ID is the same as a string.
func (c *Columns) ID(row int) string { return string(c.AppendID(nil, row)) }
