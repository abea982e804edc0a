package native

import (
	"encoding/binary"
	"slices"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/record"
)

// Columns are the rows from to to-1 of c as columns of flow.records, stored at a time in
// ms since 1970. They share the memory of c.
func Columns(c *record.Columns, from, to int, storedAt int64) proto.Input {
	r := rows{from, to}
	all := proto.Input{{Name: "stored_at", Data: constant{storedAt, r}}}
	for _, column := range c.All() {
		all = append(all, proto.InputColumn{Name: column.Name, Data: r.of(column)})
	}
	return all
}

// rows is a range of rows, to excluded.
type rows struct{ from, to int }

func (r rows) Rows() int { return r.to - r.from }

// of are these rows of a column.
func (r rows) of(column record.Column) proto.ColInput {
	switch data := column.Data.(type) {
	case *record.LowCardinality:
		return symbol{data, r}
	case *record.StringColumn:
		return text{data, r}
	case *record.NullInt64:
		return r.nullable(*data)
	case *[]int64:
		if column.Time {
			return r.milliseconds(*data)
		}
		return r.int64(*data)
	case *[]uint16:
		return proto.ColUInt16((*data)[r.from:r.to])
	case *[]uint32:
		return proto.ColUInt32((*data)[r.from:r.to])
	case *[]uint64:
		return proto.ColUInt64((*data)[r.from:r.to])
	}
	panic("column " + column.Name + " is of no type that is stored") // a mistake in the program
}

func (r rows) int64(v []int64) proto.ColInt64 { return v[r.from:r.to] }

func (r rows) nullable(v record.NullInt64) *proto.ColNullable[int64] {
	values := r.int64(v.Values)
	return &proto.ColNullable[int64]{Nulls: v.Nulls[r.from:r.to], Values: &values}
}

func (r rows) milliseconds(v []int64) proto.ColInput {
	values := r.int64(v)
	return proto.Alias(&values, "DateTime64(3, 'UTC')")
}

// constant is a column of one time, in ms since 1970.
type constant struct {
	ms int64
	rows
}

func (constant) Type() proto.ColumnType { return "DateTime64(3, 'UTC')" }

func (c constant) EncodeColumn(b *proto.Buffer) {
	b.Buf = slices.Grow(b.Buf, 8*c.Rows())
	for range c.Rows() {
		b.Buf = binary.LittleEndian.AppendUint64(b.Buf, uint64(c.ms))
	}
}

func (c constant) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// text is a String column.
type text struct {
	t *record.StringColumn
	rows
}

func (text) Type() proto.ColumnType { return proto.ColumnTypeString }

func (c text) EncodeColumn(b *proto.Buffer) { b.Buf = appendText(b.Buf, c.t, c.from, c.to) }

func (c text) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// appendText writes strings the way the native format has them: each after its
// length.
func appendText(dst []byte, t *record.StringColumn, from, to int) []byte {
	if from == to {
		return dst
	}
	start := uint32(0)
	if from > 0 {
		start = t.Ends[from-1]
	}
	size := int(t.Ends[to-1] - start)
	dst = slices.Grow(dst, size+(to-from)*3) // lengths below 2 MiB take at most 3 bytes
	for _, end := range t.Ends[from:to] {
		dst = binary.AppendUvarint(dst, uint64(end-start))
		dst = append(dst, t.Buf[start:end]...)
		start = end
	}
	return dst
}

// symbol is a LowCardinality(String) column.
type symbol struct {
	s *record.LowCardinality
	rows
}

func (symbol) Type() proto.ColumnType {
	return proto.ColumnTypeLowCardinality.Sub(proto.ColumnTypeString)
}

// keysVersion and the flags of a LowCardinality column in the native format:
// each block carries its own dictionary.
const (
	keysVersion       = 1
	hasAdditionalKeys = 1 << 9
	needsUpdate       = 1 << 10
)

func (symbol) EncodeState(b *proto.Buffer) { b.PutInt64(keysVersion) }

func (c symbol) EncodeColumn(b *proto.Buffer) {
	c.encodeDictionary(b)
	c.keys().EncodeColumn(b)
}

func (c symbol) WriteColumn(w *proto.Writer) {
	w.ChainBuffer(c.encodeDictionary)
	c.keys().WriteColumn(w)
}

func (c symbol) encodeDictionary(b *proto.Buffer) {
	width := proto.KeyUInt8
	switch c.s.Width {
	case 2:
		width = proto.KeyUInt16
	case 4:
		width = proto.KeyUInt32
	}
	b.PutInt64(hasAdditionalKeys | needsUpdate | int64(width))
	values := &c.s.Values
	b.PutInt64(int64(values.Rows()))
	b.Buf = appendText(b.Buf, values, 0, values.Rows())
	b.PutInt64(int64(c.Rows()))
}

func (c symbol) keys() proto.ColInput {
	switch c.s.Width {
	case 2:
		return proto.ColUInt16(c.s.Keys16[c.from:c.to])
	case 4:
		return proto.ColUInt32(c.s.Keys32[c.from:c.to])
	}
	return proto.ColUInt8(c.s.Keys8[c.from:c.to])
}
