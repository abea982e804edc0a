package record

import (
	"bytes"
	"encoding/hex"
	"math/bits"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// kind is the kind of the current record's deduplication key.
func (c *Columns) kind(row int, positioned bool) uint8 {
	switch id := c.reader.get(fieldID); {
	case positioned && c.TS[row] != 0:
		return flow.ByPosition
	case id.kind > kindNull && len(c.reader.text(id)) > 0:
		return flow.ByContent
	}
	return flow.ByPlace
}

// positioned reports whether the current record will be identified by position.
func (w *walker) positioned() bool {
	for _, f := range [...]field{fieldPartitionID, fieldPosition} {
		v := w.get(f)
		if v.kind <= kindNull {
			return false
		}
		if n, code := w.integer(v); code != "" || n < 1 || f == fieldPartitionID && n > flow.MaxPartition {
			return false
		}
	}
	v := w.get(fieldTimestamp)
	ms, _ := w.time(v)
	return v.kind > kindNull && plausible(ms)
}

// identity adds the deduplication key of the current record, after the rest of its row. places
// adds those of records identified by place. outer and inner are the fields' sums of the content
// hash.
func (c *Columns) identity(row int, kind uint8, follows bool, outer, inner xxh3.Uint128) {
	r := &c.reader
	c.Kind = append(c.Kind, kind)
	r.expect(kind)
	switch kind {
	case flow.ByContent:
		sum := r.content(outer, inner).Bytes()
		c.Identity.set(row, sum[len(sum)-flow.ContentBytes:])
	case flow.ByPlace:
		start := len(c.OwnID.Buf)
		c.OwnID.Buf = r.contentID(c.OwnID.Buf, r.content(outer, inner))
		c.OwnID.close(row, start)
		return
	}
	if !follows {
		c.OwnID.set(row, r.text(r.get(fieldID)))
	}
}

// appendPlace appends the id derived from partition and position.
func appendPlace(dst []byte, partition, position int64) []byte {
	dst = strconv.AppendInt(dst, partition, 10)
	return strconv.AppendInt(append(dst, '-'), position, 10)
}

// places adds the identities, from a row on, of records identified by place; a replayed dead
// letter keeps its original place.
func (c *Columns) places(m *flow.Message, first int) {
	if !slices.Contains(c.Kind[first:], flow.ByPlace) {
		return
	}
	hashes, start := &c.hashes, c.Identity.start(first)
	hashes.Buf, hashes.Ends = append(hashes.Buf[:0], c.Identity.Buf[start:]...), hashes.Ends[:0]
	for _, end := range c.Identity.Ends[first:] {
		hashes.Ends = append(hashes.Ends, end-start)
	}
	c.Identity.truncate(first)
	origin := flow.ReplayOf(m.ID)
	for row := first; row < len(c.Kind); row++ {
		id := &c.Identity.Buf
		switch index := int(c.StreamIdx[row]); {
		case c.Kind[row] != flow.ByPlace:
			*id = append(*id, hashes.Value(row-first)...)
		case origin == "":
			*id = appendOrigin(*id, m.Lane, m.Incarnation, m.Seq, index)
		default:
			if *id = append(*id, origin...); flow.IsWhole(origin) {
				*id = strconv.AppendInt(append(*id, '.'), int64(index-m.Index), 10)
			}
		}
		c.Identity.Ends = append(c.Identity.Ends, uint32(len(*id)))
	}
}

func appendOrigin(b []byte, lane int, incarnation, seq uint64, index int) []byte {
	b = strconv.AppendInt(b, int64(lane), 10)
	b = strconv.AppendUint(append(b, '.'), incarnation, 10)
	b = strconv.AppendUint(append(b, '.'), seq, 10)
	return strconv.AppendInt(append(b, '.'), int64(index), 10)
}

// IsReplayed reports whether a row identified by place is a replayed dead letter: its place
// differs from where it was read.
func (c *Columns) IsReplayed(row int) bool {
	var place [96]byte
	own := appendOrigin(place[:0], int(c.Lane[row]), c.Incarnation[row], c.StreamSeq[row], int(c.StreamIdx[row]))
	return !bytes.Equal(own, c.Identity.Value(row))
}

// AppendID appends the id of a row as views show it: its own, or partition-position.
func (c *Columns) AppendID(dst []byte, row int) []byte {
	if id := c.OwnID.Value(row); len(id) > 0 {
		return append(dst, id...)
	}
	return appendPlace(dst, c.PartitionID[row], c.Position[row])
}

func (c *Columns) ID(row int) string { return string(c.AppendID(nil, row)) }

// contentID appends the displayed id of a record sent without one and without a position:
// a hash of its content. It is not a deduplication key.
func (w *walker) contentID(dst []byte, content xxh3.Uint128) []byte {
	if id := w.get(fieldID); id.kind != kindNone {
		content = subtract(content, w.hashScalar(fieldHashes[fieldID], id))
	}
	b := content.Bytes()
	return hex.AppendEncode(append(dst, "h-"...), b[:])
}

// splitID parses an id of the form <partition>-<position>; zeros otherwise. plain: it is
// in canonical form.
func splitID(id []byte) (partition, position int64, plain bool) {
	n := digits(id, 0)
	if n == 0 || n == len(id) || id[n] != '-' {
		return 0, 0, false
	}
	first, second := id[:n], id[n+1:]
	if len(second) == 0 || len(first) > 18 || len(second) > 18 || digits(second, 0) < len(second) {
		return splitLong(first, second)
	}
	return small(first), small(second), (first[0] != '0' || n == 1) && (second[0] != '0' || len(second) == 1)
}

// splitLong is splitID for text that may not be 64-bit numbers.
func splitLong(first, second []byte) (partition, position int64, plain bool) {
	if len(second) > 0 && second[0] == '-' {
		return 0, 0, false
	}
	partition, code1 := decimal(first)
	position, code2 := decimal(second)
	if code1 != "" || code2 != "" {
		return 0, 0, false
	}
	return partition, position, first[0] != '0' && second[0] != '0'
}

// The content hash of a record: 128 bits over all members, independent of their order
// and of white space. It is stored and never changes: testdata/content.txt freezes it,
// docs/identity.md specifies it.
//
//   - An object is the sum, modulo 2^128, of its members.
//   - A member is XXH3-128 of its content, with the seed XXH3-64(name) + type: the
//     unescaped bytes of a text (type 1); a number, true, false or null as written (2);
//     the 16 bytes, big-endian, of a nested object (3) or array (4).
//   - A whole number of at most 18 digits is not hashed but multiplied, modulo
//     2^128, by XXH3-128 of no bytes with the seed XXH3-64(name) + 5, made odd.
//   - An array is an object whose members are 0, 1, 2, …: these numbers are the seeds,
//     instead of XXH3-64(name).
const (
	typeText uint64 = 1 + iota
	typePlain
	typeObject
	typeArray
	typeWhole
)

func Hash(body []byte) string {
	sum := xxh3.Hash128(body).Bytes()
	return hex.EncodeToString(sum[:])
}

// Hashes and factors of the field names.
var fieldHashes, fieldFactors = func() (hashes [maxFields]uint64, factors [maxFields]xxh3.Uint128) {
	for f, s := range specs {
		hashes[f] = xxh3.HashString(s.name)
		factors[f] = factor(hashes[f])
	}
	return hashes, factors
}()

// factor is the multiplier of whole numbers in a member with this name.
func factor(name uint64) xxh3.Uint128 {
	by := xxh3.Hash128Seed(nil, name+typeWhole)
	by.Lo |= 1
	return by
}

// multiply is n times by, modulo 2^128.
func multiply(n int64, by xxh3.Uint128) (product xxh3.Uint128) {
	product.Hi, product.Lo = bits.Mul64(uint64(n), by.Lo)
	product.Hi += uint64(n)*by.Hi - uint64(n>>63)&by.Lo // n may be negative
	return product
}

// hashMember reads the value at i of a member with this name hash and returns what the
// member adds to its object. Like skip, it returns end -1 after an error.
func (w *walker) hashMember(name uint64, i, depth int) (sum xxh3.Uint128, end int, k kind) {
	if i < len(w.b) {
		switch w.b[i] {
		case '{':
			if sum, end = w.hashObject(i, depth); end >= 0 {
				sum = hashNested(sum, name+typeObject)
			}
			return sum, end, kindObject
		case '[':
			if sum, end = w.hashArray(i, depth); end >= 0 {
				sum = hashNested(sum, name+typeArray)
			}
			return sum, end, kindArray
		}
	}
	if end, k = w.skip(i, depth); end >= 0 {
		if k == kindEscaped && w.mask != nil {
			w.lookInto(i, end)
		}
		sum = w.hashScalar(name, value{uint32(i), uint32(end), k})
	}
	return sum, end, k
}

// hashScalar is hashMember of a scalar already read.
func (w *walker) hashScalar(name uint64, v value) xxh3.Uint128 {
	switch v.kind {
	case kindString, kindEscaped:
		return xxh3.Hash128Seed(w.text(v), name+typeText)
	case kindInt:
		return multiply(small(w.raw(v)), factor(name))
	}
	return xxh3.Hash128Seed(w.raw(v), name+typePlain)
}

// hashNested is what an object or array adds to the one it is in.
func hashNested(inner xxh3.Uint128, seed uint64) xxh3.Uint128 {
	b := inner.Bytes()
	return xxh3.Hash128Seed(b[:], seed)
}

func (w *walker) hashObject(i, depth int) (sum xxh3.Uint128, end int) {
	if depth <= 0 {
		return sum, w.fail(CodeTooDeep, i)
	}
	i++
	for first := true; ; first = false {
		start, more := w.next(i, first, '}')
		if !more {
			return sum, start
		}
		name, at := w.key(start)
		if at < 0 {
			return sum, -1
		}
		var member xxh3.Uint128
		if member, i, _ = w.hashMember(xxh3.Hash(w.plainName(name)), at, depth-1); i < 0 {
			return sum, -1
		}
		sum = add(sum, member)
	}
}

func (w *walker) hashArray(i, depth int) (sum xxh3.Uint128, end int) {
	if depth <= 0 {
		return sum, w.fail(CodeTooDeep, i)
	}
	i++
	for n := uint64(0); ; n++ {
		at, more := w.next(i, n == 0, ']')
		if !more {
			return sum, at
		}
		var element xxh3.Uint128
		if element, i, _ = w.hashMember(n, at, depth-1); i < 0 {
			return sum, -1
		}
		sum = add(sum, element)
	}
}

func add(a, b xxh3.Uint128) (sum xxh3.Uint128) {
	var carry uint64
	sum.Lo, carry = bits.Add64(a.Lo, b.Lo, 0)
	sum.Hi, _ = bits.Add64(a.Hi, b.Hi, carry)
	return sum
}

func subtract(a, b xxh3.Uint128) (rest xxh3.Uint128) {
	var borrow uint64
	rest.Lo, borrow = bits.Sub64(a.Lo, b.Lo, 0)
	rest.Hi, _ = bits.Sub64(a.Hi, b.Hi, borrow)
	return rest
}

// content is what a field adds to its object. Arrays and objects were hashed while read;
// a text with a symbol is hashed once per dictionary value.
func (c *Columns) content(f field, v value, symbol *LowCardinality) xxh3.Uint128 {
	r := &c.reader
	switch {
	case f == fieldValue && v.kind == kindObject:
		return xxh3.Uint128{} // identity adds it
	case v.kind >= kindObject && f != fieldCustomHeaders:
		return xxh3.Uint128{}
	case v.kind == kindInt:
		return multiply(small(r.raw(v)), fieldFactors[f])
	case symbol == nil || v.kind <= kindNull || v.kind == kindString && v.end-v.start == uint32(len(`""`)):
		return r.hashScalar(fieldHashes[f], v)
	}
	known := symbol.hash()
	if *known == (xxh3.Uint128{}) {
		*known, _, _ = r.hashMember(fieldHashes[f], int(v.start), deepest)
	}
	return *known
}

// content returns the content hash of the current record, whose fields add outer and
// inner. It reads the record again if the first pass expected a position and did not
// hash.
func (r *reader) content(outer, inner xxh3.Uint128) xxh3.Uint128 {
	if !r.hashing || r.twice != 0 {
		sum, _ := r.hashObject(r.start, deepest)
		return sum
	}
	outer = add(outer, r.outerSum)
	if v := r.get(fieldValue); v.kind == kindObject {
		outer = add(outer, hashNested(add(inner, r.valueSum), fieldHashes[fieldValue]+typeObject))
	}
	return outer
}

// expect prepares for a record of the kind of the last one.
func (w *walker) expect(kind uint8) {
	w.late = kind == flow.ByPosition && (w.late || w.hashed)
}
