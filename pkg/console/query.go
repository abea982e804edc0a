package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Question is something that analysts ask, with the statement that answers it:
// one of docs/analytics.md.
type Question struct {
	Name, Asks, Means string
	SQL               string // with its parameters as {name:Type}
	Parameters        []Parameter
}

// Parameter is what a statement has as {name:Type}.
type Parameter struct{ Name, Type, Means, Example string }

// Bounds of a statement that people type. ClickHouse has limits of its own for
// the analyst.
const (
	maxStatement  = 64 << 10 // bytes
	maxRows       = 1000     // that the page shows
	maxCSV        = 100_000  // that a file gets
	statementTime = 60 * time.Second
)

var placeholders = regexp.MustCompile(`\{(\w+):\s*([^{}]+)\}`)

// asks begins a statement that asks; comments may stand before it. SET and USE
// would stay with a connection that other pages share.
var asks = regexp.MustCompile(`(?is)^(\s+|--[^\n]*\n|/\*.*?\*/|\()*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS|FROM|VALUES)\b`)

const onlyAsks = "A statement begins with SELECT, WITH, SHOW, DESCRIBE, EXPLAIN or EXISTS here: it asks, and changes nothing."

// queryPage is what pages/query.html shows.
type queryPage struct {
	SQL       string
	Question  *Question // that was chosen of the menu
	Questions []Question
	Fields    []field // a value for each parameter
	Answer    *answer // nil until it is run
	Failed    string  // what ClickHouse says is wrong
	Link      string  // keeps the statement and its values
	Most      int
	Charts    []chart
}

// maxLink bounds a link: proxies and browsers take no longer ones.
const maxLink = 24 << 10

type field struct {
	Parameter
	Value  string
	Moment bool // it is typed in the viewer's zone
}

// query shows a statement, of a link or of the menu, and does not run it: that
// takes the button, whose form is of the session.
func (s *Server) query(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "query", "Query", page)
}

// queryOf reads what is asked from the fields of the page.
func (s *Server) queryOf(r *http.Request, who *session) (*queryPage, error) {
	page := &queryPage{SQL: strings.TrimSpace(r.FormValue("sql")), Questions: s.questions, Most: maxRows}
	if err := who.whole("Answers to statements"); err != nil {
		return nil, err
	}
	if len(page.SQL) > maxStatement {
		return nil, refuse(http.StatusRequestEntityTooLarge, "The statement is longer than %s.", byteSize(maxStatement))
	}
	if i := slices.IndexFunc(s.questions, func(q Question) bool { return q.Name == r.FormValue("question") }); i >= 0 {
		page.Question = &s.questions[i]
		if page.SQL == "" {
			page.SQL = page.Question.SQL
		}
	}
	pairs := []string{"sql", page.SQL}
	if page.Question != nil {
		pairs = append(pairs, "question", page.Question.Name)
	}
	for _, m := range placeholders.FindAllStringSubmatch(page.SQL, -1) {
		if slices.ContainsFunc(page.Fields, func(f field) bool { return f.Name == m[1] }) {
			continue
		}
		f := s.fieldOf(m[1], m[2], time.Now())
		if value, given := r.Form["param_"+f.Name]; given {
			f.Value = value[0]
			pairs = append(pairs, "param_"+f.Name, f.Value)
		}
		page.Fields = append(page.Fields, f)
	}
	if page.Link = link("/query", pairs...); len(page.Link) > maxLink {
		page.Link = ""
	}
	return page, nil
}

// fieldOf is a parameter with its default:
// times are the last 24 hours.
func (s *Server) fieldOf(name, kind string, now time.Time) field {
	f := field{Parameter: Parameter{Name: name, Type: kind}}
	for _, q := range s.questions {
		if i := slices.IndexFunc(q.Parameters, func(p Parameter) bool { return p.Name == name }); i >= 0 {
			f.Parameter = q.Parameters[i]
			f.Type = kind
		}
	}
	f.Value = f.Example
	if ago, is := map[string]time.Duration{"now": 0, "from": 24 * time.Hour, "to": -time.Hour}[name]; is {
		f.Moment, f.Value = true, now.UTC().Add(-ago).Format(time.RFC3339)
	}
	return f
}

// statement is what is run: each parameter with its value.
func (p *queryPage) statement() string {
	return placeholders.ReplaceAllStringFunc(p.SQL, func(hole string) string {
		m := placeholders.FindStringSubmatch(hole)
		i := slices.IndexFunc(p.Fields, func(f field) bool { return f.Name == m[1] })
		value := quote(p.Fields[i].Value)
		if strings.HasPrefix(m[2], "DateTime") { // with a zone, as the page sends it
			value = "parseDateTime64BestEffort(" + value + ", 3, 'UTC')"
		}
		return "CAST(" + value + ", " + quote(strings.TrimSpace(m[2])) + ")"
	})
}

// runQuery runs the statement as the analyst.
func (s *Server) runQuery(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	if page.SQL == "" {
		return refuse(http.StatusBadRequest, "There is no statement to run. Type one, or choose a question.")
	}
	if !asks.MatchString(page.SQL) {
		page.Failed = onlyAsks
		return s.show(w, r, who, "query", "Query", page)
	}
	ctx, cancel := context.WithTimeout(r.Context(), statementTime)
	defer cancel()
	a, err := ask(ctx, s.db, page.statement(), maxRows)
	if err != nil {
		page.Failed = err.Error()
	} else {
		page.Answer, page.Charts = &a, chartsOf(a)
	}
	s.log.Info("a statement was run at the console", "subject", who.Subject(), "rows", len(a.Rows), "took", a.Took.String(), "failed", err != nil)
	return s.show(w, r, who, "query", "Query", page)
}

// queryCSV answers with the rows of a statement as a file.
func (s *Server) queryCSV(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	if !asks.MatchString(page.SQL) {
		page.Failed = onlyAsks
		return s.show(w, r, who, "query", "Query", page)
	}
	ctx, cancel := context.WithTimeout(r.Context(), statementTime)
	defer cancel()
	var file bytes.Buffer // whole before the first byte goes out, so that no half of a file looks like one
	if err := writeCSV(ctx, s.db, page.statement(), maxCSV, &limited{&file, 64 << 20}); err != nil {
		page.Failed = err.Error()
		return s.show(w, r, who, "query", "Query", page)
	}
	name := "query"
	if page.Question != nil {
		name = page.Question.Name
	}
	sendCSV(w, name, &file)
	return nil
}

// limited is a buffer that refuses to grow past some bytes.
type limited struct {
	*bytes.Buffer
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.most {
		return 0, fmt.Errorf("the file would be larger than %s: ask for fewer rows or columns", byteSize(l.most))
	}
	return l.Buffer.Write(p)
}

// viewRow is a column of a view that a statement can read.
type viewRow struct{ View, About, Column, Type, Means string }

const viewsQuery = `SELECT concat(if(c.database = 'flow', '', concat(c.database, '.')), c.table) AS view, t.comment AS about, c.name, c.type, c.comment
FROM system.columns AS c
INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
WHERE c.database = 'flow' AND (t.engine = 'View' OR c.table IN ('records', 'counts_1m')) OR c.database = 'models'
ORDER BY c.database, view, c.position
LIMIT 5000`

// views is the page of what a statement can read; the page of statements shows it beside.
func (s *Server) views(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Views"); err != nil {
		return err
	}
	return s.show(w, r, who, "views", "Views", rowsOf[viewRow](r.Context(), s.db, viewsQuery))
}

// recordPage is what pages/record.html shows: one record, all of it.
type recordPage struct {
	Answer answer
	Back   string
	SQL    string
}

// record shows a record with all its members.
func (s *Server) record(w http.ResponseWriter, r *http.Request, who *session) error {
	sql, err := recordSQL(r, who)
	if err != nil {
		return err
	}
	page := recordPage{SQL: sql, Back: link("/instance", "source", r.FormValue("source"), "key", r.FormValue("instance"))}
	if page.Answer, err = ask(r.Context(), s.db, sql, 1); err != nil {
		return err
	}
	if len(page.Answer.Rows) == 0 {
		return refuse(http.StatusNotFound, "There is no such record, or your token may not see it.")
	}
	return s.show(w, r, who, "record", "Record "+r.FormValue("id"), page)
}

func recordSQL(r *http.Request, who *session) (string, error) {
	day, err := time.Parse(time.DateOnly, r.FormValue("day"))
	key := r.FormValue("key")
	if err != nil || !wholeNumber.MatchString(key) {
		return "", refuse(http.StatusBadRequest, "Which record? The address needs source, instance, day, id and key: follow a link of the page of an instance.")
	}
	return fill(`SELECT * FROM flow.v_records
WHERE source = $source AND process_instance_key = $instance AND toDate(ts) = toDate('$day') AND key = $key AND id = $id AND $tenants
LIMIT 1`, "source", quote(r.FormValue("source")), "instance", quote(r.FormValue("instance")), "day", day.Format(time.DateOnly),
		"key", key, "id", quote(r.FormValue("id")), "tenants", who.only("tenant_id")), nil
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]{1,19}$`)
