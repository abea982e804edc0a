package record

import "strconv"

// What makes a row the same record as another one of the same source
// (docs/identity.md). The kind is decided by the record alone.
const (
	// ByPosition: the record names a partition and a position of at least 1
	// itself, and has a timestamp that can be right. Its identity is empty.
	ByPosition uint8 = 1 + iota

	// ByContent: it has an id. Its identity is the hash of all it says, 16
	// bytes.
	ByContent

	// ByPlace: it has neither. Its identity is where it came in, so that it is
	// never the same as another one: lane.incarnation.sequence.index.
	ByPlace
)

// identity adds what makes the record just read the same as another one. Its
// timestamp, partition and position were added before.
func (c *Columns) identity() {
	r, row := &c.reader, len(c.TS)-1
	id := r.text(r.get(fieldID))
	switch {
	case c.positioned && c.TS[row] != 0:
		c.Kind = append(c.Kind, ByPosition)
		c.Identity.append(nil)
	case len(id) > 0:
		c.Kind = append(c.Kind, ByContent)
		start := len(c.Identity.Buf)
		sum, _ := r.digestObject(r.start, "")
		b := sum.Bytes()
		c.Identity.Buf = append(c.Identity.Buf, b[:]...)
		c.Identity.close(start)
		id = r.text(r.get(fieldID)) // the hash used the same scratch
	default:
		c.Kind = append(c.Kind, ByPlace)
		c.place(row)
		start := len(c.OwnID.Buf)
		c.OwnID.Buf = r.contentID(c.OwnID.Buf, r.start)
		c.OwnID.close(start)
		return
	}
	if len(id) == 0 || c.follows(id, row) {
		id = nil
	}
	c.OwnID.append(id)
}

// follows says whether an id is just partition and position of the row.
func (c *Columns) follows(id []byte, row int) bool {
	var buf [41]byte // two of at most 20, and the dash
	b := strconv.AppendInt(buf[:0], c.PartitionID[row], 10)
	b = append(b, '-')
	b = strconv.AppendInt(b, c.Position[row], 10)
	return string(b) == string(id)
}

// place adds the identity of a record that has only the place it came in at.
func (c *Columns) place(row int) {
	start := len(c.Identity.Buf)
	b := strconv.AppendUint(c.Identity.Buf, uint64(c.Lane[row]), 10)
	b = strconv.AppendUint(append(b, '.'), c.Incarnation[row], 10)
	b = strconv.AppendUint(append(b, '.'), c.StreamSeq[row], 10)
	b = strconv.AppendUint(append(b, '.'), uint64(c.StreamIdx[row]), 10)
	c.Identity.Buf = b
	c.Identity.close(start)
}

// AppendID appends the id of a row as queries give it: its own, or partition
// and position.
func (c *Columns) AppendID(dst []byte, row int) []byte {
	if id := c.OwnID.Value(row); len(id) > 0 {
		return append(dst, id...)
	}
	dst = strconv.AppendInt(dst, c.PartitionID[row], 10)
	return strconv.AppendInt(append(dst, '-'), c.Position[row], 10)
}

// ID is the same as a string.
func (c *Columns) ID(row int) string { return string(c.AppendID(nil, row)) }
