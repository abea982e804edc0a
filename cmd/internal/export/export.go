// Package export writes the process instances of a time range as event logs for process
// mining: CSV, NDJSON, Parquet, XES, and OCEL 2.0 in JSON.
//
// ClickHouse computes and formats the log in one statement: CSV, NDJSON, and Parquet are
// its bytes, unchanged. The answer is streamed. An interrupted export leaves no file.
//
//	export.go    runs a statement and checks that its answer is complete
//	cases.sql    the instances, with their attributes in both kinds of log
//	events.sql   the events, one row each
//	xes.go       these rows as XES
//	objects.sql  objects and their events
//	ocel.go      these as OCEL 2.0
//	output.go    the file
package export

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/csv"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"sluice/cmd/internal/statement"
)

// Selection is the process instances started in a time range. Exports of adjacent ranges
// share no instance, so a large export can be made in parts.
type Selection struct {
	Process string    // current BPMN process id; empty for all
	Tenant  string    // empty for all
	Source  string    // empty for all
	From    time.Time // inclusive; zero for the beginning
	To      time.Time // exclusive; zero for no end
}

type Config struct {
	ClickHouse string // URL of its HTTP interface: http://user:password@host:8123/database; database default flow
	Selection  Selection
	Variables  []string          // names of variables that cases have as attributes, such as variable.amount
	Format     string            // csv, ndjson, parquet, xes, or ocel
	File       string            // "-" is Stdout; the suffix .gz compresses
	Stdout     io.Writer         // for "-"
	Progress   func(bytes int64) // called with the size of every read from ClickHouse; default none
}

//go:embed cases.sql
var casesSQL string

//go:embed events.sql
var eventsSQL string

// printed is a format of ClickHouse. When a query fails midway, older servers only append
// the error's text: an answer is complete if it is empty or ends in end.
type printed struct{ name, end string }

var formats = map[string]printed{
	"csv":     {"CSV", "\"\n"}, // the embedded engine does not stream CSVWithNames
	"ndjson":  {"JSONEachRow", "}\n"},
	"parquet": {"Parquet", "PAR1"},
}

// texts are the columns of events.sql with text of engines and models.
var texts = regexp.MustCompile("(?m)^    (.+) AS `(case:concept:name|concept:name|org:resource|bpmn:name|bpmn:type|case:(?:source|process|tenant|name|parent|root|variable\\..*))`")

// forSpreadsheets puts a ' before texts that a spreadsheet would run as a formula.
func forSpreadsheets(sql string) string {
	return texts.ReplaceAllString(sql, `    if(match($1, '^[=+@\t\r-]') AND NOT match($1, '^-?[0-9]+([.][0-9]+)?$$'), concat('''', $1), $1) AS `+"`$2`")
}

// attributes are the names of the columns of the variables.
func (cfg Config) attributes() (names []string) {
	for _, name := range cfg.Variables {
		names = append(names, "case:variable."+name)
	}
	return names
}

var (
	inText = strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	inName = strings.NewReplacer(`\`, `\\`, "`", "\\`")
)

// withVariables is the statement of cases and sql, with the chosen variables.
func (cfg Config) withVariables(sql string) string {
	var names []string
	ofCase, ofObject := "", ""
	for _, name := range cfg.Variables {
		text := "'" + inText.Replace(name) + "'"
		names = append(names, text)
		ofCase += ",\n    a.of[" + text + "] AS `" + inName.Replace("case:variable."+name) + "`"
		ofObject += ", ('variable." + inText.Replace(name) + "', if(mapContains(a.of, " + text + "), toJSONString(a.of[" + text + "]), ''))"
	}
	among := "0"
	if len(names) > 0 {
		among = "name IN (" + strings.Join(names, ", ") + ")"
	}
	return strings.NewReplacer("/* variables */", among, "/* attributes */", ofCase, "/* of the instance */", ofObject).Replace(casesSQL + sql)
}

// columns are those of events.sql.
var columns = []string{
	"case:concept:name", "concept:name", "lifecycle:transition", "time:timestamp", "org:resource", "concept:instance", "bpmn:name", "bpmn:type",
	"case:source", "case:key", "case:process", "case:version", "case:definition", "case:tenant", "case:state", "case:name", "case:parent", "case:caller", "case:root",
}

// settings fix the documented formats, and let the server sort and join on disk beyond
// its memory.
var settings = map[string]string{
	"date_time_output_format":                   "iso",
	"format_csv_null_representation":            "",
	"join_algorithm":                            "grace_hash,hash",
	"join_use_nulls":                            "0",
	"max_bytes_before_external_group_by":        "268435456",
	"max_bytes_before_external_sort":            "268435456",
	"max_bytes_in_join":                         "268435456",
	"output_format_json_escape_forward_slashes": "0",
	"output_format_json_quote_64bit_integers":   "0",
	"output_format_parquet_string_as_string":    "1",
	"prefer_global_in_and_join":                 "1",
}

func Run(ctx context.Context, cfg Config) error {
	if cfg.Progress == nil {
		cfg.Progress = func(int64) {}
	}
	if cfg.Format == "parquet" && strings.HasSuffix(cfg.File, ".gz") {
		return fmt.Errorf("%s: Parquet is compressed already, and few programs read it as .gz: omit .gz", cfg.File)
	}
	to, err := create(cfg.File, cfg.Stdout)
	if err != nil {
		return err
	}
	defer to.discard()
	switch cfg.Format {
	case "xes":
		err = cfg.xes(ctx, to)
	case "ocel":
		err = cfg.ocel(ctx, to)
	default:
		format, known := formats[cfg.Format]
		if !known {
			return fmt.Errorf("unknown format %s: use csv, ndjson, parquet, xes, or ocel", cfg.Format)
		}
		sql := cfg.withVariables(eventsSQL)
		if cfg.Format == "csv" {
			sql = forSpreadsheets(sql)
			err = csv.NewWriter(to).WriteAll([][]string{append(slices.Clone(columns), cfg.attributes()...)})
		}
		if err == nil {
			err = cfg.copy(ctx, sql, format, to)
		}
	}
	if err != nil {
		return err
	}
	if err := to.keep(); err != nil {
		return fmt.Errorf("write %s: %w", cfg.File, err)
	}
	return nil
}

// copy runs a statement of the selection and streams its answer.
func (cfg Config) copy(ctx context.Context, text string, format printed, to io.Writer) error {
	query := url.Values{}
	for name, value := range settings {
		query.Set(name, value)
	}
	sql := strings.ReplaceAll(text, "/* selection */", cfg.Selection.where(query)) + "FORMAT " + format.name
	answer := &tail{Writer: to, progress: cfg.Progress}
	err := statement.Server(cfg.ClickHouse).Copy(ctx, sql, query, answer)
	if end := string(answer.last); err == nil && end != "" && !strings.HasSuffix(end, format.end) {
		err = fmt.Errorf("ClickHouse failed while answering: %s", strings.TrimSpace(end))
	}
	if err == nil {
		return nil
	}
	if strings.Contains(err.Error(), "Code: 396.") {
		err = fmt.Errorf("the user's limit of rows is exceeded: log in as admin (--data), select a shorter time, or raise --analyst-rows of sluice up: %w", err)
	}
	return fmt.Errorf("export to %s: %w", cfg.File, err)
}

// where is a condition on v_process_instances, with its parameters in query.
func (s Selection) where(query url.Values) string {
	all := []string{"started_at IS NOT NULL"}
	for _, of := range []struct{ column, value string }{{"bpmn_process_id", s.Process}, {"tenant_id", s.Tenant}, {"source", s.Source}} {
		if of.value != "" {
			query.Set("param_"+of.column, of.value)
			all = append(all, fmt.Sprintf("%s = {%[1]s:String}", of.column))
		}
	}
	for _, of := range []struct {
		operator string
		at       time.Time
	}{{">=", s.From}, {"<", s.To}} {
		if !of.at.IsZero() { // rounded up: times of the engine are in ms
			all = append(all, fmt.Sprintf("started_at %s fromUnixTimestamp64Milli(%d, 'UTC')", of.operator, of.at.Add(time.Millisecond-1).UnixMilli()))
		}
	}
	return strings.Join(all, " AND ")
}

// tail keeps the last bytes written.
type tail struct {
	io.Writer
	progress func(int64)
	last     []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const maxBytes = 512 // of an error to show
	n, err := t.Writer.Write(p)
	t.last = append(t.last, p[max(0, n-maxBytes):n]...)
	t.last = slices.Delete(t.last, 0, max(0, len(t.last)-maxBytes))
	t.progress(int64(n))
	return n, err
}

// lines calls each with every line written to it, without the line break.
type lines struct {
	each func(line []byte) error
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for end := bytes.IndexByte(p, '\n'); end >= 0; end = bytes.IndexByte(p, '\n') {
		l.rest = append(l.rest, p[:end]...)
		if err := l.each(l.rest); err != nil {
			return 0, err
		}
		l.rest, p = l.rest[:0], p[end+1:]
	}
	l.rest = append(l.rest, p...)
	return n, nil
}
