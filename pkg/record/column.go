package record

import (
	"bytes"
	"hash/maphash"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"sluice/pkg/flow"
)

// LowCardinality is a column of strings that repeat: each row is a key into Values, where
// key 0 is the empty string. Only the keys of width Width are filled; they widen when the
// dictionary outgrows them.
type LowCardinality struct {
	Values StringColumn // the dictionary of this block
	Width  int          // bytes per key: 1, 2 or 4
	Keys8  []uint8
	Keys16 []uint16
	Keys32 []uint32

	hashes []xxh3.Uint128 // of values, for content hashes; zero or missing until needed

	seed  maphash.Seed
	slots []uint32 // open addressing, linear probing: key+1, or 0 for a free slot
	last  uint32   // key of the value set last: neighbours are often equal
	text  []byte   // and that value

	recent [recentValues]uint16 // cache of keys, by part of the text; 0: free
}

// recentValues is a power of two.
const recentValues = 64

// slotsAtFirst is the size of a new hash table, a power of two.
const slotsAtFirst = 64

func (s *LowCardinality) Rows() int {
	switch s.Width {
	case 2:
		return len(s.Keys16)
	case 4:
		return len(s.Keys32)
	}
	return len(s.Keys8)
}

func (s *LowCardinality) Key(i int) int {
	switch s.Width {
	case 2:
		return int(s.Keys16[i])
	case 4:
		return int(s.Keys32[i])
	}
	return int(s.Keys8[i])
}

// Value returns row i; it aliases the column.
func (s *LowCardinality) Value(i int) []byte { return s.Values.Value(s.Key(i)) }

// set gives a row its value, which is copied if it is new to the dictionary.
// There is room for the row, and it is empty.
func (s *LowCardinality) set(row int, v []byte) {
	if len(v) == 0 {
		return
	}
	if string(v) != string(s.text) {
		s.last = s.lookup(v)
		s.text = s.Values.Value(int(s.last))
	}
	switch s.Width {
	case 1:
		s.Keys8[row] = uint8(s.last)
	case 2:
		s.Keys16[row] = uint16(s.last)
	default:
		s.Keys32[row] = s.last
	}
}

// extend adds empty rows up to to-1.
func (s *LowCardinality) extend(from, to int) {
	switch s.Width {
	case 1:
		s.Keys8 = extend(s.Keys8, from, to)
	case 2:
		s.Keys16 = extend(s.Keys16, from, to)
	default:
		s.Keys32 = extend(s.Keys32, from, to)
	}
}

// end keeps the first n rows.
func (s *LowCardinality) end(n int) {
	switch s.Width {
	case 1:
		s.Keys8 = s.Keys8[:n]
	case 2:
		s.Keys16 = s.Keys16[:n]
	default:
		s.Keys32 = s.Keys32[:n]
	}
}

// hash is the cached content hash of the value set last.
func (s *LowCardinality) hash() *xxh3.Uint128 {
	if n := s.Values.Rows() - len(s.hashes); n > 0 {
		s.hashes = append(s.hashes, make([]xxh3.Uint128, n)...)
	}
	return &s.hashes[s.last]
}

// lookup returns the key of v, adding it to the dictionary if new.
func (s *LowCardinality) lookup(v []byte) uint32 {
	n := len(v)
	recent := &s.recent[(uint32(v[n-1])+uint32(v[n/2])*5+uint32(v[0])*9+uint32(n)*17)%recentValues]
	if *recent != 0 && string(v) == string(s.Values.Value(int(*recent))) {
		return uint32(*recent)
	}
	key := s.find(v)
	if key <= math.MaxUint16 {
		*recent = uint16(key)
	}
	return key
}

// find is lookup for values outside the cache.
func (s *LowCardinality) find(v []byte) uint32 {
	mask := uint32(len(s.slots) - 1)
	at := uint32(maphash.Bytes(s.seed, v)) & mask
	for ; s.slots[at] != 0; at = (at + 1) & mask {
		if key := s.slots[at] - 1; bytes.Equal(v, s.Values.Value(int(key))) {
			return key
		}
	}
	key := uint32(s.Values.Rows())
	s.Values.append(v)
	s.slots[at] = key + 1
	if 2*s.Values.Rows() > len(s.slots) {
		s.grow()
	}
	s.widen(s.Values.Rows())
	return key
}

// grow doubles the hash table. Entries go in by ascending key, as originally: truncate
// relies on it.
func (s *LowCardinality) grow() {
	s.slots = make([]uint32, 2*len(s.slots))
	mask := uint32(len(s.slots) - 1)
	for key := 1; key < s.Values.Rows(); key++ {
		at := uint32(maphash.Bytes(s.seed, s.Values.Value(key))) & mask
		for s.slots[at] != 0 {
			at = (at + 1) & mask
		}
		s.slots[at] = uint32(key) + 1
	}
}

// widen widens the keys for a dictionary of n values.
func (s *LowCardinality) widen(n int) {
	if s.Width == 1 && n > math.MaxUint8+1 {
		for _, key := range s.Keys8 {
			s.Keys16 = append(s.Keys16, uint16(key))
		}
		s.Keys8, s.Width = s.Keys8[:0], 2
	}
	if s.Width == 2 && n > math.MaxUint16+1 {
		for _, key := range s.Keys16 {
			s.Keys32 = append(s.Keys32, uint32(key))
		}
		s.Keys16, s.Width = s.Keys16[:0], 4
	}
}

// truncate keeps the first rows and the first values of the dictionary. Removed values
// were added last, so freeing their slots in reverse order restores the hash table.
func (s *LowCardinality) truncate(rows, values int) {
	s.end(rows)
	mask := uint32(len(s.slots) - 1)
	for key := s.Values.Rows() - 1; key >= values; key-- {
		at := uint32(maphash.Bytes(s.seed, s.Values.Value(key))) & mask
		for s.slots[at] != uint32(key)+1 {
			at = (at + 1) & mask
		}
		s.slots[at] = 0
	}
	s.Values.truncate(values)
	s.hashes = s.hashes[:min(len(s.hashes), values)]
	s.last, s.text = 0, nil
	clear(s.recent[:])
}

// reset empties the column and its dictionary, keeping their memory.
func (s *LowCardinality) reset() {
	if s.slots == nil {
		s.seed = maphash.MakeSeed()
		s.slots = make([]uint32, slotsAtFirst)
	}
	if s.Values.Rows() > 1 { // else no value was added: most columns of a small request
		clear(s.slots)
		clear(s.recent[:])
	}
	s.Values.truncate(0)
	s.Values.append(nil)
	s.Keys8, s.Keys16, s.Keys32 = s.Keys8[:0], s.Keys16[:0], s.Keys32[:0]
	s.hashes = s.hashes[:0]
	s.Width, s.last, s.text = 1, 0, nil
}

func (s *LowCardinality) bytes() int {
	return s.Values.bytes() + 4*len(s.slots) + s.Width*s.Rows() + 16*len(s.hashes)
}

func (s *LowCardinality) held() int {
	return s.Values.held() + 4*cap(s.slots) + cap(s.Keys8) + 2*cap(s.Keys16) + 4*cap(s.Keys32) + 16*cap(s.hashes)
}

// StringColumn is a column of strings: each row begins in Buf where the one before it
// ends. It holds less than 4 GiB.
type StringColumn struct {
	Buf  []byte
	Ends []uint32
}

func (t *StringColumn) Rows() int { return len(t.Ends) }

// Value returns row i; it aliases the column.
func (t *StringColumn) Value(i int) []byte { return t.Buf[t.start(i):t.Ends[i]] }

func (t *StringColumn) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return t.Ends[i-1]
}

// append adds a row, copying v.
func (t *StringColumn) append(v []byte) {
	t.Buf = append(t.Buf, v...)
	t.Ends = append(t.Ends, uint32(len(t.Buf)))
}

// set gives a row its value, copying it. Unset rows before it become empty.
func (t *StringColumn) set(row int, v []byte) {
	if len(v) > 0 {
		t.fill(row)
		t.append(v)
	}
}

// close ends the row whose bytes were appended to Buf from start. Unset rows before it
// become empty.
func (t *StringColumn) close(row, start int) {
	t.Ends = append(fill(t.Ends, row, uint32(start)), uint32(len(t.Buf)))
}

// fill extends the column to n rows with empty ones.
func (t *StringColumn) fill(n int) { t.Ends = fill(t.Ends, n, uint32(len(t.Buf))) }

// fill extends rows to length n with value.
func fill[T any](rows []T, n int, value T) []T {
	for len(rows) < n {
		rows = append(rows, value)
	}
	return rows
}

// truncate keeps the first n rows.
func (t *StringColumn) truncate(n int) {
	t.Ends = t.Ends[:n]
	t.Buf = t.Buf[:t.start(n)]
}

// drop removes runs of rows.
func (t *StringColumn) drop(runs []flow.Run) {
	row, end := runs[0].From, t.start(runs[0].From)
	for i, r := range runs {
		next := len(t.Ends)
		if i+1 < len(runs) {
			next = runs[i+1].From
		}
		from := t.start(r.To)
		gap := from - end
		end += uint32(copy(t.Buf[end:], t.Buf[from:t.start(next)]))
		for ; r.To < next; r.To++ {
			t.Ends[row] = t.Ends[r.To] - gap
			row++
		}
	}
	t.Ends, t.Buf = t.Ends[:row], t.Buf[:end]
}

// arrange reorders the rows: row i becomes the old row order[i].
func (t *StringColumn) arrange(order []int) {
	before := *t
	*t = StringColumn{Buf: make([]byte, 0, len(before.Buf)), Ends: make([]uint32, 0, len(before.Ends))}
	for _, from := range order {
		t.append(before.Value(from))
	}
}

func (t *StringColumn) bytes() int { return len(t.Buf) + 4*len(t.Ends) }

func (t *StringColumn) held() int { return cap(t.Buf) + 4*cap(t.Ends) }

// NullInt64 is a column of nullable integers. Nulls has a byte for each row, 1 for a missing value, as in
// ClickHouse's format; Values has only the values that exist: half of a block's are missing.
type NullInt64 struct {
	Nulls  []uint8
	Values []int64

	row, at int // the row whose value was read last, and its index in Values
}

// Value returns row i, 0 if missing. It is fast for ascending rows. Not for concurrent use.
func (n *NullInt64) Value(i int) int64 {
	if i < n.row {
		n.row, n.at = 0, 0
	}
	n.at += existing(n.Nulls[n.row:i])
	if n.row = i; n.Nulls[i] != 0 {
		return 0
	}
	return n.Values[n.at]
}

// Between returns the values of the rows from to to-1 that exist.
func (n *NullInt64) Between(from, to int) []int64 {
	first := existing(n.Nulls[:from])
	return n.Values[first : first+existing(n.Nulls[from:to])]
}

// existing counts the values that exist.
func existing(nulls []uint8) int { return bytes.Count(nulls, []byte{0}) }

// set gives a row its value. The row exists, and no later one has a value.
func (n *NullInt64) set(row int, v int64) {
	n.Values = append(n.Values, v)
	n.Nulls[row] = 0
}

// extend adds null rows up to to-1.
func (n *NullInt64) extend(from, to int) {
	n.Nulls = extend(n.Nulls, from, to)
	missing := n.Nulls[from:to]
	for i := range missing {
		missing[i] = 1
	}
}

func (n *NullInt64) truncate(rows int) {
	n.Values = n.Values[:len(n.Values)-existing(n.Nulls[rows:])]
	n.Nulls, n.row, n.at = n.Nulls[:rows], 0, 0
}

// drop removes runs of rows.
func (n *NullInt64) drop(runs []flow.Run) {
	kept, row, at := 0, 0, 0
	for _, r := range runs {
		keep := existing(n.Nulls[row:r.From])
		kept += copy(n.Values[kept:], n.Values[at:at+keep])
		at, row = at+keep+existing(n.Nulls[r.From:r.To]), r.To
	}
	kept += copy(n.Values[kept:], n.Values[at:])
	n.Values, n.Nulls, n.row, n.at = n.Values[:kept], drop(n.Nulls, runs), 0, 0
}

// arrange reorders the rows: row i becomes the old row order[i].
func (n *NullInt64) arrange(order []int) {
	starts, at := make([]uint32, len(order)), uint32(0)
	for row, null := range n.Nulls {
		starts[row] = at
		at += uint32(1 - null)
	}
	arrange(n.Nulls, order)
	values := make([]int64, 0, len(n.Values))
	for row, from := range order {
		if n.Nulls[row] == 0 {
			values = append(values, n.Values[starts[from]])
		}
	}
	n.Values, n.row, n.at = values, 0, 0
}

func (n *NullInt64) bytes() int { return len(n.Nulls) + 8*len(n.Values) }

func (n *NullInt64) held() int { return cap(n.Nulls) + 8*cap(n.Values) }

// extend adds zero rows up to to-1.
func extend[T any](rows []T, from, to int) []T {
	rows = slices.Grow(rows[:from], to-from)[:to]
	clear(rows[from:])
	return rows
}
