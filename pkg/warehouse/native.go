package warehouse

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
)

// nativeBlock is a block of rows of any table, as FORMAT Native prints it: read
// from an answer or a file, and written to a file or an insert. Columns keep their
// memory from block to block. The last ones may be for the reader alone: written are
// those before.
type nativeBlock struct {
	names   []string
	columns []nativeColumn
	rows    int
}

// nativeColumn is a column under the very name of its type, SimpleAggregateFunction
// included, which the column itself does not know.
type nativeColumn struct {
	proto.Column
	typ proto.ColumnType
}

func (c nativeColumn) Type() proto.ColumnType { return c.typ }

// Prepare, EncodeState and DecodeState hand on what the interface hides.
func (c nativeColumn) Prepare() error {
	if p, ok := c.Column.(proto.Preparable); ok {
		return p.Prepare()
	}
	return nil
}

func (c nativeColumn) EncodeState(b *proto.Buffer) {
	if s, ok := c.Column.(proto.StateEncoder); ok {
		s.EncodeState(b)
	}
}

func (c nativeColumn) DecodeState(r *proto.Reader) error {
	if s, ok := c.Column.(proto.StateDecoder); ok {
		return s.DecodeState(r)
	}
	return nil
}

// newNativeColumn makes a column of a type. A dictionary of texts stays as it comes:
// nobody looks into it.
func newNativeColumn(typ string) (nativeColumn, error) {
	plain := typ
	if inner, ok := strings.CutPrefix(typ, "SimpleAggregateFunction("); ok {
		_, inner, _ = strings.Cut(strings.TrimSuffix(inner, ")"), ", ")
		plain = inner
	}
	if plain == "LowCardinality(String)" {
		return nativeColumn{&proto.ColLowCardinalityRaw{Index: new(proto.ColStr)}, proto.ColumnType(typ)}, nil
	}
	var auto proto.ColAuto
	if err := auto.Infer(proto.ColumnType(plain)); err != nil {
		return nativeColumn{}, fmt.Errorf("type %s: %w", typ, err)
	}
	return nativeColumn{auto.Data, proto.ColumnType(typ)}, nil
}

// DecodeResult reads the columns of a block of which the size is read.
func (n *nativeBlock) DecodeResult(r *proto.Reader, version int, b proto.Block) error {
	first := len(n.columns) == 0
	if !first && b.Columns != len(n.columns) {
		return fmt.Errorf("a block of %d columns follows one of %d", b.Columns, len(n.columns))
	}
	n.rows = b.Rows
	for i := range b.Columns {
		name, err := r.Str()
		if err != nil {
			return err
		}
		typ, err := r.Str()
		if err != nil {
			return err
		}
		if proto.FeatureCustomSerialization.In(version) {
			if own, err := r.Bool(); err != nil || own {
				return errors.Join(err, fmt.Errorf("column %s has a serialization of its own", name))
			}
		}
		if first {
			c, err := newNativeColumn(typ)
			if err != nil {
				return fmt.Errorf("column %s: %w", name, err)
			}
			n.names, n.columns = append(n.names, name), append(n.columns, c)
		}
		c := n.columns[i]
		if n.names[i] != name || string(c.typ) != typ {
			return fmt.Errorf("column %d is %s %s, and was %s %s in the block before", i, name, typ, n.names[i], c.typ)
		}
		c.Reset()
		if b.Rows == 0 {
			continue
		}
		if err := c.DecodeState(r); err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
		if err := c.DecodeColumn(r, b.Rows); err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
	}
	return nil
}

// readFrom reads the next block of a file; io.EOF when there is none.
func (n *nativeBlock) readFrom(r *proto.Reader) error {
	columns, err := r.Int()
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	if err != nil {
		return err
	}
	rows, err := r.Int()
	if err != nil {
		return fmt.Errorf("in the middle of a block: %w", err)
	}
	const most = 1 << 24
	if columns <= 0 || columns > most || rows <= 0 || rows > most {
		return fmt.Errorf("a block of %d columns and %d rows is not believed", columns, rows)
	}
	if err := n.DecodeResult(r, 0, proto.Block{Columns: columns, Rows: rows}); err != nil {
		return fmt.Errorf("in the middle of a block: %w", err)
	}
	return nil
}

// appendTo writes the first columns as FORMAT Native prints them.
func (n *nativeBlock) appendTo(b *proto.Buffer, columns int) error {
	b.PutInt(columns)
	b.PutInt(n.rows)
	for i, c := range n.columns[:columns] {
		b.PutString(n.names[i])
		b.PutString(string(c.typ))
		if err := c.Prepare(); err != nil {
			return fmt.Errorf("column %s: %w", n.names[i], err)
		}
		c.EncodeState(b)
		c.EncodeColumn(b)
	}
	return nil
}

// input is the block as an insert takes it.
func (n *nativeBlock) input() proto.Input {
	var all proto.Input
	for i, c := range n.columns {
		all = append(all, proto.InputColumn{Name: n.names[i], Data: c})
	}
	return all
}

// nativeFile reads a file of blocks, one after the other.
type nativeFile struct {
	in    *proto.Reader
	block nativeBlock // that was read last
	rows  uint64      // of all blocks so far
	err   error       // why there is none any more, nil at the end of the file
}

// next reads the next block, and says whether there is one.
func (f *nativeFile) next() bool {
	err := f.block.readFrom(f.in)
	if err == nil {
		f.rows += uint64(f.block.rows)
		return true
	}
	f.block.rows = 0
	if err != io.EOF { // the very one: an end in the middle of a block is another
		f.err = err
	}
	return false
}

// CountNative reads a file of blocks to its end, and counts the rows.
func CountNative(from io.Reader) (rows uint64, err error) {
	f := nativeFile{in: proto.NewReader(from)}
	for f.next() {
	}
	return f.rows, f.err
}
