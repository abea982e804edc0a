package server

import (
	"encoding/binary"
	"io"

	"sluice/pkg/embedded/clickhouse/library"
)

// byteSource is the input of blocks: a socket, or compressed frames on it.
type byteSource interface {
	io.Reader
	io.ByteReader
}

// blockReader reads native blocks unchanged: it parses a block only to find its end.
type blockReader struct {
	src byteSource
	max uint64 // bytes a block may have
	buf []byte // of the block being read, without its info; reused

	custom bool // each column has a byte for custom serialization, which is left out of buf
	rest   bool // the source ends with the block, so a last column may have an unknown layout

	columns []column // names and types of the last block
	marks   []int    // the end in buf of each column's type
}

// block is one block as it was sent. Its body is valid until the next read.
type block struct {
	table         string // name of an external table
	columns, rows uint64
	body          []byte // in FORMAT Native
}

// isEnd reports whether the block is the empty one that ends a stream of them.
func (b block) isEnd() bool { return b.columns == 0 && b.rows == 0 }

const maxColumns = 1 << 16

// read reads one block: its info, its size, and for each column name, type and
// values.
func (b *blockReader) read() (block, error) {
	b.buf = b.buf[:0]
	if err := b.info(); err != nil {
		return block{}, err
	}
	b.buf = b.buf[:0] // the info is not part of FORMAT Native
	return b.body()
}

func (b *blockReader) body() (read block, err error) {
	b.columns, b.marks = b.columns[:0], b.marks[:0]
	if read.columns, err = b.uvarint(); err != nil {
		return read, err
	}
	if read.rows, err = b.uvarint(); err != nil {
		return read, err
	}
	if read.columns > maxColumns {
		return read, library.Exceptionf("INCORRECT_DATA", "Implausible block size: %d columns", read.columns)
	}
	for n := range read.columns {
		if err := b.column(read.rows, b.rest && n+1 == read.columns); err != nil {
			return read, err
		}
	}
	read.body = b.buf
	return read, nil
}

func (b *blockReader) column(rows uint64, isRest bool) error {
	called, err := b.text()
	if err != nil {
		return err
	}
	name, err := b.text()
	if err != nil {
		return err
	}
	b.columns, b.marks = append(b.columns, column{name: called, typ: name}), append(b.marks, len(b.buf))
	if b.custom {
		if err := b.take(1, 1); err != nil {
			return err
		}
		if own := b.buf[len(b.buf)-1]; own != 0 {
			return library.Exceptionf("NOT_IMPLEMENTED", "Column %.64s has a serialization of its own", called)
		}
		b.buf = b.buf[:len(b.buf)-1] // the engine does not expect this byte
	}
	if rows == 0 {
		return nil
	}
	layout, err := parseLayout(name)
	if err != nil && isRest {
		left, err := io.ReadAll(b.src)
		b.buf = append(b.buf, left...)
		return err
	}
	if err != nil {
		return err
	}
	if err := layout.prefix(b); err != nil {
		return err
	}
	return layout.data(b, rows)
}

// info reads the fields before a block: numbered, ended by 0.
func (b *blockReader) info() error {
	for {
		field, err := b.uvarint()
		if err != nil {
			return err
		}
		switch field {
		case 0:
			return nil
		case 1: // is_overflows
			err = b.take(1, 1)
		case 2: // bucket_num
			err = b.take(4, 1)
		default:
			err = library.Exceptionf("INCORRECT_DATA", "Block info has an unknown field %d", field)
		}
		if err != nil {
			return err
		}
	}
}

// take reads count values of size bytes into the buffer, which grows with the received
// data, so that a false count costs nothing.
func (b *blockReader) take(count, size uint64) error {
	if room := b.max - uint64(len(b.buf)); count > room/size {
		return library.Exceptionf("INCORRECT_DATA", "Block is larger than %d bytes", b.max)
	}
	for left := count * size; left > 0; {
		piece := min(left, library.PieceSize)
		start := len(b.buf)
		b.grow(int(piece))
		if _, err := io.ReadFull(b.src, b.buf[start:]); err != nil {
			return unexpectedEnd(err)
		}
		left -= piece
	}
	return nil
}

func (b *blockReader) grow(more int) {
	need := len(b.buf) + more
	if need > cap(b.buf) {
		larger := make([]byte, len(b.buf), max(need, 2*cap(b.buf)))
		copy(larger, b.buf)
		b.buf = larger
	}
	b.buf = b.buf[:need]
}

func (b *blockReader) uvarint() (uint64, error) {
	var value uint64
	for shift := 0; shift < 64; shift += 7 {
		next, err := b.src.ReadByte()
		if err != nil {
			return 0, unexpectedEnd(err)
		}
		b.buf = append(b.buf, next)
		value |= uint64(next&0x7f) << shift
		if next < 0x80 {
			return value, nil
		}
	}
	return 0, library.Exceptionf("INCORRECT_DATA", "Number in a block is longer than 64 bits")
}

func (b *blockReader) uint64() (uint64, error) {
	if err := b.take(8, 1); err != nil {
		return 0, err
	}
	return b.lastUint64(), nil
}

func (b *blockReader) lastUint64() uint64 {
	return binary.LittleEndian.Uint64(b.buf[len(b.buf)-8:])
}

// maxName bounds the names of columns and types.
const maxName = 1 << 16

func (b *blockReader) text() (string, error) {
	size, err := b.uvarint()
	if err != nil {
		return "", err
	}
	if size > maxName {
		return "", library.Exceptionf("INCORRECT_DATA", "Implausible name length: %d bytes", size)
	}
	if err := b.take(size, 1); err != nil {
		return "", err
	}
	return string(b.buf[len(b.buf)-int(size):]), nil
}

// unexpectedEnd is io.ErrUnexpectedEOF for an end within a value.
func unexpectedEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
