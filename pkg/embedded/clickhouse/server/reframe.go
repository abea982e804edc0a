package server

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/ClickHouse/ch-go/proto"
)

// The engine's FORMAT Native is for clients without a revision. For others a server sends an
// info before each block and, from the revision of custom serializations on, a byte per
// column.

// noBlockInfo is the default block info.
var noBlockInfo = func() []byte {
	var info proto.Buffer
	proto.BlockInfo{BucketNum: -1}.Encode(&info)
	return info.Buf
}()

// eachBlock passes the blocks of the engine's output to do, with the reader that has read
// the block. single: the output is one block.
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

// forRevision converts a block for a client of this revision, without its info. columns, if
// any, replace names and types.
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

// encoded is a column's name and type as in a block.
func (c column) encoded() (b []byte) {
	for _, text := range []string{c.name, c.typ} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// zonesOf are the columns of a result with the time zones of DateTime, which the engine omits
// for clients without a revision; nil, if no column has one or the statement cannot be
// described. It describes at most once a result.
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

// reframer converts the engine's output of one result into blocks for a client of a
// revision.
type reframer struct {
	revision int
	describe func() ([]column, error)     // of the statement, if it is a SELECT
	begin    func(columns []column) error // receives the columns before the first block
	block    func(body []byte) error

	begun bool     // begin was called
	zones []column // with the time zones of DateTime, which the engine omits; nil: none
}

// many converts all blocks of a complete result.
func (r *reframer) many(printed []byte) error { return eachBlock(printed, false, r.send) }

// one converts a block, which is parsed only as far as needed.
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
