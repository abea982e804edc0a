package warehouse_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

const (
	analyticsPage = "../../docs/analytics.md"
	pageCommand   = "go test ./pkg/warehouse -run AnalyticsPage -update"
	answerRows    = 5 // shown of each result
)

// TestTheAnalyticsPageIsFresh compares docs/analytics.md, from its views on, and dbt's sources
// with the database's views and the questions. Every result on the page comes from this test.
func TestTheAnalyticsPageIsFresh(t *testing.T) {
	w := simulated(t)
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	checks, err := warehouse.Checks()
	fatal.If(t, err)
	got, err := os.ReadFile(analyticsPage)
	fatal.If(t, err)
	byHand, _, _ := strings.Cut(string(got), "## Views\n")
	for file, want := range map[string]string{
		analyticsPage: byHand + pageOfObjects(t, w.db) + pageOfQuestions(t, w, questions) + pageOfChecks(t, checks),
		"../../deploy/dbt/models/sources.yml": "# The views, by `" + pageCommand + "`.\nsources:\n  - name: flow\n    tables:\n      " + query(t, w.db, `SELECT
			concat('      - {name: ', name, ', description: ', toJSONString(comment), '}') FROM system.tables WHERE database = '{db}' AND engine = 'View' ORDER BY name FORMAT TSVRaw`) + "\n",
	} {
		if *update {
			fatal.If(t, os.WriteFile(file, []byte(want), 0o644))
		}
		is, err := os.ReadFile(file)
		fatal.If(t, err)
		expect.Equal(t, fmt.Sprintf("%s is not fresh, run %s", file, pageCommand), want, string(is))
	}
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)\n```").FindAllStringSubmatch(string(got), -1) {
		if !slices.ContainsFunc(append(questions, checks...), func(q warehouse.Question) bool { return q.SQL == block[1] }) {
			w.ask(t, warehouse.Question{Name: "the page", SQL: block[1]}, nil, "TabSeparated")
		}
	}
}

// pageOfObjects lists every column of every view and table with the database's own comment, in the
// order of the schema's files.
func pageOfObjects(t *testing.T, db *warehouse.DB) string {
	t.Helper()
	var views, tables strings.Builder
	views.WriteString("## Views\n")
	tables.WriteString("\n## Tables\n\nThe views are made of these. A row of an aggregate table holds what some records say of its key; merges, FINAL, and the function in parentheses behind a type make one row of all.\n")
	statements, err := warehouse.Statements(db.Database(), "", false, 99, 1)
	fatal.If(t, err)
	named := regexp.MustCompile(`^CREATE (TABLE|VIEW) IF NOT EXISTS \w+\.(\w+)`)
	listed := 0
	for _, statement := range statements {
		m := named.FindStringSubmatch(statement)
		if m == nil {
			continue
		}
		listed++
		of := func(what string) string {
			return query(t, db, "SELECT "+what+" FROM system.tables WHERE database = '{db}' AND name = '"+m[2]+"' FORMAT TSVRaw")
		}
		b := &tables
		if m[1] == "VIEW" {
			b = &views
		}
		fmt.Fprintf(b, "\n### %s\n%s\n", m[2], of("comment"))
		if m[1] == "TABLE" {
			fmt.Fprintf(b, "\nSorted by %s%s.\n", of("sorting_key"), of("if(partition_key = '', '', concat(', partitioned by ', partition_key))"))
		}
		b.WriteString("\n| column | type | |\n|---|---|---|\n")
		for line := range strings.Lines(query(t, db, "SELECT name, type, comment FROM system.columns WHERE database = '{db}' AND table = '"+m[2]+"' ORDER BY position FORMAT TSVRaw")) {
			cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
			if cells[2] == "" {
				t.Errorf("column %s.%s has no comment", m[2], cells[0])
			}
			fmt.Fprintf(b, "| %s | %s | %s |\n", cells[0], plainType(cells[1]), cells[2])
		}
		if of("comment") == "" {
			t.Errorf("%s has no comment", m[2])
		}
	}
	if got := query(t, db, "SELECT count() FROM system.tables WHERE database = '{db}' AND engine != 'MaterializedView' AND name != 'schema'"); got != fmt.Sprint(listed) {
		t.Errorf("there are %s tables and views, the files of the schema name %d", got, listed)
	}
	return views.String() + tables.String()
}

var (
	aggregated = regexp.MustCompile(`^SimpleAggregateFunction\((\w+), (.*)\)$`)
	dictionary = regexp.MustCompile(`^LowCardinality\((.*)\)( .*)?$`)
)

// plainType is a type without its ClickHouse wrappers, and the function that merges two values.
func plainType(kind string) string {
	kind = aggregated.ReplaceAllString(kind, "$2 ($1)")
	return dictionary.ReplaceAllString(kind, "$1$2")
}

func pageOfQuestions(t *testing.T, w *world, questions []warehouse.Question) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("\n## Questions\n\nAnswers are of two simulated engines that were looked at after two hours of work")
	fmt.Fprintf(&b, "; of each, the first %d lines. What an answer takes was measured\nby `make bench ARGS=questions`: [what questions cost](performance/analytics.md).\n\n", answerRows)
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

// measured is the time of each question in docs/performance/analytics.json, at the largest number
// of records loaded through the pipeline. Newer questions are missing.
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
	fatal.If(t, err)
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

// pageOfChecks shows each check with its findings in faulty engines.
func pageOfChecks(t *testing.T, checks []warehouse.Question) string {
	t.Helper()
	found, err := wrong(t).Lint(t.Context())
	fatal.If(t, err)
	var b strings.Builder
	b.WriteString("\n## Lint\n\n`sluice lint` looks for these, and `SELECT * FROM flow.v_lint` answers the same: a line for each engine that something is found of, how much, and an example.\n")
	for _, q := range checks {
		i := slices.IndexFunc(found, func(f warehouse.Finding) bool { return f.Check == q.Name })
		fmt.Fprintf(&b, "\n### %s\n**%s.** %s Such as: %d found, %s. What to do: %s\n\n```sql\n%s\n```\n", q.Name, q.Asks, q.Means, found[i].Count, found[i].Example, q.Do, q.SQL)
	}
	return b.String()
}

// answerTable is the result of a question with its examples.
func answerTable(t *testing.T, w *world, q warehouse.Question) string {
	t.Helper()
	rows := strings.Split(w.ask(t, q, nil, "TabSeparatedWithNames"), "\n")
	if q.Name == "rework" {
		return "No simulated process has a loop.\n"
	}
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
