package record

import "slices"

// Text is a column of strings: each row begins in Buf where the one before it
// ends. It holds less than 4 GiB.
type Text struct {
	Buf  []byte
	Ends []uint32
}

// Rows returns the number of rows.
func (t *Text) Rows() int { return len(t.Ends) }

// Value returns row i; it shares the memory of the column.
func (t *Text) Value(i int) []byte { return t.Buf[t.start(i):t.Ends[i]] }

func (t *Text) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return t.Ends[i-1]
}

// append adds one row, copying v.
func (t *Text) append(v []byte) {
	t.Buf = append(t.Buf, v...)
	t.Ends = append(t.Ends, uint32(len(t.Buf)))
}

// set gives a row its value, copying it. Rows before it that were not set are
// empty.
func (t *Text) set(row int, v []byte) {
	if len(v) > 0 {
		t.fill(row)
		t.append(v)
	}
}

// close ends the row whose bytes were appended to Buf since start. Rows before
// it that were not set are empty.
func (t *Text) close(row, start int) {
	t.Ends = append(fill(t.Ends, row, uint32(start)), uint32(len(t.Buf)))
}

// fill leaves rows up to n empty that were not set.
func (t *Text) fill(n int) { t.Ends = fill(t.Ends, n, uint32(len(t.Buf))) }

// fill makes rows n long with the same value.
func fill[T any](rows []T, n int, value T) []T {
	for len(rows) < n {
		rows = append(rows, value)
	}
	return rows
}

// truncate leaves the first n rows.
func (t *Text) truncate(n int) {
	t.Ends = t.Ends[:n]
	t.Buf = t.Buf[:t.start(n)]
}

// drop removes runs of rows.
func (t *Text) drop(runs []Run) {
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

// arrange puts the rows into another order: row i is then what row order[i] was.
func (t *Text) arrange(order []int) {
	before := *t
	*t = Text{Buf: make([]byte, 0, len(before.Buf)), Ends: make([]uint32, 0, len(before.Ends))}
	for _, from := range order {
		t.append(before.Value(from))
	}
}

func (t *Text) bytes() int { return len(t.Buf) + 4*len(t.Ends) }

func (t *Text) held() int { return cap(t.Buf) + 4*cap(t.Ends) }

// NullInt64 is a column of integers that may be missing. A missing value is 0
// in Values and 1 in Nulls, as ClickHouse wants it.
type NullInt64 struct {
	Values []int64
	Nulls  []uint8
}

// set gives a row its value. There is room for it.
func (n *NullInt64) set(row int, v int64) {
	n.Values[row] = v
	n.Nulls[row] = 0
}

// extend makes the rows from from to to-1, all without a value.
func (n *NullInt64) extend(from, to int) {
	n.Values = extend(n.Values, from, to)
	n.Nulls = extend(n.Nulls, from, to)
	missing := n.Nulls[from:to]
	for i := range missing {
		missing[i] = 1
	}
}

// extend makes the rows from from to to-1, all zero.
func extend[T any](rows []T, from, to int) []T {
	rows = slices.Grow(rows[:from], to-from)[:to]
	clear(rows[from:])
	return rows
}

func (n *NullInt64) truncate(rows int) {
	n.Values = n.Values[:rows]
	n.Nulls = n.Nulls[:rows]
}
