package record

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"sluice/pkg/flow"
)

// The body of a message is the columns of its records, compressed as one S2 block: docs/format.md.
// The api has parsed every record, so the ingester joins columns without parsing. Columns from the
// message are not in the body: source, receive time, lane, sequence, and the identity of records
// identified by place.

// encode appends a body of the rows from to to-1.
func (c *Columns) encode(b []byte, from, to int) []byte {
	c.bind()
	b = binary.AppendUvarint(b, uint64(to-from))
	for i := range bodyColumns {
		before, some := len(b), true
		b = append(b, byte(i+1))
		switch data := c.found.body[i].(type) {
		case *LowCardinality:
			b, some = c.encodeSymbols(b, data, from, to)
		case *StringColumn:
			b, some = data.encode(b, from, to)
		case *NullInt64:
			if b, some = append(b, data.Nulls[from:to]...), slices.Contains(data.Nulls[from:to], 0); some {
				b, _ = appendDeltas(b, data.Between(from, to))
			}
		case *[]int64:
			b, some = appendDeltas(b, (*data)[from:to])
		case *[]uint8:
			b = append(b, (*data)[from:to]...)
		}
		if !some {
			b = b[:before]
		}
	}
	return b
}

// encodeSymbols appends the distinct values in order of first use, then the key of each row. some:
// not all are empty.
func (c *Columns) encodeSymbols(b []byte, s *LowCardinality, from, to int) (_ []byte, some bool) {
	c.remap = append(c.remap[:0], make([]uint32, s.Values.Rows())...)
	count := uint32(0)
	for row := from; row < to; row++ {
		if key := s.Key(row); key > 0 && c.remap[key] == 0 {
			count++
			c.remap[key] = count
			v := s.Values.Value(key)
			b = append(binary.AppendUvarint(b, uint64(len(v))), v...)
		}
	}
	b = append(b, 0) // the end: values are not empty
	for row := from; row < to; row++ {
		if key := c.remap[s.Key(row)]; count <= math.MaxUint8 {
			b = append(b, uint8(key))
		} else {
			b = binary.LittleEndian.AppendUint32(b, key)
		}
	}
	return b, count > 0
}

// encode appends the lengths of the rows, then their bytes.
func (t *StringColumn) encode(b []byte, from, to int) (_ []byte, some bool) {
	first := t.start(from)
	start := first
	for _, end := range t.Ends[from:to] {
		b = binary.AppendUvarint(b, uint64(end-start))
		start = end
	}
	return append(b, t.Buf[first:start]...), first < start
}

// appendDeltas appends each value as its difference to the previous one, a zigzag varint. some: not
// all are 0.
func appendDeltas(b []byte, values []int64) (_ []byte, some bool) {
	before := int64(0)
	for _, v := range values {
		b = binary.AppendVarint(b, v-before)
		some = some || v != 0
		before = v
	}
	return b, some
}

// join appends the rows of a body, except those whose index in the entry skip selects.
func (c *Columns) join(m *flow.Message, skip func(index int) bool) *BadRecordError {
	plain, ok := c.reader.decompress(m.Body)
	j := joiner{b: plain, failed: !ok}
	rows := j.number()
	switch {
	case j.failed || rows > uint64(len(j.b)): // each row has a kind, one byte
		return bad(-1, CodeBadEncoding, m.Body)
	case m.Records > 0 && rows != uint64(m.Records):
		return bad(-1, CodeMiscounted, m.Body)
	}
	first := len(c.TS)
	j.columns(c, first, first+int(rows))
	if j.failed {
		return bad(-1, CodeBadEncoding, m.Body)
	}
	var skipped []flow.Run
	for i := range int(rows) {
		c.StreamIdx = append(c.StreamIdx, uint32(m.Index+i))
		if skip(m.Index + i) {
			skipped = flow.AddRow(skipped, first+i)
		}
	}
	c.fill(m)
	c.Drop(skipped)
	return nil
}

// joiner reads a body.
type joiner struct {
	b      []byte // the unread rest
	failed bool
}

// columns reads all columns into the new rows first to to-1.
func (j *joiner) columns(c *Columns, first, to int) {
	for _, s := range c.symbols() {
		s.extend(first, to)
	}
	for _, n := range c.numbers() {
		n.extend(first, to)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position} {
		*n = extend(*n, first, to)
	}
	c.Kind = extend(c.Kind, first, to)
	for last := byte(0); len(j.b) > 0; {
		number := j.b[0]
		if number <= last || int(number) > len(bodyColumns) {
			j.fail()
			return
		}
		j.b, last = j.b[1:], number
		switch data := c.found.body[number-1].(type) {
		case *LowCardinality:
			j.symbols(data, &c.remap, first, to)
		case *StringColumn:
			j.texts(data, first, to)
		case *NullInt64:
			nulls := j.bytes(to - first)
			if existing(nulls)+bytes.Count(nulls, []byte{1}) < len(nulls) {
				j.fail()
				return
			}
			copy(data.Nulls[first:to], nulls)
			n := len(data.Values)
			data.Values = extend(data.Values, n, n+existing(data.Nulls[first:to]))
			j.deltas(data.Values[n:])
		case *[]int64:
			j.deltas((*data)[first:to])
		case *[]uint8:
			copy((*data)[first:to], j.bytes(to-first))
		}
	}
	for row := first; row < to; row++ {
		if ts := c.TS[row]; c.Kind[row]-flow.ByPosition > flow.ByPlace-flow.ByPosition || ts != 0 && !plausible(ts) {
			j.fail()
		}
	}
}

func (j *joiner) fail() { j.b, j.failed = nil, true }

// number reads an unsigned varint.
func (j *joiner) number() uint64 {
	if len(j.b) > 0 && j.b[0] < 0x80 {
		v := j.b[0]
		j.b = j.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(j.b)
	if n <= 0 {
		j.fail()
		return 0
	}
	j.b = j.b[n:]
	return v
}

func (j *joiner) bytes(n int) (read []byte) {
	if n > len(j.b) {
		j.fail()
		return nil
	}
	read, j.b = j.b[:n], j.b[n:]
	return read
}

// text reads a length and that many bytes.
func (j *joiner) text() []byte { return j.bytes(int(min(j.number(), maxMessageBytes))) }

func (j *joiner) symbols(s *LowCardinality, remap *[]uint32, first, to int) {
	keys := append((*remap)[:0], 0) // the key in s of each value of the body
	for v := j.text(); len(v) > 0; v = j.text() {
		keys = append(keys, s.lookup(v))
	}
	*remap = keys
	width := 1
	if len(keys)-1 > math.MaxUint8 {
		width = 4
	}
	b := j.bytes((to - first) * width)
	if j.failed {
		return
	}
	ok := false
	switch s.Width {
	case 1:
		ok = translate(s.Keys8[first:to], b, keys)
	case 2:
		ok = translate(s.Keys16[first:to], b, keys)
	default:
		ok = translate(s.Keys32[first:to], b, keys)
	}
	if !ok {
		j.fail()
	}
}

// translate sets rows to the keys for the numbers in b, of one byte or four each.
func translate[T uint8 | uint16 | uint32](rows []T, b []byte, keys []uint32) (ok bool) {
	wide := len(b) > len(rows)
	for i := range rows {
		var number uint32
		if wide {
			number = binary.LittleEndian.Uint32(b[4*i:])
		} else {
			number = uint32(b[i])
		}
		if number >= uint32(len(keys)) {
			return false
		}
		rows[i] = T(keys[number])
	}
	return true
}

func (j *joiner) texts(t *StringColumn, first, to int) {
	t.fill(first)
	end := uint64(len(t.Buf))
	for range to - first {
		end += min(j.number(), maxMessageBytes)
		t.Ends = append(t.Ends, uint32(end))
	}
	size := end - uint64(len(t.Buf))
	if size > uint64(len(j.b)) {
		j.fail()
		return
	}
	t.Buf = append(t.Buf, j.bytes(int(size))...)
}

func (j *joiner) deltas(values []int64) {
	before := int64(0)
	for i := range values {
		u := j.number()
		before += int64(u>>1) ^ -int64(u&1)
		values[i] = before
	}
}
