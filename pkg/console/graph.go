package console

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"
)

// followRow says how often one element follows another.
type followRow struct {
	From, To string
	Times    uint64
	P50      *int64 // ms between the end of the one and the beginning of the other
}

// An element follows the last one of its scope that ended before it began, as
// the question directly_follows of docs/analytics.md has it; what waits at a join
// is left out.
const followsSQL = `
SELECT edge.1 AS from_id, edge.2 AS to_id, count() AS times, toInt64(quantileExact(0.5)(edge.3)) AS p50
FROM
(
    SELECT instance, arrayJoin(arrayFilter((edge, m, e) -> e.3 AND NOT m.3, arrayMap((m, e) -> (e.4, m.4, m.1 - e.1), within, ends), within, ends)) AS edge,
        arraySort(arrayMap(m -> m.2, arrayFilter(m -> m.1 = one, moments))) AS within, arrayFill(m -> m.3, within) AS ends
    FROM
    (
        WITH ifNull(toUnixTimestamp64Milli(entered), 0) AS begun, ifNull(toUnixTimestamp64Milli(coalesce(completed, terminated)), 0) AS ended
        SELECT instance, groupArrayIf(element, type = 'MULTI_INSTANCE_BODY') AS bodies,
            groupArrayArray(arrayFilter(m -> m.1 > 0 AND m.2.1 > 0, [
                (ifNull(scope, 0), (begun, element, false, toString(id))), (ifNull(scope, 0), (ended, element, true, toString(id)))])) AS moments
        FROM
        (
            $elements
        )
        GROUP BY instance
    )
    ARRAY JOIN arrayFilter(s -> NOT has(bodies, s), arrayDistinct(moments.1)) AS one
)
GROUP BY from_id, to_id
ORDER BY times DESC, from_id, to_id
LIMIT 200`

// follows is the directly-follows graph of the instances that began last.
func (s *Server) follows(ctx context.Context, who *session, c chosen) (p section[[]followRow]) {
	last := fmt.Sprintf("SELECT source, instance FROM (%s) ORDER BY started DESC LIMIT %d", c.instances(who), lately)
	p.SQL = fill(followsSQL, "elements", fill(elementsOf, "elements", "source = "+quote(c.Source)+" AND (source, process_instance_key) GLOBAL IN ("+last+")"))
	p.Rows, p.Err = each(ctx, s.db, func(f *followRow) []any { return []any{&f.From, &f.To, &f.Times, &f.P50} }, p.SQL)
	return p
}

// drawing is a picture as SVG, made here: no text in it that is not escaped, and
// no style that the policy of the pages would refuse.
type drawing = template.HTML

// pen writes SVG.
type pen struct{ strings.Builder }

func (p *pen) f(format string, args ...any) {
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = template.HTMLEscapeString(text)
		}
	}
	fmt.Fprintf(p, format, args...)
}

func (p *pen) begin(class, title string, width, height int) {
	p.open("img", class, title, width, height)
}

// open begins a picture: of the role group when there are links in it.
func (p *pen) open(role, class, title string, width, height int) {
	p.f(`<svg class="%s" role="%s" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d" xmlns="http://www.w3.org/2000/svg">`, class, role, title, width, height, width, height)
}

func (p *pen) end() drawing {
	p.WriteString("</svg>")
	return drawing(p.String())
}

// drawSpark is a line of bars without numbers.
func drawSpark(counts []uint64) drawing {
	var p pen
	most, sum := uint64(1), uint64(0)
	for _, n := range counts {
		most, sum = max(most, n), sum+n
	}
	p.begin("spark", fmt.Sprintf("%d instances began in the time, at most %d in a step of it", sum, most), 5*len(counts), 24)
	for i, n := range counts {
		height := math.Ceil(22 * float64(n) / float64(most))
		p.f(`<rect x="%d" y="%.0f" width="4" height="%.0f"/>`, 5*i, 23-height, height+1)
	}
	return p.end()
}

// drawBars draws durations, each bar the square root of two longer than the one before.
func drawBars(f frame, version int64, bars []bar) drawing {
	if len(bars) == 0 {
		return ""
	}
	const width, height, room = 34, 160, 20
	first, last, most, sum := bars[0].Step, bars[len(bars)-1].Step, uint64(1), uint64(0)
	for _, b := range bars {
		most, sum = max(most, b.Instances), sum+b.Instances
	}
	var p pen
	p.open("group", "bars", fmt.Sprintf("How long %d completed instances took: from %s to %s", sum, stepSpan(first), stepSpan(last+1)), int(last-first+1)*width+40, height+2*room)
	for _, b := range bars {
		x, tall := int(b.Step-first)*width, int(math.Ceil(height*float64(b.Instances)/float64(most)))
		p.f(`<g><title>%s to %s: %d instances</title><rect x="%d" y="%d" width="%d" height="%d"/>`, stepSpan(b.Step), stepSpan(b.Step+1), b.Instances, x+2, room+height-tall, width-4, tall)
		row := []any{"step", b.Step}
		if version != 0 {
			row = append(row, "process_version", version)
		}
		p.f(`<a class="fig" tabindex="-1" href="%s"><text x="%d" y="%d" text-anchor="middle">%d</text></a></g>`,
			f.href("bars.instances", row...), x+width/2, room+height-tall-4, b.Instances)
	}
	for step := first; step <= last+1; step += 2 {
		p.f(`<text class="axis" x="%d" y="%d">%s</text>`, int(step-first)*width, height+2*room-5, stepSpan(step))
	}
	return p.end()
}

// stepSpan is how long a step of the histogram is, in words.
func stepSpan(step int8) string {
	return span(time.Duration(math.Exp2(float64(step)/2) * float64(time.Millisecond)))
}

// drawGraph draws which element follows which, from left to right: an element
// stands right of the one that leads to it most often.
func drawGraph(at frame, follows []followRow) drawing {
	if len(follows) == 0 {
		return ""
	}
	const width, height, across, down = 150, 40, 230, 70
	column, row := arrange(follows)
	ids := make([]string, 0, len(column))
	columns, rows := 0, 0
	for id := range column {
		ids = append(ids, id)
		columns, rows = max(columns, column[id]+1), max(rows, row[id]+1)
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(column[a], column[b]), cmp.Compare(row[a], row[b]))
	})
	most := uint64(1)
	for _, f := range follows {
		most = max(most, f.Times)
	}
	var p pen
	p.open("group", "graph", "Which element follows which, and how often", columns*across+20, rows*down+40)
	p.WriteString(`<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="12" markerHeight="12" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>`)
	for _, f := range follows {
		x1, y1 := column[f.From]*across+10+width, row[f.From]*down+30+height/2
		x2, y2 := column[f.To]*across+10, row[f.To]*down+30+height/2
		bend := across / 3
		if column[f.To] <= column[f.From] { // back: below what lies between
			bend = across
		}
		gap := ""
		if f.P50 != nil {
			gap = ", half of them within " + span(time.Duration(*f.P50)*time.Millisecond)
		}
		p.f(`<g><title>%s → %s: %d times%s</title><path marker-end="url(#arrow)" stroke-width="%.1f" d="M%d %d C%d %d %d %d %d %d"/>`,
			f.From, f.To, f.Times, gap, 1+4*float64(f.Times)/float64(most), x1, y1, x1+bend, y1, x2-bend, y2, x2, y2)
		p.f(`<a class="fig" tabindex="-1" href="%s"><text x="%d" y="%d" text-anchor="middle">%d</text></a></g>`,
			at.href("follows.times", "from_id", f.From, "to_id", f.To), (x1+x2)/2-4, (y1+y2)/2-7, f.Times)
	}
	for _, id := range ids {
		x, y := column[id]*across+10, row[id]*down+30
		p.f(`<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="6"/><text class="name" x="%d" y="%d" text-anchor="middle">%s</text></g>`,
			id, x, y, width, height, x+width/2, y+height/2+5, short(id, 20))
	}
	return p.end()
}

// arrange gives each element a column and a row. Flows that would lead back, seen
// from those that are taken most, do not count.
func arrange(follows []followRow) (column, row map[string]int) {
	next := map[string][]string{}
	column, row = map[string]int{}, map[string]int{}
	reaches := func(from, to string) bool {
		seen := map[string]bool{from: true}
		for todo := []string{from}; len(todo) > 0; {
			id := todo[0]
			todo = todo[1:]
			if id == to {
				return true
			}
			for _, other := range next[id] {
				if !seen[other] {
					seen[other] = true
					todo = append(todo, other)
				}
			}
		}
		return false
	}
	for _, f := range follows {
		column[f.From], column[f.To] = 0, 0
		if !reaches(f.To, f.From) {
			next[f.From] = append(next[f.From], f.To)
		}
	}
	for range column { // the longest way to each, of a graph without circles
		for from, all := range next {
			for _, to := range all {
				column[to] = max(column[to], column[from]+1)
			}
		}
	}
	ids := make([]string, 0, len(column))
	for id := range column {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	used := map[int]int{}
	for _, id := range ids {
		row[id] = used[column[id]]
		used[column[id]]++
	}
	return column, row
}

// short cuts a text that is too long to be drawn.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
