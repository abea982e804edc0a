package record

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// walker reads records and notes the spans of their members, without building a tree. The
// last of repeated members counts.
type walker struct {
	scanner
	seen     uint64           // the fields present in values
	mistyped uint64           // those of them that need conversion
	odd      uint64           // those of them of another kind than their column has
	uneven   bool             // a number is not written as its column would be: -0
	values   [maxFields]value // valid for fields in seen
	twice    uint64           // not 0 if a field is repeated
	outer    []span           // members of the record that are not fields, with their names
	inner    []span           // members of its value that are not fields

	names, valueNames names // of the members of a record, and of its value

	variableNames, variableValues []uint32 // starts of value.name and value.value, for the mask

	// Hashes of members that are not fields, and of arrays and objects, computed while
	// they are read, since a second reading costs more. Records with a position do not
	// need them, so hashing stops after a partition was seen.
	hashes             bool // enabled
	late               bool // records have the position at their end, judged by the last one
	hashing            bool // nothing was left out so far
	hashed             bool // something was left out
	outerSum, valueSum xxh3.Uint128
	nameHash           uint64 // of the name read last

	name    []byte // a name without its escapes
	scratch []byte // a text without its escapes
}

// get returns the value of f; kindNone when it is missing.
func (w *walker) get(f field) value {
	if w.seen&(1<<f) == 0 {
		return value{}
	}
	return w.values[f]
}

func (w *walker) raw(v value) []byte { return w.b[v.start:v.end] }

// set sets the value of f.
func (w *walker) set(f field, v value) {
	bit := uint64(1) << f
	w.values[f] = v
	w.twice |= w.seen & bit
	w.seen |= bit
	w.mistyped &^= bit
	w.odd &^= bit
	if class := specs[f].class; exact[class]>>v.kind&1 == 0 {
		w.odd |= bit
		if plain[class]>>v.kind&1 == 0 {
			w.mistyped |= bit
		}
	}
}

// record reads the record at i, an object of at most this depth.
func (w *walker) record(i, depth int) int {
	w.variableNames, w.variableValues = w.variableNames[:0], w.variableValues[:0]
	end := w.members(i, depth)
	if len(w.variableValues) > 0 {
		w.noteVariable()
	}
	return end
}

func (w *walker) members(i, depth int) int {
	if depth <= 0 {
		return w.fail(CodeTooDeep, i)
	}
	w.outer = w.outer[:0]
	w.seen, w.mistyped, w.odd, w.twice, w.uneven = 0, 0, 0, 0, false
	w.outerSum = xxh3.Uint128{}
	w.hashing, w.hashed = w.hashes && !w.late, false
	w.forgetValue()
	w.names.begin()
	i++
	for first := true; ; first = false {
		start := i + 1
		if first || !w.follows(i) {
			var more bool
			if start, more = w.next(i, first, '}'); !more {
				return start
			}
		}
		f, at := w.member(&w.names, start, outerNames)
		if at < 0 {
			return -1
		}
		var k kind
		switch {
		case f == fieldValue:
			w.forgetValue()
			i, k = w.value(at, depth-1)
		case w.hashing && w.onlyNow(f, at):
			i, k = w.hash(&w.outerSum, f, at, depth-1)
		default:
			i, k = w.skip(at, depth-1)
		}
		if i < 0 {
			return -1
		}
		if k == kindEscaped && w.mask != nil && verbatim>>f&1 == 0 {
			w.lookInto(at, i)
		}
		if f == fieldUnknown {
			w.outer = append(w.outer, span{uint32(start), uint32(i)})
		} else {
			w.set(f, value{uint32(at), uint32(i), k})
			w.hashing = w.hashing && f != fieldPartitionID
		}
	}
}

// value reads the value of a record.
func (w *walker) value(i, depth int) (int, kind) {
	if i >= len(w.b) || w.b[i] != '{' {
		return w.skip(i, depth)
	}
	if depth <= 0 {
		return w.fail(CodeTooDeep, i), kindObject
	}
	w.valueNames.begin()
	i++
	for first := true; ; first = false {
		start := i + 1
		if first || !w.follows(i) {
			var more bool
			if start, more = w.next(i, first, '}'); !more {
				return start, kindObject
			}
		}
		f, at := w.member(&w.valueNames, start, valueNames)
		if at < 0 {
			return -1, kindObject
		}
		if f > fieldUnknown {
			f = w.ofVariable(f, at)
		}
		var k kind
		if w.hashing && w.onlyNow(f, at) {
			i, k = w.hash(&w.valueSum, f, at, depth-1)
		} else {
			i, k = w.skip(at, depth-1)
		}
		if i < 0 {
			return -1, kindObject
		}
		if k == kindEscaped && w.mask != nil && verbatim>>f&1 == 0 {
			w.lookInto(at, i)
		}
		if f == fieldUnknown {
			w.inner = append(w.inner, span{uint32(start), uint32(i)})
		} else {
			w.set(f, value{uint32(at), uint32(i), k})
		}
	}
}

// member reads the name of the member at i and returns its field and the start of its
// value.
func (w *walker) member(names *names, i int, fields map[string]field) (f field, at int) {
	if i < len(w.b) {
		if n, ok := names.predict(w.b[i:]); ok {
			w.nameHash = n.hash
			return n.field, w.space(i + int(n.size))
		}
	}
	name, at := w.key(i)
	if at < 0 {
		return fieldUnknown, -1
	}
	plain := w.plainName(name)
	f, is := fields[string(plain)]
	if !is {
		f = fieldUnknown
	}
	if w.named { // masked names are not cached
		names.last = 0
	} else {
		names.learn(w.b[i:], int(name.end)-i+1, f, plain)
	}
	if w.hashes {
		w.nameHash = xxh3.Hash(plain)
	}
	return f, at
}

// onlyNow reports whether the member's content must be hashed while it is read. content
// hashes the others later, and custom headers, which rarely change.
func (w *walker) onlyNow(f field, at int) bool {
	return f == fieldUnknown || at < len(w.b) && (w.b[at] == '{' || w.b[at] == '[') && f != fieldCustomHeaders
}

// hash is skip that adds the current member to a sum.
func (w *walker) hash(sum *xxh3.Uint128, f field, i, depth int) (int, kind) {
	name := w.nameHash
	if f != fieldUnknown {
		name = fieldHashes[f]
	}
	w.hashed = true
	member, end, k := w.hashMember(name, i, depth)
	*sum = add(*sum, member)
	return end, k
}

// forgetValue clears the fields of value for a repeated one.
func (w *walker) forgetValue() {
	w.seen &= outerFields
	w.mistyped &= outerFields
	w.odd &= outerFields
	w.inner = w.inner[:0]
	w.valueSum = xxh3.Uint128{}
}

// plainName returns the name of a member unquoted and unescaped, valid
// until the next call.
func (w *walker) plainName(name value) []byte {
	inside := w.b[name.start+1 : name.end-1]
	if name.kind == kindEscaped {
		w.name = unquote(w.name[:0], inside)
		return w.name
	}
	return inside
}

// text returns the unescaped text of a string or number, valid until the next call; nil
// for other kinds.
func (w *walker) text(v value) []byte {
	switch v.kind {
	case kindString:
		return w.b[v.start+1 : v.end-1]
	case kindEscaped:
		w.scratch = unquote(w.scratch[:0], w.b[v.start+1:v.end-1])
		return w.scratch
	case kindInt, kindNumber:
		return w.raw(v)
	}
	return nil
}

// integer returns v as an integer, or a code why it is none.
func (w *walker) integer(v value) (int64, string) {
	switch v.kind {
	case kindInt:
		n := small(w.raw(v))
		w.uneven = w.uneven || n == 0 && v.end-v.start > 1
		return n, ""
	case kindNumber:
		return integer(w.raw(v))
	case kindString, kindEscaped:
		return decimal(w.text(v))
	}
	return 0, CodeNotAnInteger
}

// time returns v as a time in ms since 1970.
func (w *walker) time(v value) (int64, string) {
	n, code := w.integer(v)
	if code == CodeNotAnInteger {
		if v.kind == kindString || v.kind == kindEscaped {
			if ms, ok := isoTime(w.text(v)); ok {
				return ms, ""
			}
		}
		return 0, CodeNotATime
	}
	return n, code
}

// wrong returns the next field from f on whose type violates the specification; an empty
// code means none.
func (w *walker) wrong(from field) (f field, code string) {
	for odd := w.mistyped >> from << from; odd != 0; odd &= odd - 1 {
		f = field(bits.TrailingZeros64(odd))
		switch specs[f].class {
		case classText:
			code = CodeNotAString
		case classInteger:
			_, code = w.integer(w.values[f])
		case classTime:
			_, code = w.time(w.values[f])
		case classObject:
			code = CodeNotAnObject
		}
		if code != "" {
			return f, code
		}
	}
	return 0, ""
}

// names predicts member names of one kind of object. An engine repeats the same members
// in the same order, so the cached successor of a name is tried first: one comparison
// instead of finding the end of the name and its field. A wrong prediction costs only
// time.
type names struct {
	known [256]name // by the hash of the name; 0: the beginning of an object
	last  uint8     // the name read last
}

// name is a cached name.
type name struct {
	text  [longest / 8]uint64 // with its quotes and colon, filled up with zeros
	hash  uint64              // XXH3-64 of the unescaped name
	size  uint8               // of text; 0: free
	field field
	after [2]uint8 // its last two successors: two kinds of records alternate
}

const longest = 32 // bytes of a cached name, with quotes and colon

// begin starts an object.
func (n *names) begin() { n.last = 0 }

// predict returns the successor of the name read last, if b begins with it.
func (n *names) predict(b []byte) (next *name, ok bool) {
	if len(b) < longest {
		return nil, false
	}
	for _, i := range n.known[n.last].after {
		if next = &n.known[i]; next.matches((*[longest]byte)(b)) {
			n.last = i
			return next, true
		}
	}
	return nil, false
}

// matches reports whether b begins with the name.
func (n *name) matches(b *[longest]byte) bool {
	mask := &masks[n.size]
	return (binary.LittleEndian.Uint64(b[:])^n.text[0])&mask[0]|
		(binary.LittleEndian.Uint64(b[8:])^n.text[1])&mask[1]|
		(binary.LittleEndian.Uint64(b[16:])^n.text[2])&mask[2]|
		(binary.LittleEndian.Uint64(b[24:])^n.text[3])&mask[3] == 0 && n.size != 0
}

// learn caches the name at the start of b, of this size with colon, with its field and
// its unescaped form.
func (n *names) learn(b []byte, size int, f field, plain []byte) {
	if size > longest || len(b) < longest || b[size-1] != ':' {
		n.last = 0
		return
	}
	next, hash := name{size: uint8(size), field: f}, uint64(size)
	for i := range next.text {
		next.text[i] = binary.LittleEndian.Uint64(b[8*i:]) & masks[size][i]
		hash = bits.RotateLeft64(hash^next.text[i], 23) * 0x9e3779b97f4a7c15
	}
	i := n.place(&next, uint8(hash>>56))
	if n.known[i].size == 0 {
		next.hash = xxh3.Hash(plain)
		n.known[i] = next
	}
	if after := &n.known[n.last].after; after[0] != i {
		after[0], after[1] = i, after[0]
	}
	n.last = i
}

// place returns the slot of a name with this hash.
func (n *names) place(next *name, hash uint8) uint8 {
	const tries = 8
	for i := range uint8(tries) {
		at := max(hash+i, 1)
		if known := &n.known[at]; known.size == 0 || known.size == next.size && known.text == next.text {
			return at
		}
	}
	hash = max(hash, 1)
	n.known[hash] = name{} // evict; predict compares the text of every hit
	return hash
}

// masks select the first n bytes of a text.
var masks = func() (masks [256][longest / 8]uint64) {
	for n := range longest + 1 {
		for i := range n {
			masks[n][i/8] |= 0xff << (i % 8 * 8)
		}
	}
	return masks
}()
