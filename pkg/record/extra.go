package record

import "math/bits"

// extra adds the JSON object of everything no column takes: members of value
// at the top, members of the record itself under "_record", all as they were
// sent. It is empty when there is nothing. A member of value called _record
// gets one more underscore, and so does one called __record, and so on, so that
// nothing is confused.
func (c *Columns) extra(left fieldSet) {
	r, start := &c.reader, len(c.Extra.Buf)
	if len(r.inner)+len(r.outer) == 0 && left == 0 {
		c.Extra.close(start)
		return
	}
	b := c.Extra.Buf
	sep := byte('{')
	for _, m := range r.inner {
		b = append(b, sep)
		b = r.appendMember(b, m, r.isReserved(m.name))
		sep = ','
	}
	b, sep = r.appendFields(b, sep, uint64(left)&valueFields)
	if outer := uint64(left) & outerFields; outer != 0 || len(r.outer) > 0 {
		b = append(b, sep)
		b = append(b, `"_record":`...)
		sep = '{'
		for _, m := range r.outer {
			b = append(b, sep)
			b = r.appendMember(b, m, false)
			sep = ','
		}
		b, _ = r.appendFields(b, sep, outer)
		b = append(b, '}')
	}
	c.Extra.Buf = append(b, '}')
	c.Extra.close(start)
}

func (r *reader) appendMember(b []byte, m member, reserved bool) []byte {
	if reserved {
		b = append(b, `"_`...)
		b = append(b, r.plainName(m.name)...)
		b = append(b, '"')
	} else {
		b = append(b, r.raw(m.name)...)
	}
	b = append(b, ':')
	return append(b, r.raw(m.content)...)
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

// isReserved says whether a member of value would be taken for the members of
// the record: one or more underscores and "record".
func (r *reader) isReserved(name value) bool {
	if name.kind == kindString && r.b[name.start+1] != '_' {
		return false
	}
	const word = "record"
	s := r.plainName(name)
	n := 0
	for n < len(s) && s[n] == '_' {
		n++
	}
	return n > 0 && string(s[n:]) == word
}
