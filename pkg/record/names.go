package record

import (
	"encoding/binary"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// names remembers the names of the members of one kind of object. Whoever sends
// records sends the same members in the same order again and again, so it keeps
// which name followed which, to look first whether it does again: one comparison
// instead of looking for the end of the name and then for the field. A wrong
// memory costs time and changes nothing.
type names struct {
	known [256]name // by the hash of the name; 0 stands for the beginning of an object
	last  uint8     // what was read last
}

// name is a remembered name.
type name struct {
	text  [longest / 8]uint64 // with its quotes and colon, filled up with zeros
	hash  uint64              // XXH3-64 of it without quotes, colon and escapes
	size  uint8               // of text; 0 for none yet
	field field
	after [2]uint8 // what followed it the last times: two kinds of records take turns
}

const longest = 32 // bytes of a name that is remembered, with quotes and colon

// begin stands before the first member of an object.
func (n *names) begin() { n.last = 0 }

// foretold returns what follows the name read last, if b begins with it.
func (n *names) foretold(b []byte) (next *name, ok bool) {
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

// matches says whether b begins with the name.
func (n *name) matches(b *[longest]byte) bool {
	mask := &masks[n.size]
	return (binary.LittleEndian.Uint64(b[:])^n.text[0])&mask[0]|
		(binary.LittleEndian.Uint64(b[8:])^n.text[1])&mask[1]|
		(binary.LittleEndian.Uint64(b[16:])^n.text[2])&mask[2]|
		(binary.LittleEndian.Uint64(b[24:])^n.text[3])&mask[3] == 0 && n.size != 0
}

// learn remembers that b begins with a name of this size, colon included, which
// field it is, and what it is without its escapes.
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

// place returns where a name with this hash is kept, or may be.
func (n *names) place(next *name, hash uint8) uint8 {
	const tries = 8
	for i := range uint8(tries) {
		at := max(hash+i, 1)
		if known := &n.known[at]; known.size == 0 || known.size == next.size && known.text == next.text {
			return at
		}
	}
	hash = max(hash, 1)
	n.known[hash] = name{} // make room; what led here is checked before it is believed
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
