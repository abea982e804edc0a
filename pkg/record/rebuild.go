package record

import (
	"encoding/binary"
	"math/bits"
	"strconv"

	"sluice/pkg/flow"
)

// A record is rebuilt from its row, member for member. Form is three sets of fields, eight
// bytes each: fields outside extra; null fields; and numbers in text columns or texts in
// number columns. The last two are omitted if both are empty. If the row loses anything,
// such as the digits of 1e3 or repeated members, Form is empty and Whole is the record as
// posted.

// form sets the form of the record just read, or Whole. left are the fields in extra.
func (c *Columns) form(row int, left fieldSet) {
	r := &c.reader
	seen := r.seen &^ uint64(left)
	null, other, whole := uint64(0), uint64(0), r.twice != 0 || r.uneven
	for odd := r.odd & seen; odd != 0; odd &= odd - 1 {
		f := field(bits.TrailingZeros64(odd))
		switch v := r.values[f]; {
		case v.kind == kindNull:
			null |= 1 << f
		case specs[f].class == classText || specs[f].class == classLooseText:
			other |= 1 << f
		default:
			text := r.raw(v)
			if v.kind == kindString {
				text = r.text(v)
				other |= 1 << f
			}
			whole = whole || !isCanonical(text)
		}
	}
	if id := r.get(fieldID); whole || id.kind == kindString && id.end-id.start == 2 {
		c.Whole.set(row, r.b[r.start:r.end])
		return
	}
	var form [24]byte
	binary.LittleEndian.PutUint64(form[:], seen)
	size := 8
	if null|other != 0 {
		binary.LittleEndian.PutUint64(form[8:], null)
		binary.LittleEndian.PutUint64(form[16:], other)
		size = len(form)
	}
	c.Form.set(row, form[:size])
}

// isCanonical reports whether a text is a whole number as a column formats it.
func isCanonical(text []byte) bool {
	_, plain := cutSign(text)
	n := len(plain)
	return 0 < n && n <= 19 && digits(plain, 0) == n && text[0] != '+' && (plain[0] != '0' || len(text) == 1)
}

// eachRow is Each for columns.
func eachRow(m *flow.Message, f func(index int, raw []byte) error) error {
	var c Columns
	if err := c.Append(m); err != nil {
		return err
	}
	w := writer{Columns: &c}
	for row := range c.Rows() {
		if !w.record(row) {
			return bad(-1, CodeBadEncoding, m.Body)
		}
		if err := f(int(c.StreamIdx[row]), w.b); err != nil {
			return err
		}
	}
	return nil
}

// writer writes rows as JSON.
type writer struct {
	*Columns
	b         []byte // the record
	row       int
	null      uint64 // null fields
	other     uint64 // fields of another JSON kind than their column
	separator byte   // before the next member
}

// record rebuilds the record of a row; false if the row is corrupt.
func (w *writer) record(row int) bool {
	form := w.Form.Value(row)
	if len(form) == 0 {
		w.b = append(w.b[:0], w.Whole.Value(row)...)
		return len(w.b) > 0
	}
	if len(form) != 8 && len(form) != 24 {
		return false
	}
	seen := binary.LittleEndian.Uint64(form)
	w.row, w.null, w.other, w.separator = row, 0, 0, '{'
	if len(form) == 24 {
		w.null, w.other = binary.LittleEndian.Uint64(form[8:]), binary.LittleEndian.Uint64(form[16:])
	}
	inner, outer, ok := w.extras()
	w.b = w.b[:0]
	w.fields(seen & outerFields &^ (1 << fieldValue))
	for _, member := range outer {
		w.member(member)
	}
	if seen&(1<<fieldValue) != 0 {
		w.name(fieldValue)
		if w.null&(1<<fieldValue) != 0 {
			w.b = append(w.b, "null"...)
		} else {
			w.separator = '{'
			w.fields(seen & valueFields)
			for _, member := range inner {
				w.member(member)
			}
			w.close()
			w.separator = ','
		}
	}
	w.close()
	return ok
}

func (w *writer) member(m []byte) {
	w.b = append(append(w.b, w.separator), m...)
	w.separator = ','
}

func (w *writer) name(f field) {
	w.b = append(append(w.b, w.separator, '"'), specs[f].name...)
	w.b = append(w.b, '"', ':')
	w.separator = ','
}

// close ends an object.
func (w *writer) close() {
	if w.separator == '{' {
		w.b = append(w.b, '{')
	}
	w.b = append(w.b, '}')
}

// extras are the members in extra as posted: those of value, and those of the record.
func (w *writer) extras() (inner, outer [][]byte, ok bool) {
	s := walker{scanner: scanner{b: w.Extra.Value(w.row)}}
	if len(s.b) == 0 {
		return nil, nil, true
	}
	end := s.object(0, func(name []byte, start, at, end int) {
		switch {
		case string(name) == "_record" && s.b[at] == '{':
			s.object(at, func(_ []byte, start, _, end int) { outer = append(outer, s.b[start:end]) })
		case isReserved(name): // renamed
			inner = append(inner, append(append([]byte{'"'}, name[1:]...), s.b[at-2:end]...))
		default:
			inner = append(inner, s.b[start:end])
		}
	})
	return inner, outer, end == len(s.b)
}

// object calls f with the name, the start, the start of the value, and the end of each
// member of the object at i.
func (w *walker) object(i int, f func(name []byte, start, at, end int)) int {
	if w.b[i] != '{' {
		return -1
	}
	i++
	for first := true; ; first = false {
		start, more := w.next(i, first, '}')
		if !more {
			return start
		}
		name, at := w.key(start)
		if at < 0 {
			return -1
		}
		if i, _ = w.skip(at, deepest); i < 0 {
			return -1
		}
		f(w.plainName(name), start, at, i)
	}
}

func (w *writer) fields(fields uint64) {
	for ; fields != 0; fields &= fields - 1 {
		f := field(bits.TrailingZeros64(fields))
		w.name(f)
		if w.null>>f&1 != 0 {
			w.b = append(w.b, "null"...)
			continue
		}
		column := w.found.of[f]
		switch row := w.row; {
		case column.symbol != nil:
			w.text(f, column.symbol.Value(row))
		case column.text != nil:
			w.text(f, column.text.Value(row))
		case column.number != nil:
			w.number(f, column.number.Value(row))
		default:
			w.special(f, row)
		}
	}
}

// special writes a field without a column of its own.
func (w *writer) special(f field, row int) {
	switch f {
	case fieldID:
		w.text(f, w.AppendID(nil, row))
	case fieldElementID, fieldTargetElementID:
		w.text(f, w.ElementID.Value(row))
	case fieldKey:
		w.number(f, w.Key[row])
	case fieldTimestamp:
		w.number(f, w.TS[row])
	case fieldPartitionID:
		w.number(f, w.PartitionID[row])
	case fieldPosition:
		w.number(f, w.Position[row])
	case fieldSourceRecordPosition:
		w.number(f, w.Position[row]+w.SourceRecordOffset.Value(row))
	case fieldProcessDefinitionVersion, fieldVersion:
		w.number(f, w.Version.Value(row))
	case fieldDeadline:
		w.number(f, w.Deadline.Value(row))
	case fieldVariables:
		w.b = append(w.b, w.Variables.Value(row)...)
	case fieldCustomHeaders:
		w.b = append(w.b, w.CustomHeaders.Value(row)...)
	default: // without a column: a value is always in extra
		w.b = append(w.b, "null"...)
	}
}

func (w *writer) number(f field, n int64) {
	if w.other>>f&1 == 0 {
		w.b = strconv.AppendInt(w.b, n, 10)
		return
	}
	w.b = append(strconv.AppendInt(append(w.b, '"'), n, 10), '"')
}

func (w *writer) text(f field, text []byte) {
	if w.other>>f&1 != 0 {
		w.b = append(w.b, text...)
		return
	}
	w.b = append(quote(append(w.b, '"'), text), '"')
}

// quote appends the inside of a JSON string.
func quote(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return b
}
