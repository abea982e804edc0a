package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// figures are what was measured. Sizes are bytes, and times of the engine
// CPU-seconds per million records, by the records that were loaded.
type figures struct {
	Taken        time.Time
	Load         string // mean of processes at work before the start, of 1, 5 and 15 minutes
	Engine       string // version
	Records      int64
	Acknowledged int64

	Rate          float64 // records per second drained
	Ingester      float64 // CPU-seconds per million until all were stored
	EngineStored  float64 // until all were stored
	EngineSettled float64 // until no merge was left to do
	EngineMerged  float64 // until there was one part of each month

	Loaded  []size // tables when all were stored
	Settled []size // tables when no merge was left to do
	Merged  []size // tables in one part
	Columns []size // and indexes, in one part
	Queries []queryTime

	used time.Duration // processor time of the engine before
}

// size is how many bytes of a record something takes.
type size struct {
	Name  string
	Bytes float64
}

// queryTime is how long a query took, in ms.
type queryTime struct {
	Name string
	MS   float64
}

func (f *figures) perMillion(t time.Duration) float64 {
	return t.Seconds() * 1e6 / float64(f.Acknowledged)
}

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

// readFigures is nil where no file is named.
func readFigures(file string) (*figures, error) {
	if file == "" {
		return nil, nil
	}
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

// page writes tables of two figures, or of one.
type page struct {
	strings.Builder
	now, before *figures
}

// writePage shows f, and those before beside them where there are any.
func writePage(w io.Writer, f, before *figures) error {
	p := &page{now: f, before: before}
	p.WriteString("<!-- Written by `make bench-table`; do not edit. -->\n# What records cost in ClickHouse\n\n")
	p.WriteString("Records are generated, posted to the api while no ingester runs, and drained by one\nthat is started then. Written by `make bench-table`; decision 0037 says what bounds it.\n\n")
	p.row("", func(f *figures) string { return f.Taken.Format("2006-01-02 15:04 UTC") })
	if before != nil {
		p.WriteString("|---|--:|--:|\n")
	} else {
		p.WriteString("|---|--:|\n")
	}
	p.row("records", func(f *figures) string { return fmt.Sprint(f.Acknowledged) })
	p.row("ClickHouse", func(f *figures) string { return f.Engine })
	p.row("load of the machine before (1, 5, 15 minutes)", func(f *figures) string { return f.Load })
	p.number("drained, records/s", func(f *figures) float64 { return f.Rate })
	p.number("ingester, CPU-s per million", func(f *figures) float64 { return f.Ingester })
	p.number("engine, CPU-s per million, until all are stored", func(f *figures) float64 { return f.EngineStored })
	p.number("– until its merges have ended", func(f *figures) float64 { return f.EngineSettled })
	p.number("– until there is one part of a month", func(f *figures) float64 { return f.EngineMerged })
	p.sizes("right after the load, B", func(f *figures) []size { return f.Loaded })
	p.sizes("after its merges, B", func(f *figures) []size { return f.Settled })
	p.sizes("in one part, B", func(f *figures) []size { return f.Merged })
	p.sizes("in one part, B", func(f *figures) []size { return f.Columns })
	for _, q := range f.Queries {
		p.number(q.Name+", ms", func(f *figures) float64 {
			for _, same := range f.Queries {
				if same.Name == q.Name {
					return same.MS
				}
			}
			return 0
		})
	}
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *page) row(what string, text func(*figures) string) {
	fmt.Fprintf(p, "| %s |", what)
	if p.before != nil {
		fmt.Fprintf(p, " %s |", text(p.before))
	}
	fmt.Fprintf(p, " %s |\n", text(p.now))
}

func (p *page) number(what string, value func(*figures) float64) {
	p.row(what, func(f *figures) string { return short(value(f)) })
}

// sizes has a row for each, of the one and the other, and one for all the folds
// where they are tables.
func (p *page) sizes(when string, of func(*figures) []size) {
	var names []string
	seen := map[string]bool{}
	for _, f := range []*figures{p.now, p.before} {
		if f == nil {
			continue
		}
		for _, s := range of(f) {
			if !seen[s.Name] {
				names, seen[s.Name] = append(names, s.Name), true
			}
		}
	}
	tables := seen["records"]
	for _, name := range names {
		p.row("`"+name+"` "+when, func(f *figures) string {
			for _, s := range of(f) {
				if s.Name == name {
					return fmt.Sprintf("%.3f", s.Bytes)
				}
			}
			return "none"
		})
	}
	if tables {
		p.row("all but records "+when, func(f *figures) string {
			sum := 0.0
			for _, s := range of(f) {
				if s.Name != "records" {
					sum += s.Bytes
				}
			}
			return fmt.Sprintf("%.3f", sum)
		})
	}
}

// short is a figure with three digits that count.
func short(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
