package flow

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"
)

// appendName appends a text: its length and bytes, hex digits packed into half as many.
// The lowest bit of the length marks hex digits.
func appendName(dst []byte, text string) []byte {
	if n := len(text); n > 0 && n%2 == 0 && isHex(text) {
		dst = binary.AppendUvarint(dst, uint64(n/2)<<1|1)
		for i := 0; i < n; i += 2 {
			dst = append(dst, digit(text[i])<<4|digit(text[i+1]))
		}
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(text))<<1)
	return append(dst, text...)
}

func isHex(text string) bool {
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func digit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c - 'a' + 10
}

// tableReader reads a table, and keeps its first error.
type tableReader struct {
	b   []byte
	at  int
	row int // being read; -1 before the first
	err error
}

func (r *tableReader) fail(what string, args ...any) {
	if r.err != nil {
		return
	}
	where := "before the first row"
	if r.row >= 0 {
		where = fmt.Sprintf("in row %d", r.row)
	}
	r.err = fmt.Errorf("the entry table is corrupt at byte %d, %s: %s", r.at, where, fmt.Sprintf(what, args...))
}

// number reads an unsigned number up to most.
func (r *tableReader) number(name string, limit uint64) uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	switch {
	case n <= 0 || n > 1 && r.b[r.at+n-1] == 0: // too long, truncated, or not in shortest form
		r.fail("%s is not a number", name)
		return 0
	case v > limit:
		r.fail("%s is %d, more than %d", name, v, limit)
		return 0
	}
	r.at += n
	return v
}

func (r *tableReader) name(what string) string {
	n := r.number("the length of "+what, 1<<24)
	size := int(n >> 1)
	if r.err == nil && size > len(r.b)-r.at {
		r.fail("%s has %d bytes, and %d are left", what, size, len(r.b)-r.at)
	}
	if r.err != nil {
		return ""
	}
	text := r.b[r.at : r.at+size]
	r.at += size
	if n&1 == 0 {
		if size > 0 && size%2 == 0 && isHex(string(text)) {
			r.fail("%s is unpacked hex digits", what)
		}
		return string(text)
	}
	if size == 0 {
		r.fail("%s is packed but empty", what)
	}
	return hex.EncodeToString(text)
}

// Parse decodes the table of an entry and slices its body by it; body may be nil. Each
// table has exactly one encoding. After an error Messages is empty.
func (e *Entry) Parse(table, body []byte) error {
	const maxMS = 1 << 50 // beyond any real time
	r := tableReader{b: table, row: -1}
	if len(table) == 0 || table[0] != entryVersion {
		r.fail("the version is not %d", entryVersion)
		return r.err
	}
	r.at = 1
	e.LogEnd = r.number("the log end", 1<<63)
	e.Patience = time.Duration(r.number("the patience", uint64((1<<63-1)/time.Millisecond))) * time.Millisecond
	var callers []entryCaller
	var received int64
	index, left := 0, len(body)
	if body == nil { // not requested
		left = 1 << 31
	}
	for r.row = 0; r.err == nil && (r.at < len(table) || r.row == 0); r.row++ {
		m := Message{Lane: e.Lane, Seq: e.Seq, Topic: e.Topic, Ordinal: r.row, Index: index}
		flags := r.number("the flags", 1<<rowFlags-1)
		switch {
		case flags&rowColumns != 0 && flags&rowS2 != 0:
			r.fail("the body is both columns and JSON")
		case flags&rowColumns != 0:
			m.Encoding = EncodingColumns
		case flags&rowS2 != 0:
			m.Encoding = EncodingS2
		}
		m.Identified = flags&rowIdentified != 0
		m.ID, m.Hash = r.name("the id"), r.name("the hash")
		if number := r.number("the caller", uint64(len(callers))); number == 0 {
			who := entryCaller{r.name("the subject"), r.name("the source"), r.number("the routing revision", 1<<63)}
			if slices.Contains(callers, who) {
				r.fail("a caller is repeated")
			}
			callers = append(callers, who)
			m.Subject, m.Source, m.Revision = who.subject, who.source, who.revision
		} else {
			who := callers[number-1]
			m.Subject, m.Source, m.Revision = who.subject, who.source, who.revision
		}
		zigzag := r.number("the time it was received", 1<<63)
		received += int64(zigzag>>1) ^ -int64(zigzag&1)
		if received < -maxMS || received > maxMS {
			r.fail("it was received at %d ms", received)
		}
		m.Received = time.UnixMilli(received).UTC()
		packed := r.name("the trace context")
		m.TraceParent = unpackTrace(packed)
		if packTrace(packed) != packed {
			r.fail("the trace context is not packed")
		}
		m.From = int(r.number("the index of the first record", 1<<31))
		if m.Records = int(r.number("the records", 1<<31)); m.Records == 0 {
			r.fail("it has no records")
		}
		size := int(r.number("the length of the body", uint64(left)))
		left -= size
		if body != nil && r.err == nil {
			m.Body, body = body[:size:size], body[size:]
		}
		index += m.Records
		if r.err == nil {
			e.Messages = append(e.Messages, m)
		}
	}
	if body != nil && r.err == nil && left > 0 {
		r.fail("%d bytes of the body belong to no request", left)
	}
	if r.err != nil {
		e.Messages = nil
	}
	return r.err
}

// A W3C trace context is 00-<32 hex>-<16 hex>-<2 hex>. Tables drop its dashes, so that
// it packs as hex.
var dashes = [...]int{2, 35, 52}

const (
	traceLength  = 55
	packedLength = traceLength - len(dashes)
)

func packTrace(parent string) string {
	if len(parent) != traceLength || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
		return parent
	}
	return parent[:2] + parent[3:35] + parent[36:52] + parent[53:]
}

func unpackTrace(packed string) string {
	if len(packed) != packedLength || !isHex(packed) {
		return packed
	}
	return packed[:2] + "-" + packed[2:34] + "-" + packed[34:50] + "-" + packed[50:]
}
