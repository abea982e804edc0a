package console

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// drawing is an SVG made in this package. Its text is escaped, and it has no inline
// styles, which the Content-Security-Policy would block.
type drawing = template.HTML

// pen writes SVG and escapes the strings in it.
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

// open begins an SVG. Its role is group when it contains links.
func (p *pen) open(role, class, title string, width, height int) {
	p.f(`<svg class="%s" role="%s" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d" xmlns="http://www.w3.org/2000/svg">`, class, role, title, width, height, width, height)
}

func (p *pen) end() drawing {
	p.WriteString("</svg>")
	return drawing(p.String())
}

// drawSpark draws a sparkline of bars.
func drawSpark(counts []uint64) drawing {
	var p pen
	highest, sum := uint64(1), uint64(0)
	for _, n := range counts {
		highest, sum = max(highest, n), sum+n
	}
	p.begin("spark", fmt.Sprintf("%d instances started in the period, at most %d per step", sum, highest), 5*len(counts), 24)
	for i, n := range counts {
		height := math.Ceil(22 * float64(n) / float64(highest))
		p.f(`<rect x="%d" y="%.0f" width="4" height="%.0f"/>`, 5*i, 23-height, height+1)
	}
	return p.end()
}

// drawBars draws the histogram of durations. The bounds of its bars grow by a factor of √2.
func drawBars(c chosen, bars []bar) drawing {
	if len(bars) == 0 {
		return ""
	}
	const width, height, room = 34, 160, 20
	first, last, highest, sum := bars[0].Step, bars[len(bars)-1].Step, uint64(1), uint64(0)
	for _, b := range bars {
		highest, sum = max(highest, b.Instances), sum+b.Instances
	}
	var p pen
	p.open("group", "bars", fmt.Sprintf("Durations of %d completed instances, from %s to %s", sum, stepSpan(first), stepSpan(last+1)), int(last-first+1)*width+60, height+2*room)
	for _, b := range bars {
		x, tall := int(b.Step-first)*width, int(math.Ceil(height*float64(b.Instances)/float64(highest)))
		p.f(`<g><title>%s to %s: %d instances</title><rect x="%d" y="%d" width="%d" height="%d"/>`, stepSpan(b.Step), stepSpan(b.Step+1), b.Instances, x+2, room+height-tall, width-4, tall)
		p.f(`<a class="fig" data-is="count" data-value="%d" href="%s"><text x="%d" y="%d" text-anchor="middle">%[1]d</text></a></g>`,
			b.Instances, c.To("/instances", "state", "COMPLETED", "bar", itoa(int64(b.Step))), x+width/2, room+height-tall-4)
	}
	for step := first; step <= last+1; step += 2 {
		p.f(`<text class="axis" x="%d" y="%d">%s</text>`, int(step-first)*width, height+2*room-5, stepSpan(step))
	}
	return p.end()
}

// stepSpan is the lower bound of a histogram step.
func stepSpan(step int8) string {
	return span(time.Duration(math.Exp2(float64(step)/2) * float64(time.Millisecond)))
}

// short truncates a text to a maximum number of characters.
func short(text string, highest int) string {
	if runes := []rune(text); len(runes) > highest {
		return string(runes[:highest-1]) + "…"
	}
	return text
}

// maxGantt is the maximum number of elements drawn.
const maxGantt = 300

// drawGantt draws a bar from entry to end of each element, with its jobs below and its
// incidents above.
func drawGantt(steps []stepRow, now time.Time) drawing {
	steps = steps[:min(len(steps), maxGantt)]
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
	p.begin("gantt", fmt.Sprintf("Timeline of %d elements, %s", len(steps), span(whole)), labels+width+20, top+row*len(steps)+8)
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
		p.f(`<g><text class="name" x="%d" y="%d" data-element="%s">%s<title>%s</title></text>`, 4+10*min(s.Depth, 6), y+16, s.ID, short(s.ID, 28-min(s.Depth, 6)), s.ID+" "+s.Type)
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
