package record

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"

	"github.com/zeebo/xxh3"
)

// Hash returns the hex of the 128-bit hash of a body.
func Hash(body []byte) string {
	sum := xxh3.Hash128(body).Bytes()
	return hex.EncodeToString(sum[:])
}

// contentID appends the id that people see of the record at i, which was sent
// without one and tells no position: a hash of what it says. It does not make
// two records one. The record was read before.
func (w *walker) contentID(dst []byte, i int) []byte {
	sum, _ := w.digestObject(i, "id")
	b := sum.Bytes()
	return hex.AppendEncode(append(dst, "h-"...), b[:])
}

// Seeds keep apart what has the same bytes but another type.
const (
	seedText uint64 = iota + 1
	seedOther
	seedArray
	seedMember
	seedObject
)

// digest hashes the value at i. Numbers count as they are written.
func (w *walker) digest(i int) (xxh3.Uint128, int) {
	switch w.b[i] {
	case '{':
		return w.digestObject(i, "")
	case '[':
		return w.digestArray(i)
	}
	end, k := w.skip(i, 0)
	if k == kindString || k == kindEscaped {
		return xxh3.Hash128Seed(w.text(value{uint32(i), uint32(end), k}), seedText), end
	}
	return xxh3.Hash128Seed(w.b[i:end], seedOther), end
}

// digestObject adds up the hashes of its members: their order does not matter.
// Members called without are left out.
func (w *walker) digestObject(i int, without string) (sum xxh3.Uint128, end int) {
	i++
	for first := true; ; first = false {
		start, more := w.next(i, first, '}')
		if !more {
			return pair(sum, xxh3.Uint128{}, seedObject), start
		}
		name, at := w.key(start)
		plain := w.plainName(name)
		left := without != "" && string(plain) == without
		of := xxh3.Hash128Seed(plain, seedText)
		var content xxh3.Uint128
		content, i = w.digest(at)
		if !left {
			sum = add(sum, pair(of, content, seedMember))
		}
	}
}

func (w *walker) digestArray(i int) (sum xxh3.Uint128, end int) {
	i++
	for first := true; ; first = false {
		at, more := w.next(i, first, ']')
		if !more {
			return pair(sum, xxh3.Uint128{}, seedArray), at
		}
		var content xxh3.Uint128
		content, i = w.digest(at)
		sum = pair(sum, content, seedArray)
	}
}

func pair(a, b xxh3.Uint128, seed uint64) xxh3.Uint128 {
	var both [32]byte
	binary.BigEndian.PutUint64(both[0:], a.Hi)
	binary.BigEndian.PutUint64(both[8:], a.Lo)
	binary.BigEndian.PutUint64(both[16:], b.Hi)
	binary.BigEndian.PutUint64(both[24:], b.Lo)
	return xxh3.Hash128Seed(both[:], seed)
}

func add(a, b xxh3.Uint128) (sum xxh3.Uint128) {
	var carry uint64
	sum.Lo, carry = bits.Add64(a.Lo, b.Lo, 0)
	sum.Hi, _ = bits.Add64(a.Hi, b.Hi, carry)
	return sum
}

// splitID reads an id of the form <partition>-<position>; zeros otherwise.
func splitID(id []byte) (partition, position int64) {
	n := digits(id, 0)
	if n == 0 || n == len(id) || id[n] != '-' || n+1 < len(id) && id[n+1] == '-' {
		return 0, 0
	}
	first, code1 := decimal(id[:n])
	second, code2 := decimal(id[n+1:])
	if code1 != "" || code2 != "" {
		return 0, 0
	}
	return first, second
}
