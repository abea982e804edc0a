package record

import (
	"bytes"
	"math/bits"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// Append decodes each record of a message into one row. After an error, a
// *BadRecordError, the columns are unchanged.
func (c *Columns) Append(m *flow.Message) error {
	return c.AppendExcept(m, func(int) bool { return false })
}

// AppendExcept is Append without the records whose index in the entry skip selects;
// those need only be valid JSON.
func (c *Columns) AppendExcept(m *flow.Message, skip func(index int) bool) error {
	before := c.mark()
	if bad := c.append(m, skip, func(bad *BadRecordError) *BadRecordError { return bad }); bad != nil {
		c.truncate(before)
		return bad
	}
	return nil
}

// AppendGood appends the records that can be decoded and returns the others. An error, a
// *BadRecordError, means that the whole message is corrupt: nothing is appended.
func (c *Columns) AppendGood(m *flow.Message) (bad []*BadRecordError, err error) {
	before := c.mark()
	broken := c.append(m, func(int) bool { return false }, func(one *BadRecordError) *BadRecordError {
		bad = append(bad, one)
		return nil
	})
	if broken != nil {
		c.truncate(before)
		return nil, broken
	}
	return bad, nil
}

// append adds the records of a message that skip does not select. reject returns whether a bad record ends the message.
func (c *Columns) append(m *flow.Message, skip func(int) bool, reject func(*BadRecordError) *BadRecordError) *BadRecordError {
	r := &c.reader
	c.bind()
	defer func() { r.b = nil }() // it may alias the message
	if m.Encoding == flow.EncodingColumns {
		return c.join(m, skip)
	}
	if bad := r.open(m); bad != nil {
		return bad
	}
	defer c.fill(m)
	for {
		more, bad := r.advance(m)
		if bad != nil || !more {
			return bad
		}
		if skip(r.index) {
			bad = r.pass(m)
		} else if bad = r.read(m); bad == nil {
			c.row(m.Index + m.Records - r.index)
		} else if bad.Index >= 0 {
			bad = reject(bad)
		}
		if bad != nil {
			return r.worst(m, bad)
		}
	}
}

// extend adds empty rows after the first rows: most records set few columns. fill removes unused
// ones.
func (c *Columns) extend(rows, some int) {
	c.room = rows + min(max(some, 1), maxRoom)
	for _, s := range c.symbols() {
		s.extend(rows, c.room)
	}
	for _, n := range c.numbers() {
		n.extend(rows, c.room)
	}
}

// maxRoom bounds the rows that extend adds at a time.
const maxRoom = 1024

// end truncates unused rows.
func (c *Columns) end() {
	rows := len(c.TS)
	c.room = rows
	for _, s := range c.symbols() {
		s.end(rows)
	}
	for _, n := range c.numbers() {
		n.truncate(rows)
	}
	for _, t := range c.texts() {
		t.fill(rows)
	}
}

// fill ends the rows of a message, and sets the columns that come from the message.
func (c *Columns) fill(m *flow.Message) {
	c.end()
	rows := len(c.TS)
	if first := len(c.StreamSeq); first < rows {
		c.places(m, first)
		c.source = append(c.source[:0], m.Source...)
		for row := first; row < rows; row++ {
			c.Source.set(row, c.source)
		}
	}
	c.ReceivedAt = fill(c.ReceivedAt, rows, max(m.Received.UnixMilli(), 0))
	c.Lane = fill(c.Lane, rows, uint16(m.Lane))
	c.Incarnation = fill(c.Incarnation, rows, m.Incarnation)
	c.StreamSeq = fill(c.StreamSeq, rows, m.Seq)
}

// row adds the record just read, and cannot fail. more is the expected number of rows from it on.
func (c *Columns) row(more int) {
	r, row := &c.reader, len(c.TS)
	if row == c.room {
		c.extend(row, more)
	}
	var left fieldSet // values without a column, for extra
	c.StreamIdx = append(c.StreamIdx, uint32(r.index))
	c.TS = append(c.TS, r.timestamp(&left))
	key, _ := r.integer(r.get(fieldKey))
	c.Key = append(c.Key, key)
	positioned, follows := c.position(row, &left)
	c.version(row, &left)
	c.element(row, &left)
	c.deadline(row)
	c.Variables.append(r.json(fieldVariables))
	c.CustomHeaders.set(row, r.json(fieldCustomHeaders))
	if r.seen&(1<<fieldRecords) != 0 {
		left.add(fieldRecords)
	}
	kind := c.kind(row, positioned)
	inner := c.members(row, r.seen&valueFields, &left, kind != flow.ByPosition)
	outer := c.members(row, r.seen&outerFields, &left, kind != flow.ByPosition)
	c.extra(row, left)
	c.identity(row, kind, follows, outer, inner)
	c.form(row, left)
}

// members adds each field to its column. With content, it returns what they add to the
// content hash of the record.
func (c *Columns) members(row int, fields uint64, left *fieldSet, content bool) (sum xxh3.Uint128) {
	r := &c.reader
	for ; fields != 0; fields &= fields - 1 {
		f := field(bits.TrailingZeros64(fields))
		v := r.values[f]
		var symbol *LowCardinality
		switch column := &c.found.of[f]; {
		case v.kind <= kindNull:
		case column.symbol != nil:
			if loose := v.kind == kindBool || v.kind >= kindObject; loose {
				left.add(f)
				break
			}
			if column.symbol.set(row, r.text(v)); v.kind == kindString || v.kind == kindEscaped {
				symbol = column.symbol
			}
			if content && symbol != nil && v.end-v.start > uint32(len(`""`)) {
				if known := symbol.hash(); *known != (xxh3.Uint128{}) { // equal to content
					sum = add(sum, *known)
					continue
				}
			}
		case column.number != nil:
			if n, code := r.integer(v); code == "" {
				column.number.set(row, n)
				if content && v.kind == kindInt { // equal to content, which would parse it again
					sum = add(sum, multiply(n, fieldFactors[f]))
					continue
				}
			} else {
				left.add(f)
			}
		case column.text != nil:
			if v.kind == kindBool || v.kind >= kindObject {
				left.add(f)
			} else {
				column.text.set(row, r.text(v))
			}
		case f == fieldCustomHeaders:
			symbol = &c.CustomHeaders
		}
		if content {
			sum = add(sum, c.content(f, v, symbol))
		}
	}
	return sum
}

// fieldSet is a set of fields, one bit each.
type fieldSet uint64

func (s *fieldSet) add(f field) { *s |= 1 << f }

// position adds partition and position, parsed from an id such as 1-7554 if absent, and
// the source record position. positioned: the record itself has a valid partition and
// position. follows: its id is derived from them.
func (c *Columns) position(row int, left *fieldSet) (positioned, follows bool) {
	r := &c.reader
	partition, ok1 := r.looseInteger(fieldPartitionID, left)
	position, ok2 := r.looseInteger(fieldPosition, left)
	first, second, plain := splitID(r.text(r.get(fieldID)))
	if !ok1 {
		partition = first
	}
	if !ok2 {
		position = second
	}
	c.PartitionID = append(c.PartitionID, partition)
	c.Position = append(c.Position, position)
	if source, ok := r.looseInteger(fieldSourceRecordPosition, left); ok {
		c.SourceRecordOffset.set(row, source-position)
	}
	return ok1 && ok2 && 1 <= partition && partition <= flow.MaxPartition && position >= 1, plain && partition == first && position == second
}

// version adds the process version, which process instances call
// version and jobs processDefinitionVersion.
func (c *Columns) version(row int, left *fieldSet) {
	r := &c.reader
	switch v := r.get(fieldProcessDefinitionVersion); {
	case v.kind > kindNull:
		n, _ := r.integer(v)
		c.Version.set(row, n)
		if r.get(fieldVersion).kind > kindNull {
			left.add(fieldVersion)
		}
	default:
		if n, ok := r.looseInteger(fieldVersion, left); ok {
			c.Version.set(row, n)
		}
	}
}

// element adds the id of the element, which timers call targetElementId.
func (c *Columns) element(row int, left *fieldSet) {
	r := &c.reader
	switch v := r.get(fieldElementID); {
	case v.kind > kindNull:
		c.ElementID.set(row, r.text(v))
		if r.get(fieldTargetElementID).kind > kindNull {
			left.add(fieldTargetElementID)
		}
	default:
		c.ElementID.set(row, r.looseText(fieldTargetElementID, left))
	}
}

func (c *Columns) deadline(row int) {
	if v := c.reader.get(fieldDeadline); v.kind > kindNull {
		ms, _ := c.reader.time(v)
		c.Deadline.set(row, ms)
	}
}

// timestamp returns the time of the record, or 0 when it is missing or implausible.
func (r *reader) timestamp(left *fieldSet) int64 {
	v := r.get(fieldTimestamp)
	if v.kind <= kindNull {
		return 0
	}
	ms, _ := r.time(v)
	if plausible(ms) {
		return ms
	}
	left.add(fieldTimestamp)
	return 0
}

// looseText returns the text of a field that may have any type.
func (r *reader) looseText(f field, left *fieldSet) []byte {
	v := r.get(f)
	switch v.kind {
	case kindBool, kindObject, kindArray:
		left.add(f)
	}
	return r.text(v)
}

// looseInteger returns the number in a field that may have any type.
func (r *reader) looseInteger(f field, left *fieldSet) (int64, bool) {
	v := r.get(f)
	if v.kind <= kindNull {
		return 0, false
	}
	n, code := r.integer(v)
	if code != "" {
		left.add(f)
	}
	return n, code == ""
}

// json returns the JSON of a field as it was sent.
func (r *reader) json(f field) []byte {
	v := r.get(f)
	if v.kind <= kindNull {
		return emptyObject
	}
	return r.raw(v)
}

var emptyObject = []byte("{}")

// extra adds a JSON object of all members without a column, as sent: those of value at
// the top, those of the record under "_record"; empty if there are none. A member of
// value called _record, __record, … gets one more underscore.
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

// appendInner adds a member of value, renamed if it collides with "_record".
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

// appendFields adds fields whose type does not fit their column.
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

// isReserved reports whether a name is one or more underscores and "record".
func isReserved(name []byte) bool {
	rest := bytes.TrimLeft(name, "_")
	return len(rest) < len(name) && string(rest) == "record"
}
