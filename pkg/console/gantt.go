package console

import (
	"fmt"
	"time"
)

// mostGantt is how many elements the picture shows.
const mostGantt = 300

// drawGantt draws when each element was entered and left, with its jobs below and
// its incidents above its bar.
func drawGantt(steps []stepRow, now time.Time) drawing {
	steps = steps[:min(len(steps), mostGantt)]
	var first, last time.Time
	for _, s := range steps {
		if s.Entered == nil {
			continue
		}
		if first.IsZero() || s.Entered.Before(first) {
			first = *s.Entered
		}
		ended := now
		if s.Ended != nil {
			ended = *s.Ended
		}
		if ended.After(last) {
			last = ended
		}
	}
	if first.IsZero() {
		return ""
	}
	const labels, width, row, top = 240, 780, 26, 28
	whole := max(last.Sub(first), time.Millisecond)
	x := func(t time.Time) float64 { return labels + width*float64(t.Sub(first))/float64(whole) }
	until := func(t *time.Time) time.Time {
		if t == nil {
			return last
		}
		return *t
	}
	var p pen
	p.begin("gantt", fmt.Sprintf("When %d elements were entered and left, in %s", len(steps), span(whole)), labels+width+20, top+row*len(steps)+8)
	for i := range 5 {
		at := labels + width*i/4
		p.f(`<line x1="%d" y1="%d" x2="%d" y2="%d"/><text class="axis" x="%d" y="16" text-anchor="%s">%s</text>`,
			at, top-6, at, top+row*len(steps), at, [...]string{"start", "middle", "middle", "middle", "end"}[i], "+"+span(whole*time.Duration(i)/4))
	}
	for i, s := range steps {
		y := top + row*i
		if s.Entered == nil {
			continue
		}
		bar := func(class, title string, from, to time.Time, y, height int) {
			p.f(`<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2"><title>%s</title></rect>`, class, x(from), y, max(2, x(to)-x(from)), height, title)
		}
		p.f(`<g><text class="name" x="%d" y="%d">%s<title>%s</title></text>`, 4+10*min(s.Depth, 6), y+16, short(s.ID, 28-min(s.Depth, 6)), s.ID+" "+s.Type)
		ended := until(s.Ended)
		bar("state-"+s.State(), fmt.Sprintf("%s %s %s: %s", s.ID, s.Type, s.State(), span(ended.Sub(*s.Entered))), *s.Entered, ended, y+6, 10)
		for _, j := range s.Jobs {
			if j.From != nil {
				bar("job", fmt.Sprintf("%s %s %s: %s", j.Kind, j.Name, j.State, span(until(j.To).Sub(*j.From))), *j.From, until(j.To), y+17, 4)
			}
		}
		for _, n := range s.Incidents {
			if n.From != nil {
				bar("incident", fmt.Sprintf("incident %s %s: %s", n.Name, n.State, short(n.Note, 200)), *n.From, until(n.To), y+1, 4)
			}
		}
		p.WriteString("</g>")
	}
	return p.end()
}
