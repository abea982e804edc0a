package ingest

import (
	"maps"
	"slices"

	"sluice/pkg/record"
)

// maxMonths bounds how many months an insert may have: each makes a part in
// flow.records, and every table remembers the tokens of so many parts only.
const maxMonths = 12

// cut divides a block of more than maxMonths months into pieces: the rows of
// the first maxMonths months, of the next, and so on. The rows are put in that
// order, each piece in the order of the stream. The same rows are always divided
// the same way, so that a claim can name a piece by the numbers of its rows.
func (b *block) cut() {
	rows := b.columns.Rows()
	months := b.columns.Months(0, rows)
	if len(months) <= maxMonths {
		b.ends = append(b.ends[:0], rows)
		return
	}
	inOrder := slices.Sorted(maps.Keys(months))
	piece := map[int]int{} // of each month
	next := make([]int, (len(inOrder)+maxMonths-1)/maxMonths)
	b.ends = b.ends[:0]
	end := 0
	for i, month := range inOrder {
		piece[month] = i / maxMonths
		if i%maxMonths == 0 {
			next[i/maxMonths] = end
		}
		end += int(months[month])
		if i%maxMonths == maxMonths-1 || i == len(inOrder)-1 {
			b.ends = append(b.ends, end)
		}
	}
	order := make([]int, rows)
	for row, ms := range b.columns.TS {
		p := piece[record.Month(ms)]
		order[next[p]] = row
		next[p]++
	}
	b.columns.Arrange(order)
}

// end is where a claim that begins at row from ends at the latest.
func (b *block) end(from int) int {
	for _, end := range b.ends {
		if end > from {
			return end
		}
	}
	return from
}

// after is where the claim after that of the rows from to to-1 ends. One that
// was narrowed may be twice as large again.
func (b *block) after(from, to int) int {
	if end := b.end(to); from > 0 && !slices.Contains(b.ends, from) || !slices.Contains(b.ends, to) {
		return min(end, to+2*(to-from))
	}
	return b.end(to)
}

// gather puts the rows of these months first among the rows from to to-1, and
// returns how many they are.
func (b *block) gather(from, to int, months []int) int {
	order := make([]int, 0, b.columns.Rows())
	var others []int
	for row := range b.columns.Rows() {
		if row >= from && row < to && !slices.Contains(months, record.Month(b.columns.TS[row])) {
			others = append(others, row)
			continue
		}
		if row == to {
			order = append(order, others...)
		}
		order = append(order, row)
	}
	if len(order) < b.columns.Rows() {
		order = append(order, others...)
	}
	b.columns.Arrange(order)
	return to - from - len(others)
}
