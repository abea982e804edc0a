package main

import (
	"bytes"
	"embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"text/template"
	"time"
)

// Page has all measurements; omitted ones are empty.
type Page struct {
	Command  string
	Short    bool
	Runs     int
	Began    time.Time
	Took     time.Duration
	Machine  Machine
	Versions Versions
	Goals    []Row
	Curves   []Curve
	Asked    *asked   // cost of questions
	Viewed   []viewed // pages of the console
	Budgets  []Row    // of the console
	Rivals   []Rival
}

//go:embed *.md.tmpl
var sources embed.FS

func (p Page) write(name, dir string) error {
	page, err := template.New(name+".tmpl").Funcs(template.FuncMap{
		"number":  number,
		"ms":      ms,
		"minutes": func(d time.Duration) string { return number(d.Minutes()) },
	}).ParseFS(sources, name+".tmpl")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := page.Execute(&text, p); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), text.Bytes(), 0o644)
}

func (p Page) writeRivals(dir string) error {
	return p.write("rivals.md", filepath.Join(dir, "performance"))
}

func (p Page) writeGoals(dir string) error { return p.write("performance.md", dir) }

func ms(d time.Duration) string { return number(float64(d) / float64(time.Millisecond)) }

// Missed returns the rows that miss their goal.
func (p Page) Missed() (missed []Row) {
	for _, r := range p.Goals {
		if r.Verdict() == no {
			missed = append(missed, r)
		}
	}
	return missed
}

type Row struct {
	What string
	Unit string
	Goal *Goal // nil without a goal
	Runs []float64
}

// Goal is the target of a figure.
type Goal struct {
	AtLeast bool // a minimum; otherwise a maximum
	Limit   float64
	Stretch float64 // 0 without one
}

func atMost(limit, stretch float64) *Goal { return &Goal{Limit: limit, Stretch: stretch} }
func atLeast(limit, stretch float64) *Goal {
	return &Goal{AtLeast: true, Limit: limit, Stretch: stretch}
}

func (g *Goal) String() string {
	if g == nil {
		return ""
	}
	sign := "≤"
	if g.AtLeast {
		sign = "≥"
	}
	text := sign + " " + number(g.Limit)
	if g.Stretch != 0 {
		text += fmt.Sprintf(" (stretch %s)", number(g.Stretch))
	}
	return text
}

// no is the verdict on a missed goal.
const no = "**no**"

// Verdict returns whether the median meets the goal, as text.
func (r Row) Verdict() string {
	if r.Goal == nil {
		return ""
	}
	meets := func(limit float64) bool {
		if r.Goal.AtLeast {
			return r.Median() >= limit
		}
		return r.Median() <= limit
	}
	switch {
	case r.Goal.Stretch != 0 && meets(r.Goal.Stretch):
		return "yes, stretch too"
	case meets(r.Goal.Limit):
		return "yes"
	}
	return no
}

func (r Row) Median() float64 { return median(r.Runs) }

// Spread returns the minimum and the maximum of the runs.
func (r Row) Spread() string {
	return number(slices.Min(r.Runs)) + " – " + number(slices.Max(r.Runs))
}

func (r Row) String() string {
	text := fmt.Sprintf("%s: %s %s (%s)", r.What, number(r.Median()), r.Unit, r.Spread())
	if r.Goal != nil {
		text += fmt.Sprintf(", goal %s", r.Goal)
	}
	return text
}

// median returns the middle value, or the mean of the two in the middle.
func median(runs []float64) float64 {
	sorted := slices.Sorted(slices.Values(runs))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// number formats a figure with about three digits and thousands separators.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a < 1:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
