// Package ask runs the questions of docs/analytics.md and prints their answers.
//
//	ask.go     a question, its parameters, and its answer
//	print.go   the answer as a table, CSV, JSON, or Markdown
package ask

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/cmd/internal/statement"
	"sluice/pkg/warehouse"
)

type Config struct {
	ClickHouse statement.Server
	Question   string            // its name; empty lists the questions
	Values     map[string]string // of parameters
	Now        time.Time         // end of the default time range
	Format     string            // table, csv, json, or md
	SQL        bool              // print the statement with its values instead of running it
	To         io.Writer
}

// Span is the default time range of a question.
const Span = 7 * 24 * time.Hour

func Run(ctx context.Context, cfg Config) error {
	questions, err := warehouse.Questions()
	if err != nil {
		return err
	}
	if cfg.Question == "" {
		return list(questions).print(cfg.Format, cfg.To)
	}
	i := slices.IndexFunc(questions, func(q warehouse.Question) bool { return q.Name == cfg.Question })
	if i < 0 {
		return fmt.Errorf("no question %s: sluice ask lists all", cfg.Question)
	}
	q := questions[i]
	values, err := cfg.values(q)
	if err != nil {
		return err
	}
	sql := strings.ReplaceAll(q.With(values), "flow.", cfg.ClickHouse.Database()+".")
	if cfg.SQL {
		_, err := fmt.Fprintf(cfg.To, "-- %s\n%s;\n", strings.TrimSpace(q.Asks+" "+q.Means), sql)
		return err
	}
	var answer bytes.Buffer
	if err := cfg.ClickHouse.Copy(ctx, sql, url.Values{"default_format": {"JSONCompactEachRowWithNamesAndTypes"}}, &answer); err != nil {
		return err
	}
	a, err := read(&answer)
	if err != nil {
		return err
	}
	return a.print(cfg.Format, cfg.To)
}

// values are those of all parameters of a question; the error names missing ones.
func (cfg Config) values(q warehouse.Question) (map[string]string, error) {
	text := func(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000Z") }
	values := map[string]string{
		"process": "", "tenant": "", "from": text(cfg.Now.Add(-Span)), "to": text(cfg.Now), "now": text(cfg.Now),
	}
	var missing []string
	for _, p := range q.Parameters {
		_, known := values[p.Name]
		_, given := cfg.Values[p.Name]
		switch {
		case p.Default != "" || p.Optional:
			values[p.Name] = p.Default
		case !known && !given:
			missing = append(missing, fmt.Sprintf("%s (%s, such as %s)", p.Name, p.Means, p.Example))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s needs %s: give each with --set name=value", q.Name, strings.Join(missing, " and "))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Values)) {
		if !slices.ContainsFunc(q.Parameters, func(p warehouse.Parameter) bool { return p.Name == name }) {
			return nil, fmt.Errorf("%s has no parameter %s: it has %s", q.Name, name, parameters(q))
		}
	}
	maps.Copy(values, cfg.Values)
	return values, nil
}

// parameters lists a question's parameters with their defaults.
func parameters(q warehouse.Question) string {
	var all []string
	for _, p := range q.Parameters {
		if p.Default != "" {
			p.Name += "=" + p.Default
		}
		all = append(all, p.Name)
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

func list(questions []warehouse.Question) answer {
	a := answer{columns: []column{{name: "question"}, {name: "asks"}, {name: "parameters"}}}
	for _, q := range questions {
		a.rows = append(a.rows, []cell{{text: q.Name}, {text: q.Asks}, {text: parameters(q)}})
	}
	return a
}

// answer is the complete answer of ClickHouse: column widths need every row, and an
// answer that fails midway must not be printed.
type answer struct {
	columns []column
	rows    [][]cell
}

type column struct {
	name   string
	number bool
}

type cell struct {
	json json.RawMessage // nil for text
	text string          // empty for NULL
}

// read parses lines of JSON arrays: names, types, then rows.
func read(from io.Reader) (a answer, err error) {
	lines := bufio.NewReader(from)
	next := func(into any) error {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return err
		}
		if err := json.Unmarshal(line, into); err != nil {
			return fmt.Errorf("ClickHouse failed while answering: %.512s", bytes.TrimSpace(line))
		}
		return nil
	}
	var names, types []string
	err = cmp.Or(next(&names), next(&types))
	if err == io.EOF || err == nil && len(types) != len(names) {
		err = errors.New("ClickHouse failed while answering: names and types of columns are missing")
	}
	if err != nil {
		return a, err
	}
	for i, name := range names {
		a.columns = append(a.columns, column{name, numbers.MatchString(types[i])})
	}
	for {
		var row []json.RawMessage
		err := next(&row)
		if err == io.EOF {
			return a, nil
		}
		if err == nil && len(row) != len(names) {
			err = fmt.Errorf("ClickHouse failed while answering: a row of %d columns has %d values", len(names), len(row))
		}
		if err != nil {
			return a, err
		}
		a.rows = append(a.rows, cells(a.columns, row))
	}
}

func cells(columns []column, row []json.RawMessage) []cell {
	all := make([]cell, len(row))
	for i, value := range row {
		var text string
		switch err := json.Unmarshal(value, &text); {
		case string(value) == "null":
			all[i] = cell{json: value}
		case err != nil:
			text = short(string(value)) // a number or an array
			all[i] = cell{json.RawMessage(text), text}
		case columns[i].number:
			all[i] = cell{json.RawMessage(text), text} // older servers quote 64 bits
		default:
			all[i] = cell{text: text}
		}
	}
	return all
}

// short rounds a float to 12 digits, and never before its decimal point: 4356762.55, not
// 4356762.54999999. Other texts are unchanged.
func short(number string) string {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.ContainsAny(number, ".eE") {
		return number
	}
	digits := max(12, strings.IndexAny(number, ".eE"))
	f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'g', digits, 64), 64)
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// numbers matches ClickHouse's numeric types.
var numbers = regexp.MustCompile(`^((LowCardinality|Nullable)\(|SimpleAggregateFunction\(\w+, )*(U?Int|Float|Decimal)`)
