package native

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/ClickHouse/ch-go/proto"
)

// Block is a block of rows of any table, as FORMAT Native prints it: read
// from an answer or a file, and written to a file or an insert. Columns keep their
// memory from block to block. The last ones may be for the reader alone: written are
// those before.
type Block struct {
	names   []string
	columns []column

	Rows int // of the block
}

// column is a column under the very name of its type, SimpleAggregateFunction
// included, which the column itself does not know.
type column struct {
	proto.Column
	typ proto.ColumnType
}

func (c column) Type() proto.ColumnType { return c.typ }

// Prepare, EncodeState and DecodeState hand on what the interface hides.
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

// newColumn makes a column of a type. A dictionary of texts stays as it comes:
// it is never looked into.
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

// Readable fails when a Block cannot have a column of a type.
func Readable(typ string) error {
	_, err := newColumn(typ)
	return err
}

// Width is how many columns the block has.
func (n *Block) Width() int { return len(n.columns) }

// Column is one of its columns.
func (n *Block) Column(i int) proto.Column { return n.columns[i].Column }

// DecodeResult reads the columns of a block, whose size was read before.
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

// readFrom reads the next block of a file; io.EOF when there is none.
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
	const most = 1 << 24
	if columns <= 0 || columns > most || rows <= 0 || rows > most {
		return fmt.Errorf("a block of %d columns and %d rows is not believed", columns, rows)
	}
	if err := n.DecodeResult(r, 0, proto.Block{Columns: columns, Rows: rows}); err != nil {
		return fmt.Errorf("in the middle of a block: %w", err)
	}
	return nil
}

// AppendTo writes the first columns as FORMAT Native prints them.
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

// Input is the block as an insert takes it.
func (n *Block) Input() proto.Input {
	var all proto.Input
	for i, c := range n.columns {
		all = append(all, proto.InputColumn{Name: n.names[i], Data: c})
	}
	return all
}

// File reads a file of blocks, one after the other.
type File struct {
	in *proto.Reader

	Block Block  // that was read last
	Rows  uint64 // of all blocks so far
	Err   error  // why there is none any more, nil at the end of the file
}

// NewFile reads from the beginning of a file.
func NewFile(from io.Reader) *File { return &File{in: proto.NewReader(from)} }

// Next reads the next block, and says whether there is one.
func (f *File) Next() bool {
	err := f.Block.readFrom(f.in)
	if err == nil {
		f.Rows += uint64(f.Block.Rows)
		return true
	}
	f.Block.Rows = 0
	if err != io.EOF { // the very one: an end in the middle of a block is another
		f.Err = err
	}
	return false
}

// Count reads a file of blocks to its end, and counts the rows.
func Count(from io.Reader) (rows uint64, err error) {
	f := NewFile(from)
	for f.Next() {
	}
	return f.Rows, f.Err
}
