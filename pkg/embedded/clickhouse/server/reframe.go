package server

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/ClickHouse/ch-go/proto"
)

// The engine prints FORMAT Native as for a client that has told no revision. To
// one that has, a server sends an info before each block, and, from the revision
// of custom serializations on, a byte with each column that says there is none.

// noBlockInfo is an info that says nothing in particular.
var noBlockInfo = func() []byte {
	var info proto.Buffer
	proto.BlockInfo{BucketNum: -1}.Encode(&info)
	return info.Buf
}()

// eachBlock hands the blocks of what the engine has printed to do, with a reader
// that has just read it. single says that it is one.
func eachBlock(printed []byte, single bool, do func(body []byte, read *blockReader) error) error {
	rest := bytes.NewReader(printed)
	reader := blockReader{src: rest, max: uint64(len(printed)), rest: single}
	for rest.Len() > 0 {
		from := len(printed) - rest.Len()
		reader.buf = reader.buf[:0]
		if _, err := reader.body(); err != nil {
			return err
		}
		if err := do(printed[from:len(printed)-rest.Len()], &reader); err != nil {
			return err
		}
	}
	return nil
}

// forRevision is a block as a client of this revision reads it, without its info.
// Each column gets the name and the type that columns say, if there are any.
func forRevision(body []byte, read *blockReader, revision int, columns []column) []byte {
	custom := proto.FeatureCustomSerialization.In(revision)
	if !custom && columns == nil {
		return body
	}
	out := make([]byte, 0, len(body)+len(read.marks)+64)
	from := 0
	for i, mark := range read.marks {
		if is := read.columns[i]; columns != nil && columns[i] != is {
			out = append(out, body[from:mark-len(is.encoded())]...)
			out = append(out, columns[i].encoded()...)
		} else {
			out = append(out, body[from:mark]...)
		}
		if custom {
			out = append(out, 0)
		}
		from = mark
	}
	return append(out, body[from:]...)
}

// encoded is a column's name and type as they stand in a block.
func (c column) encoded() (b []byte) {
	for _, text := range []string{c.name, c.typ} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// zonesOf are the columns of a result with the time zones of DateTime, which the
// engine prints for no client without a revision; nil, if no column has one or the
// statement cannot be described. It asks at most once a result.
func zonesOf(columns []column, describe func() ([]column, error)) []column {
	if !slices.ContainsFunc(columns, func(c column) bool { return c.typ == "DateTime" }) {
		return nil
	}
	all, err := describe()
	if err != nil || len(all) != len(columns) {
		return nil
	}
	return all
}

// reframer turns what the engine prints of one result into blocks for a client of a
// revision.
type reframer struct {
	revision int
	describe func() ([]column, error)     // of the statement, if it is a SELECT
	begin    func(columns []column) error // gets the columns before the first block
	block    func(body []byte) error

	begun bool     // the columns are told
	zones []column // with the time zones of DateTime, which the engine leaves out; nil: there are none
}

// many takes all blocks of a result that was printed in one piece.
func (r *reframer) many(printed []byte) error { return eachBlock(printed, false, r.send) }

// one takes a block. It is looked into only as far as needed.
func (r *reframer) one(printed []byte) error {
	if r.begun && r.zones == nil && !proto.FeatureCustomSerialization.In(r.revision) {
		return r.block(printed)
	}
	return eachBlock(printed, true, r.send)
}

func (r *reframer) send(body []byte, read *blockReader) error {
	if !r.begun {
		columns := slices.Clone(read.columns)
		if r.zones = zonesOf(columns, r.describe); r.zones != nil {
			columns = r.zones
		}
		r.begun = true
		if err := r.begin(columns); err != nil {
			return err
		}
	}
	return r.block(forRevision(body, read, r.revision, r.zones))
}
