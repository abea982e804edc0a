package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// figures are what was measured.
type figures struct {
	Taken  time.Time
	Engine string // version
	Cores  int
	Steps  []*step
}

// step is what was measured at one number of records.
type step struct {
	Records int64
	Copies  int     // of all records, that are part of them
	Load    string  // mean of processes at work before the step, of 1, 5 and 15 minutes
	Took    float64 // seconds to post what was new, and to store it
	Bytes   int64   // of all tables, when merges had ended
	Answers []answer
}

// answer is what a question costs about all the time there is, and about its
// last day; nothing of the day where no time can be asked for.
type answer struct {
	Name     string
	All, Day cost
}

// cost is of one question: times in ms, the processor time of ClickHouse for a hot
// answer, and what was read for it.
type cost struct {
	Cold, Hot, CPU float64
	Rows, Bytes    int64
}

func newFigures() *figures { return &figures{Taken: time.Now().UTC(), Cores: runtime.NumCPU()} }

// save does nothing where no file is named.
func (f *figures) save(file string) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(f, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func readFigures(file string) (*figures, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f := new(figures)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return f, nil
}

// goal is how many ms a hot answer may take.
func goal(question string) float64 {
	if question == "timeline" {
		return 20
	}
	return 100
}

// writePage shows the questions at the largest number of records loaded through
// the pipeline, and how they grow.
func writePage(w io.Writer, f *figures) error {
	var b strings.Builder
	var main *step
	for _, s := range f.Steps {
		if s.Copies == 0 {
			main = s
		}
	}
	fmt.Fprintf(&b, `<!-- Written by %[1]smake bench-analytics%[1]s; do not edit. -->
# What questions cost

Every question of [analytics.md](../analytics.md), asked of what simulated process
instances wrote in 30 days: posted to the api, stored by the ingester, when merges
had ended by themselves. Cold is with no file in any cache, hot the least of five
more, CPU the processor time of ClickHouse for one of these, which other work on the
machine does not add to: two idle cores answer in half of it at best. The goals are 100 ms hot, and 20 ms for the timeline of an instance; figures
past them are bold. Made by

    make bench-analytics

| | |
|---|---|
| measured | %[2]s |
| cores | %[3]d, which the api and the ingester share |
| ClickHouse | %[4]s, the embedded engine |
`, "`", f.Taken.Format("2006-01-02 15:04 UTC"), f.Cores, f.Engine)
	for _, s := range f.Steps {
		how := fmt.Sprintf("posted and stored in %.0f s", s.Took)
		if s.Copies > 0 {
			how = fmt.Sprintf("the ones before, and %d copies of them as other engines, each a month earlier", s.Copies)
		}
		fmt.Fprintf(&b, "| %s records | %s; %.1f bytes each in all tables; load of the machine before %s |\n", millions(s.Records), how, float64(s.Bytes)/float64(s.Records), s.Load)
	}
	fmt.Fprintf(&b, "\n## At %s records\n\nAll the time there is, and the last day of it.\n\n| question | cold, ms | hot, ms | CPU, ms | rows read | MB read | a day: cold | hot | CPU | rows | MB |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n", millions(main.Records))
	met, dayMet, days := 0, 0, 0
	for _, a := range main.Answers {
		fmt.Fprintf(&b, "| [%s](../analytics.md#%[1]s) | %s | %s | %s | %s | %s |", a.Name, short(a.All.Cold), bold(a.All.Hot, goal(a.Name)), short(a.All.CPU), count(a.All.Rows), megabytes(a.All.Bytes))
		met += within(a.All, a.Name)
		if a.Day.Hot == 0 {
			b.WriteString(" | | | | |\n")
			continue
		}
		days++
		dayMet += within(a.Day, a.Name)
		fmt.Fprintf(&b, " %s | %s | %s | %s | %s |\n", short(a.Day.Cold), bold(a.Day.Hot, goal(a.Name)), short(a.Day.CPU), count(a.Day.Rows), megabytes(a.Day.Bytes))
	}
	fmt.Fprintf(&b, "\nWithin their goal: %d of %d about all the time, %d of %d about a day.\n", met, len(main.Answers), dayMet, days)
	b.WriteString("\n## What grows\n\nHot, in ms, by the number of records: about all the time, and about a day.\n\n| question |")
	for _, s := range f.Steps {
		fmt.Fprintf(&b, " %s | a day |", millions(s.Records))
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|--:|", len(f.Steps)) + "\n")
	for i, a := range main.Answers {
		fmt.Fprintf(&b, "| %s |", a.Name)
		for _, s := range f.Steps {
			fmt.Fprintf(&b, " %s | %s |", bold(s.Answers[i].All.Hot, goal(a.Name)), bold(s.Answers[i].Day.Hot, goal(a.Name)))
		}
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func within(c cost, question string) int {
	if c.Hot <= goal(question) {
		return 1
	}
	return 0
}

// bold is a time, empty where there is none.
func bold(ms, goal float64) string {
	if ms > goal {
		return "**" + short(ms) + "**"
	}
	return short(ms)
}

func short(ms float64) string {
	switch {
	case ms == 0:
		return ""
	case ms < 10:
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

func millions(n int64) string { return fmt.Sprintf("%g million", float64(n)/1e6) }

func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }

// count is a number with three digits that count.
func count(n int64) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.2f M", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%.1f k", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}

// loadAverage says how busy the machine was before.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], ", ")
}
