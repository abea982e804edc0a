package clickhouse

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
// Each column's type is replaced by the one of types, if there are any.
func forRevision(body []byte, read *blockReader, revision int, types []column) []byte {
	custom := proto.FeatureCustomSerialization.In(revision)
	if !custom && types == nil {
		return body
	}
	out := make([]byte, 0, len(body)+len(read.marks)+64)
	from := 0
	for i, mark := range read.marks {
		typ := read.columns[i].typ
		if types != nil && types[i].typ != typ {
			size := len(binary.AppendUvarint(nil, uint64(len(typ)))) + len(typ)
			out = append(out, body[from:mark-size]...)
			out = binary.AppendUvarint(out, uint64(len(types[i].typ)))
			out = append(out, types[i].typ...)
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

// framed is a sink that frames blocks for clients of this revision. single says
// that they come one by one.
func framed(revision int, single bool, describe func() ([]column, error), to sink) sink {
	var zones []column
	begun := false
	return func(printed []byte) error {
		return eachBlock(printed, single, func(body []byte, read *blockReader) error {
			if !begun {
				begun, zones = true, zonesOf(read.columns, describe)
			}
			if err := to(noBlockInfo); err != nil {
				return err
			}
			return to(forRevision(body, read, revision, zones))
		})
	}
}
