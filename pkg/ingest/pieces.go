package ingest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sluice/pkg/record"
)

// A token names the block, how many pieces of it are inserted at once, and which
// rows it stands for: FLOW_0@1:7-9:hash, FLOW_0@1:7-9:hash*2, and
// FLOW_0@1:7-9:hash*2#0-500. A version that knows nothing of pieces at once halts at
// such a token: it would take the pieces behind the first one for never inserted.

// togetherToken is the token of the block with the token whole, so many pieces of
// which are inserted at once.
func togetherToken(whole string, pieces int) string {
	if pieces == 1 {
		return whole
	}
	return fmt.Sprintf("%s*%d", whole, pieces)
}

// pieceToken is the token of some rows of the block with the token whole.
func pieceToken(whole string, from, to int) string {
	return fmt.Sprintf("%s#%d-%d", whole, from, to)
}

// wholeToken is the token of the block that a claim is, or is a piece of.
func wholeToken(token string) string {
	whole, _, _ := strings.Cut(token, "#")
	return whole
}

// piecesOf is how many pieces of the block of a token are inserted at once. One that
// says nothing that can be understood says 1, and is not the token of any block.
func piecesOf(token string) int {
	_, n, _ := strings.Cut(wholeToken(token), "*")
	pieces, err := strconv.Atoi(n)
	if err != nil {
		return 1
	}
	return max(pieces, 1)
}

// maxMonths bounds how many months an insert may have: each makes a part in
// flow.records, and every table remembers the tokens of so many parts only.
const maxMonths = 12

// cut divides a block into so many pieces of as many rows, which are inserted at
// once, or a block of more than maxMonths months into others, which are not: the
// rows of the first maxMonths months, of the next, and so on. The rows are put in
// that order, each piece in the order of the stream. The same rows are always divided
// the same way, so that a claim can name a piece by the numbers of its rows.
func (b *block) cut(pieces int) {
	rows := b.columns.Rows()
	months := b.columns.Months(0, rows)
	b.together, b.ends = 1, b.ends[:0]
	if len(months) <= maxMonths {
		b.together = max(1, min(pieces, rows))
		for i := range b.together {
			b.ends = append(b.ends, rows*(i+1)/b.together)
		}
		return
	}
	inOrder := slices.Sorted(maps.Keys(months))
	piece := map[int]int{} // of each month
	next := make([]int, (len(inOrder)+maxMonths-1)/maxMonths)
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

// after is where the claim after that of the rows from to to-1 ends, when so many
// rows may be inserted at once, or any number of them when it is 0. One that was
// narrowed may be twice as large again. A piece that may have been inserted is claimed
// as it was: its rows must not come under another token.
func (b *block) after(from, to, bearable int) int {
	end := b.end(to)
	if b.mayBeThere(to, end) {
		return end
	}
	if from > 0 && !slices.Contains(b.ends, from) || !slices.Contains(b.ends, to) {
		end = min(end, to+2*(to-from))
	}
	if bearable > 0 {
		end = min(end, to+bearable)
	}
	return end
}

// mayBeThere says that the rows from to to-1 are a piece that is inserted together
// with others: before a claim names it, and maybe by a process before this one.
func (b *block) mayBeThere(from, to int) bool {
	return b.together > 1 && (from == 0 || slices.Contains(b.ends, from)) && slices.Contains(b.ends, to) && b.end(from) == to
}

// claims are those of the pieces of the block with the claim c.
func (b *block) claims(c record.Claim) []record.Claim {
	all, from := make([]record.Claim, len(b.ends)), 0
	for i, to := range b.ends {
		all[i] = c
		all[i].From, all[i].To, all[i].Token = from, to, pieceToken(wholeToken(c.Token), from, to)
		from = to
	}
	return all
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
