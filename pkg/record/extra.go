package record

import (
	"bytes"
	"math/bits"
)

// extra adds the JSON object of everything no column takes: members of value
// at the top, members of the record itself under "_record", all as they were
// sent. It is empty when there is nothing. A member of value called _record
// gets one more underscore, and so does one called __record, and so on, so that
// nothing is confused.
func (c *Columns) extra(row int, left fieldSet) {
	r, start := &c.reader, len(c.Extra.Buf)
	if len(r.inner)+len(r.outer) == 0 && left == 0 {
		return
	}
	b := c.Extra.Buf
	sep := byte('{')
	for _, m := range r.inner {
		b = append(b, sep)
		b = r.appendInner(b, m)
		sep = ','
	}
	b, sep = r.appendFields(b, sep, uint64(left)&valueFields)
	if outer := uint64(left) & outerFields; outer != 0 || len(r.outer) > 0 {
		b = append(b, sep)
		b = append(b, `"_record":`...)
		sep = '{'
		for _, m := range r.outer {
			b = append(b, sep)
			b = append(b, r.b[m.start:m.end]...)
			sep = ','
		}
		b, _ = r.appendFields(b, sep, outer)
		b = append(b, '}')
	}
	c.Extra.Buf = append(b, '}')
	c.Extra.close(row, start)
}

// appendInner adds a member of value, under another name if it would be taken
// for the members of the record.
func (r *reader) appendInner(b []byte, m span) []byte {
	if c := r.b[m.start+1]; c == '_' || c == '\\' {
		name, at := r.key(int(m.start))
		if s := r.plainName(name); isReserved(s) {
			b = append(b, `"_`...)
			b = append(b, s...)
			b = append(b, `":`...)
			return append(b, r.b[at:m.end]...)
		}
	}
	return append(b, r.b[m.start:m.end]...)
}

// appendFields adds the members that are fields, but of a type no column takes.
func (r *reader) appendFields(b []byte, sep byte, fields uint64) ([]byte, byte) {
	for ; fields != 0; fields &= fields - 1 {
		f := field(bits.TrailingZeros64(fields))
		b = append(b, sep, '"')
		b = append(b, specs[f].name...)
		b = append(b, `":`...)
		b = append(b, r.raw(r.get(f))...)
		sep = ','
	}
	return b, sep
}

// isReserved says whether a name is one or more underscores and "record".
func isReserved(name []byte) bool {
	rest := bytes.TrimLeft(name, "_")
	return len(rest) < len(name) && string(rest) == "record"
}
