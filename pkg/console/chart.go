package console

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// chart draws one number column of an answer: over time, in uPlot's format, or as bars by name.
type chart struct {
	Title  string        `json:"title"`
	X      []float64     `json:"x"` // Unix seconds
	Series []chartSeries `json:"series"`
	Bars   []chartBar    `json:"-"`
}

type chartSeries struct {
	Label  string     `json:"label"`
	Values []*float64 `json:"values"`
}

type chartBar struct {
	Label, Text string
	Value       float64
}

// Limits per answer, per line chart and per bar chart.
const (
	maxCharts = 3
	maxLines  = 6
	maxBars   = 30
)

// chartsOf draws one chart for each number column of an answer. With a time column it draws
// a line for each name over the first such column, else bars by name. It draws no list of
// single items, such as instances with their keys.
func chartsOf(a answer) (all []chart) {
	var names, measures []int
	at := -1
	for i, c := range a.Columns {
		switch {
		case c.Moment && at < 0:
			at = i
		case strings.HasSuffix(c.Name, "_key") || c.Name == "key":
			return nil
		case c.Number && !c.Label():
			measures = append(measures, i)
		case !c.Moment && different(a.Rows, i):
			names = append(names, i)
		}
	}
	times := map[float64]bool{}
	for _, row := range a.Rows {
		if at >= 0 {
			times[row[at].Value] = true
		}
	}
	if len(names) > 0 && 2*len(times) > len(a.Rows) { // highest rows have a time of their own
		at = -1
	}
	if len(a.Rows) < 2 || at < 0 && len(names) == 0 {
		return nil
	}
	for _, i := range measures[:min(len(measures), maxCharts)] {
		c := chart{Title: a.Columns[i].Name}
		if at >= 0 {
			c.lines(a, at, i, names)
		} else {
			c.bars(a, i, names)
		}
		if len(c.X) > 1 || len(c.Bars) > 1 {
			all = append(all, c)
		}
	}
	return all
}

func different(rows [][]cell, i int) bool {
	return slices.ContainsFunc(rows, func(row []cell) bool { return row[i].Text != rows[0][i].Text })
}

// nameOf joins the columns that distinguish a row from the others.
func nameOf(row []cell, names []int) string {
	var all []string
	for _, i := range names {
		all = append(all, named(row[i].Text))
	}
	return strings.Join(all, " · ")
}

// lines draws a number over time, for the names with the greatest sums.
func (c *chart) lines(a answer, at, of int, names []int) {
	values, sums := map[string]map[float64]*float64{}, map[string]float64{}
	for _, row := range a.Rows {
		if row[at].Null || row[of].Null {
			continue
		}
		name, x := nameOf(row, names), row[at].Value
		if values[name] == nil {
			values[name] = map[float64]*float64{}
		}
		values[name][x] = &row[of].Value
		sums[name] += math.Abs(row[of].Value)
		c.X = append(c.X, x)
	}
	slices.Sort(c.X)
	c.X = slices.Compact(c.X)
	largest := make([]string, 0, len(sums))
	for name := range sums {
		largest = append(largest, name)
	}
	slices.SortFunc(largest, func(a, b string) int { return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b)) })
	for _, name := range largest[:min(len(largest), maxLines)] {
		one := chartSeries{Label: cmp.Or(name, c.Title)}
		for _, x := range c.X {
			one.Values = append(one.Values, values[name][x])
		}
		c.Series = append(c.Series, one)
	}
}

// bars draws a number by name, for the first rows.
func (c *chart) bars(a answer, of int, names []int) {
	for _, row := range a.Rows[:min(len(a.Rows), maxBars)] {
		if v := row[of]; !v.Null && v.Value >= 0 && !math.IsInf(v.Value, 0) {
			c.Bars = append(c.Bars, chartBar{nameOf(row, names), a.Columns[of].show(v), v.Value})
		}
	}
}

// Drawn is the bar chart as SVG.
func (c chart) Drawn() drawing {
	const names, width, row = 200, 270, 22
	highest := 0.0
	for _, b := range c.Bars {
		highest = max(highest, b.Value)
	}
	var p pen
	p.begin("bars", fmt.Sprintf("%s as %d bars: the table has the numbers", c.Title, len(c.Bars)), names+width+90, row*len(c.Bars)+4)
	for i, b := range c.Bars {
		long := width * b.Value / max(highest, math.SmallestNonzeroFloat64)
		p.f(`<g><title>%s: %s</title><text class="axis" x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" rx="2"/><text class="axis" x="%.1f" y="%d">%[2]s</text></g>`,
			b.Label, b.Text, names-8, row*i+16, short(b.Label, 28), names, row*i+4, max(long, 1), row-7, names+long+6, row*i+16)
	}
	return p.end()
}

// Label reports whether a number column holds identifiers, which are neither drawn nor
// written with digit groups.
func (c answerColumn) Label() bool {
	for _, end := range []string{"key", "keys", "id", "version", "position", "lane", "incarnation", "seq", "idx"} {
		if c.Name == end || strings.HasSuffix(c.Name, "_"+end) {
			return true
		}
	}
	return false
}

// show formats a value: digits in groups, four significant digits of a small fraction,
// milliseconds as a duration.
func (c answerColumn) show(v cell) string {
	switch {
	case !c.Number || c.Label() || v.Null || math.IsNaN(v.Value) || math.IsInf(v.Value, 0):
		return v.Text
	case strings.HasSuffix(c.Name, "_ms") && math.Abs(v.Value) < 1e15:
		return span(time.Duration(v.Value * float64(time.Millisecond)))
	case !strings.ContainsAny(v.Text, ".eE"):
		return number(v.Text)
	case math.Abs(v.Value) >= 1000:
		return number(fmt.Sprintf("%.0f", v.Value))
	}
	return strings.TrimSuffix(fmt.Sprintf("%.4g", v.Value), ".")
}
