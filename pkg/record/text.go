package record

// Span is a range of bytes, End excluded. It has the layout of ch-go's
// proto.Position, so that a Text can be sent without being copied.
type Span struct {
	Start, End int
}

// Text is a column of strings: row i is Buf[Pos[i].Start:Pos[i].End].
type Text struct {
	Buf []byte
	Pos []Span // in order; bytes of rows that were dropped may stand between them
}

// Rows returns the number of rows.
func (t *Text) Rows() int { return len(t.Pos) }

// Value returns row i; it shares the memory of the column.
func (t *Text) Value(i int) []byte { return t.Buf[t.Pos[i].Start:t.Pos[i].End] }

// append adds one row, copying v.
func (t *Text) append(v []byte) {
	start := len(t.Buf)
	t.Buf = append(t.Buf, v...)
	t.Pos = append(t.Pos, Span{start, len(t.Buf)})
}

// close ends the row whose bytes were appended to Buf since start.
func (t *Text) close(start int) {
	t.Pos = append(t.Pos, Span{start, len(t.Buf)})
}

// truncate leaves the first n rows.
func (t *Text) truncate(n int) {
	t.Pos = t.Pos[:n]
	t.Buf = t.Buf[:t.end()]
}

func (t *Text) end() int {
	if len(t.Pos) == 0 {
		return 0
	}
	return t.Pos[len(t.Pos)-1].End
}

func (t *Text) bytes() int { return len(t.Buf) + 16*len(t.Pos) }

func (t *Text) held() int { return cap(t.Buf) + 16*cap(t.Pos) }

// NullInt64 is a column of integers that may be missing. A missing value is 0
// in Values and 1 in Nulls, as ClickHouse wants it.
type NullInt64 struct {
	Values []int64
	Nulls  []uint8
}

// append adds one row.
func (n *NullInt64) append(v int64) {
	n.Values = append(n.Values, v)
	n.Nulls = append(n.Nulls, 0)
}

// appendNull adds one row without a value.
func (n *NullInt64) appendNull() {
	n.Values = append(n.Values, 0)
	n.Nulls = append(n.Nulls, 1)
}

func (n *NullInt64) truncate(rows int) {
	n.Values = n.Values[:rows]
	n.Nulls = n.Nulls[:rows]
}
