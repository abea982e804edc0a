package warehouse_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/warehouse"
)

const (
	analyticsPage = "../../docs/analytics.md"
	pageCommand   = "go test ./pkg/warehouse -run AnalyticsPage -update"
	answerRows    = 5 // shown of each answer
)

// TestTheAnalyticsPageIsFresh holds docs/analytics.md against the views of the
// database and the questions; every answer on it was given in this test.
func TestTheAnalyticsPageIsFresh(t *testing.T) {
	w := simulated(t)
	questions, err := warehouse.Questions()
	if err != nil {
		t.Fatal(err)
	}
	checks, err := warehouse.Checks()
	if err != nil {
		t.Fatal(err)
	}
	want := pageHead + pageOfViews(t, w) + pageOfTables(t, w) + pageOfQuestions(t, w, questions) + pageOfChecks(t, checks)
	if *update {
		if err := os.WriteFile(analyticsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(analyticsPage)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/analytics.md is not fresh, run %s (-want +got):\n%s", pageCommand, diff)
	}
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)\n```").FindAllStringSubmatch(string(got), -1) {
		if !slices.ContainsFunc(append(questions, checks...), func(q warehouse.Question) bool { return q.SQL == block[1] }) {
			w.ask(t, warehouse.Question{Name: "the page", SQL: block[1]}, nil, "TabSeparated")
		}
	}
}

const pageHead = `# Analytics

What is in ClickHouse, and how to ask it. This page is made by
` + "`" + pageCommand + "`" + ` from the views of the database, pkg/warehouse/views.txt
and pkg/warehouse/questions.sql; a test keeps it fresh, runs every statement on
it, and compares every answer with what really happened in simulated engines,
also when records come shuffled, late and twice.

A connection from this machine without a password may read:

` + "```sh" + `
curl 'http://127.0.0.1:8123/?param_process=order' \
  --data-binary 'SELECT state, count() FROM flow.v_process_instances WHERE bpmn_process_id = {process:String} GROUP BY state'
` + "```" + `

A statement has its parameters as ` + "`{process:String}`" + `: over HTTP they are sent as
` + "`param_process=…`" + `, ` + "`clickhouse-client`" + ` takes ` + "`--param_process=…`" + `, and drivers
have a call for them. An empty process or tenant means all of them.

Ask the views, not the tables behind them: a view has one row for each thing,
whatever has been merged so far. Every view has ` + "`source`" + `: keys of two engines may
be equal, so join by source and key.

`

// pageOfViews lists every column of every view. Each has to be explained in
// views.txt, and nothing else may be.
func pageOfViews(t *testing.T, w *world) string {
	t.Helper()
	about, columns := explained(t)
	var b strings.Builder
	b.WriteString("## Views\n")
	used := map[string]bool{}
	var heads []string
	for _, view := range about {
		if view[0] == "*" {
			continue
		}
		heads = append(heads, view[0])
		fmt.Fprintf(&b, "\n### %s\n%s\n\n| column | type | |\n|---|---|---|\n", view[0], view[1])
		listed := query(t, w.db, "SELECT name, type FROM system.columns WHERE database = '{db}' AND table = '"+view[0]+"' ORDER BY position")
		for line := range strings.Lines(listed) {
			name, kind, _ := strings.Cut(strings.TrimSpace(line), "\t")
			means, own := columns[view[0]+"."+name]
			if own {
				used[view[0]+"."+name] = true
			} else if means = columns["*."+name]; means == "" {
				t.Errorf("views.txt does not explain %s.%s", view[0], name)
			} else {
				used["*."+name] = true
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, plainType(kind), means)
		}
	}
	for name := range columns {
		if !used[name] {
			t.Errorf("views.txt explains %s, which is nowhere", name)
		}
	}
	slices.Sort(heads)
	if got := query(t, w.db, "SELECT name FROM system.tables WHERE database = '{db}' AND name LIKE 'v\\_%' ORDER BY name"); got != strings.Join(heads, "\n") {
		t.Errorf("views.txt explains %q, there are %q", heads, strings.Fields(got))
	}
	return b.String()
}

// explained reads views.txt: the views in order, each with its sentence, and
// the columns by "view.column".
func explained(t *testing.T) (views [][2]string, columns map[string]string) {
	t.Helper()
	text, err := os.ReadFile("views.txt")
	if err != nil {
		t.Fatal(err)
	}
	columns = map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			name, sentence, _ := strings.Cut(line[1:], "]")
			views = append(views, [2]string{name, strings.TrimSpace(sentence)})
		default:
			name, means, ok := strings.Cut(line, ": ")
			if !ok || len(views) == 0 {
				t.Fatalf("views.txt: %q explains no column", line)
			}
			columns[views[len(views)-1][0]+"."+name] = means
		}
	}
	return views, columns
}

// plainType is a type without what only ClickHouse needs to know about it.
func plainType(kind string) string {
	for _, wrap := range []string{`^SimpleAggregateFunction\(\w+, (.*)\)$`, `^LowCardinality\((.*)\)$`} {
		kind = regexp.MustCompile(wrap).ReplaceAllString(kind, "$1")
	}
	return strings.ReplaceAll(kind, `\'`, "'")
}

func pageOfQuestions(t *testing.T, w *world, questions []warehouse.Question) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n## Questions\n\nAnswers are of two simulated engines that were looked at after two hours of work")
	fmt.Fprintf(&b, "; of each, the first %d lines. What an answer takes was measured\nby `make bench-analytics`: [what questions cost](performance/analytics.md).\n\n", answerRows)
	takes := measured(t)
	for _, q := range questions {
		fmt.Fprintf(&b, "- [%s](#%s)\n", q.Asks, q.Name)
	}
	for _, q := range questions {
		fmt.Fprintf(&b, "\n### %s\n**%s**", q.Name, q.Asks)
		if q.Means != "" {
			b.WriteString(" " + q.Means)
		}
		fmt.Fprintf(&b, "\n\nReads %s.%s\n", strings.Join(q.Reads, ", "), takes[q.Name])
		if len(q.Parameters) > 0 {
			b.WriteString("\n| parameter | | in the answer below |\n|---|---|---|\n")
			for _, p := range q.Parameters {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", p.Name, p.Means, p.Example)
			}
		}
		fmt.Fprintf(&b, "\n```sql\n%s\n```\n\n%s", q.SQL, answerTable(t, w, q))
	}
	return b.String()
}

// measured says what each question took in docs/performance/analytics.json, at
// the largest number of records that was loaded through the pipeline. A question
// that is newer than that file says nothing.
func measured(t *testing.T) map[string]string {
	t.Helper()
	type cost struct {
		Cold, Hot   float64
		Rows, Bytes float64
	}
	var figures struct {
		Steps []struct {
			Records float64
			Copies  int
			Answers []struct {
				Name     string
				All, Day cost
			}
		}
	}
	text, err := os.ReadFile("../../docs/performance/analytics.json")
	if err == nil {
		err = json.Unmarshal(text, &figures)
	}
	if err != nil {
		t.Fatal(err)
	}
	says := map[string]string{}
	for _, step := range figures.Steps {
		for _, a := range step.Answers {
			if step.Copies > 0 {
				continue
			}
			says[a.Name] = fmt.Sprintf(" Takes %.0f ms at %g million records (%.0f ms with cold caches), for which it reads %.3g million rows, %.3g MB", a.All.Hot, step.Records/1e6, a.All.Cold, a.All.Rows/1e6, a.All.Bytes/1e6)
			if a.Day.Hot > 0 {
				says[a.Name] += fmt.Sprintf("; about a day of a month of these %.0f ms, %.3g million rows", a.Day.Hot, a.Day.Rows/1e6)
			}
			says[a.Name] += "."
		}
	}
	return says
}

// pageOfChecks shows each check with what it finds in engines that are wrong.
func pageOfChecks(t *testing.T, checks []warehouse.Question) string {
	t.Helper()
	found, err := wrong(t).Lint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("\n## Lint\n\n`sluice lint` looks for these, and `SELECT * FROM flow.v_lint` answers the same: a line for each engine that something is found of, how much, and an example.\n")
	for _, q := range checks {
		i := slices.IndexFunc(found, func(f warehouse.Finding) bool { return f.Check == q.Name })
		fmt.Fprintf(&b, "\n### %s\n**%s.** %s Such as: %d found, %s. What to do: %s\n\n```sql\n%s\n```\n", q.Name, q.Asks, q.Means, found[i].Count, found[i].Example, q.Do, q.SQL)
	}
	return b.String()
}

// answerTable is the answer to a question with its examples.
func answerTable(t *testing.T, w *world, q warehouse.Question) string {
	t.Helper()
	rows := strings.Split(w.ask(t, q, nil, "TabSeparatedWithNames"), "\n")
	if len(rows) < 2 {
		t.Errorf("%s has no answer with its examples", q.Name)
	}
	var b strings.Builder
	for i, row := range rows[:min(len(rows), 1+answerRows)] {
		cells := strings.Split(strings.ReplaceAll(row, "|", `\|`), "\t")
		for j, cell := range cells {
			if cell == null {
				cells[j] = ""
			}
			if len(cell) > 100 {
				cells[j] = cell[:100] + "…"
			}
			cells[j] = strings.ReplaceAll(cells[j], "<", "&lt;")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	return b.String()
}
