package native

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
)

// Block is a block of any table in FORMAT Native: read from a result or file, written to a file or
// insert. Columns keep their memory between blocks. Trailing columns may be for the reader only.
type Block struct {
	names   []string
	columns []column

	Rows int // in the block
}

// column is a column under its declared type, SimpleAggregateFunction included, which the column itself
// does not carry.
type column struct {
	proto.Column
	typ proto.ColumnType
}

func (c column) Type() proto.ColumnType { return c.typ }

// Prepare, EncodeState and DecodeState forward the methods hidden by the interface.
func (c column) Prepare() error {
	if p, ok := c.Column.(proto.Preparable); ok {
		return p.Prepare()
	}
	return nil
}

func (c column) EncodeState(b *proto.Buffer) {
	if s, ok := c.Column.(proto.StateEncoder); ok {
		s.EncodeState(b)
	}
}

func (c column) DecodeState(r *proto.Reader) error {
	if s, ok := c.Column.(proto.StateDecoder); ok {
		return s.DecodeState(r)
	}
	return nil
}

// newColumn makes a column of a type. LowCardinality(String) stays raw, since it is never inspected.
func newColumn(typ string) (column, error) {
	plain := typ
	if inner, ok := strings.CutPrefix(typ, "SimpleAggregateFunction("); ok {
		_, inner, _ = strings.Cut(strings.TrimSuffix(inner, ")"), ", ")
		plain = inner
	}
	if plain == "LowCardinality(String)" {
		return column{&proto.ColLowCardinalityRaw{Index: new(proto.ColStr)}, proto.ColumnType(typ)}, nil
	}
	var auto proto.ColAuto
	if err := auto.Infer(proto.ColumnType(plain)); err != nil {
		return column{}, fmt.Errorf("type %s: %w", typ, err)
	}
	return column{auto.Data, proto.ColumnType(typ)}, nil
}

// Readable fails if a Block cannot have a column of a type.
func Readable(typ string) error {
	_, err := newColumn(typ)
	return err
}

// Width is the number of columns.
func (n *Block) Width() int { return len(n.columns) }

func (n *Block) Column(i int) proto.Column { return n.columns[i].Column }

// DecodeResult reads the columns of a block, whose size was already read.
func (n *Block) DecodeResult(r *proto.Reader, version int, b proto.Block) error {
	first := len(n.columns) == 0
	if !first && b.Columns != len(n.columns) {
		return fmt.Errorf("a block of %d columns follows one of %d", b.Columns, len(n.columns))
	}
	n.Rows = b.Rows
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
			c, err := newColumn(typ)
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

// readFrom reads the next block of a file; io.EOF at the end.
func (n *Block) readFrom(r *proto.Reader) error {
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
	const limit = 1 << 24
	if columns <= 0 || columns > limit || rows <= 0 || rows > limit {
		return fmt.Errorf("implausible block size: %d columns, %d rows", columns, rows)
	}
	if err := n.DecodeResult(r, 0, proto.Block{Columns: columns, Rows: rows}); err != nil {
		return fmt.Errorf("in the middle of a block: %w", err)
	}
	return nil
}

// AppendTo appends the first columns in FORMAT Native.
func (n *Block) AppendTo(b *proto.Buffer, columns int) error {
	b.PutInt(columns)
	b.PutInt(n.Rows)
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

// Input is the block as input of an insert.
func (n *Block) Input() proto.Input {
	var all proto.Input
	for i, c := range n.columns {
		all = append(all, proto.InputColumn{Name: n.names[i], Data: c})
	}
	return all
}

// File reads a file of blocks.
type File struct {
	in *proto.Reader

	Block Block  // read last
	Rows  uint64 // of all blocks so far
	Err   error  // why reading ended; nil at the end of the file
}

func NewFile(from io.Reader) *File { return &File{in: proto.NewReader(from)} }

// Next reads the next block, and reports whether there is one.
func (f *File) Next() bool {
	err := f.Block.readFrom(f.in)
	if err == nil {
		f.Rows += uint64(f.Block.Rows)
		return true
	}
	f.Block.Rows = 0
	if err != io.EOF { // not wrapped: an end within a block is another error
		f.Err = err
	}
	return false
}

// Count counts the rows of a file of blocks.
func Count(from io.Reader) (rows uint64, err error) {
	f := NewFile(from)
	for f.Next() {
	}
	return f.Rows, f.Err
}
