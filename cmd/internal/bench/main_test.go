package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/capacity"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestEverythingIsMeasured is a short `make bench` with all parts. A run fails when stored
// records differ from the acknowledged ones.
func TestEverythingIsMeasured(t *testing.T) {
	out := t.TempDir()
	var log strings.Builder
	page, err := measure(t.Context(), config{
		Parts: []string{"capacity", "goals", "scaling", "questions", "console"}, Short: true, Out: out, Coefficients: filepath.Join(out, "coefficients.json"), command: "go test", log: &log,
	})
	t.Logf("\n%s", log.String())
	fatal.If(t, err)
	goals := 0
	for _, row := range page.Goals {
		if row.Goal != nil {
			goals++
		}
		wellMeasured(t, row.What, row, page.Runs)
	}
	expect.Not(t, goals != 27, "%d figures have a goal, want 27: each of the table of goals", goals)
	points := map[string]int{"lanes": 2, "batches": 1, "connections": 1}
	for _, c := range page.Curves {
		if len(c.Points) != points[c.Slug] {
			t.Errorf("%s has %d points, want %d", c.Slug, len(c.Points), points[c.Slug])
		}
		delete(points, c.Slug)
		for _, p := range c.Points {
			for name, row := range map[string]Row{"rate": p.Rate, "CPU": p.CPU, "engine": p.Engine, "ack p99": p.Ack, "attempts": p.Again} {
				wellMeasured(t, c.Slug+": "+name, row, page.Runs)
			}
		}
	}
	expect.Not(t, len(points) > 0, "not measured: %v", points)
	coefficients, err := os.ReadFile(filepath.Join(out, "coefficients.json"))
	fatal.If(t, err)
	var measured capacity.Measured
	if err := json.Unmarshal(coefficients, &measured); err != nil || len(measured.Points) != 5 || measured.Lane <= 0 {
		t.Errorf("coefficients of sluice capacity: %v: %s", err, coefficients)
	}
	for _, p := range measured.Points {
		if p.Records <= 0 || p.Requests <= 0 || p.Entries <= 0 || p.Blocks <= 0 || p.Streamed <= 0 || p.Seconds <= 0 || p.CPU[capacity.Engine] <= 0 {
			t.Errorf("%s: a count is missing: %+v", p.Name, p)
		}
	}
	text, err := os.ReadFile(filepath.Join(out, "performance.md"))
	fatal.If(t, err)
	wellFormed(t, string(text))
	questions, err := os.ReadFile(filepath.Join(out, "performance", "analytics.md"))
	fatal.If(t, err)
	wellFormed(t, string(questions))
	if n := strings.Count(string(questions), "\n| "); n < 60 {
		t.Errorf("analytics.md has %d rows, want at least 60:\n%s", n, questions)
	}
	for _, row := range page.Budgets {
		expect.Not(t, len(row.Runs) == 0 || math.IsNaN(row.Median()), "%s: runs gave %v", row.What, row.Runs)
	}
	console, err := os.ReadFile(filepath.Join(out, "performance", "console.md"))
	fatal.If(t, err)
	wellFormed(t, string(console))
	for _, path := range []string{"/", "/processes", "/process", "/process/elements", "/definition", "/instances", "/instance", "/elements", "/incidents", "/jobs", "/tasks", "/timers", "/messages", "/decisions", "/records", "/query", "/query/views", "/dead", "/sources"} {
		expect.Not(t, !strings.Contains(string(console), "\n| `"+path+"` |"), "page %s of the console is not measured:\n%s", path, console)
	}
	var kept asked
	figures, err := os.ReadFile(filepath.Join(out, "performance", "analytics.json"))
	if err == nil {
		err = json.Unmarshal(figures, &kept)
	}
	expect.Not(t, err != nil || len(kept.Steps) != 1 || kept.Last().Records != 30_000 || len(kept.Last().Answers) < 30, "the figures of questions: %v: %.500s", err, figures)
	for _, want := range []string{page.Machine.CPU, page.Versions.NATS, page.Versions.Engine, page.Versions.Commit, page.Versions.Go, "go test"} {
		expect.Not(t, want == "" || !strings.Contains(string(text), want), "the page does not say %q", want)
	}
}

// wellMeasured requires a figure from every run. It may be 0 without a goal: a part of a
// short run can take less than a tick of CPU.
func wellMeasured(t *testing.T, what string, row Row, runs int) {
	t.Helper()
	expect.Not(t, len(row.Runs) != runs, "%s: %d runs, want %d", what, len(row.Runs), runs)
	for _, v := range row.Runs {
		expect.Not(t, !(v > 0 || v == 0 && row.Goal == nil) || v > 1e9, "%s: a run gave %v", what, v)
	}
}

// wellFormed requires tables whose rows have as many cells as the head, and no NaN or
// template error.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	cells := 0
	for line := range strings.Lines(page) {
		n := strings.Count(line, "|")
		expect.Not(t, cells > 0 && n > 0 && n != cells, "%d cells in a table of %d: %s", n-1, cells-1, line)
		cells = n
	}
	for _, wrong := range []string{"NaN", "Inf", "<no value>", "<nil>", "%!"} {
		expect.Not(t, strings.Contains(page, wrong), "the page says %s", wrong)
	}
}
