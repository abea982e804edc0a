package console

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Question is a question of docs/analytics.md with the statement that answers it.
type Question struct {
	Name, Asks, Means string
	SQL               string // with parameters as {name:Type}
	Parameters        []Parameter
}

// Parameter is a query parameter, {name:Type} in a statement.
type Parameter struct{ Name, Type, Means, Example string }

// Limits of a typed statement. ClickHouse has further limits for the analyst.
const (
	maxStatement  = 64 << 10 // bytes
	maxRows       = 1000     // on the page
	maxCSV        = 100_000  // in a file
	statementTime = 60 * time.Second
)

var placeholders = regexp.MustCompile(`\{(\w+):\s*([^{}]+)\}`)

// asks matches the start of a read-only statement, after comments. SET and USE would
// persist on a connection that other pages share.
var asks = regexp.MustCompile(`(?is)^(\s+|--[^\n]*\n|/\*.*?\*/|\()*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS|FROM|VALUES)\b`)

const onlyAsks = "Queries are read-only: begin with SELECT, WITH, SHOW, DESCRIBE, EXPLAIN, or EXISTS."

type queryPage struct {
	SQL       string
	Question  *Question // chosen in the menu
	Questions []Question
	Fields    []field // one per parameter
	Filters   filters // of other pages, as default of a parameter
	Answer    *answer // nil until the statement has run
	Failed    string  // error of ClickHouse
	Link      string  // URL with the statement and its values
	Max       int
	Charts    []chart
}

// maxLink is the longest link that is offered: proxies and browsers reject longer ones.
const maxLink = 24 << 10

type field struct {
	Parameter
	Value  string
	Moment bool // edited in the viewer's time zone
}

// query shows a statement from a link or the menu without running it. Only the form
// runs it, since its CSRF token proves that the user wants that.
func (s *Server) query(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "query", "Query", page)
}

func (s *Server) queryOf(r *http.Request, who *session) (*queryPage, error) {
	page := &queryPage{SQL: strings.TrimSpace(strings.ReplaceAll(r.FormValue("sql"), "\r\n", "\n")), Questions: s.questions, Max: maxRows}
	if err := who.whole("Query results"); err != nil {
		return nil, err
	}
	if len(page.SQL) > maxStatement {
		return nil, refuse(http.StatusRequestEntityTooLarge, "The query is longer than %s.", byteSize(maxStatement))
	}
	if i := slices.IndexFunc(s.questions, func(q Question) bool { return q.Name == r.FormValue("question") }); i >= 0 {
		page.Question = &s.questions[i]
		if page.SQL == "" {
			page.SQL = page.Question.SQL
		}
	}
	pairs := []string{"sql", page.SQL}
	if page.Question != nil {
		if page.SQL == page.Question.SQL {
			pairs = nil
		}
		pairs = append(pairs, "question", page.Question.Name)
	}
	period := windowOf(r, time.Now())
	if period.Err != nil {
		return nil, period.Err
	}
	for _, m := range placeholders.FindAllStringSubmatch(page.SQL, -1) {
		if slices.ContainsFunc(page.Fields, func(f field) bool { return f.Name == m[1] }) {
			continue
		}
		f := s.fieldOf(m[1], m[2], period)
		filtered := filter{Name: map[string]string{"source": "source", "process": "id", "tenant": "tenant"}[f.Name]}
		if filtered.Value = r.FormValue(filtered.Name); filtered.Value != "" {
			f.Value = filtered.Value
		}
		if value, given := r.Form["param_"+f.Name]; given {
			f.Value = value[0]
			pairs = append(pairs, "param_"+f.Name, f.Value)
		}
		if filtered.Value != "" && filtered.Value == f.Value {
			filtered.Label = strings.ToUpper(f.Name[:1]) + f.Name[1:]
			page.Filters = append(page.Filters, filtered)
		}
		page.Fields = append(page.Fields, f)
	}
	if page.Link = withShared(r.URL, "/query", pairs...); len(page.Link) > maxLink {
		page.Link = ""
	}
	return page, nil
}

// fieldOf is a parameter with its default; from and to are those of the period.
func (s *Server) fieldOf(name, kind string, period window) field {
	f := field{Parameter: Parameter{Name: name, Type: kind}}
	for _, q := range s.questions {
		if i := slices.IndexFunc(q.Parameters, func(p Parameter) bool { return p.Name == name }); i >= 0 {
			f.Parameter = q.Parameters[i]
			f.Type = kind
		}
	}
	f.Value = f.Example
	if at, is := map[string]time.Time{"now": period.Asked, "from": period.From, "to": period.To}[name]; is {
		f.Moment, f.Value = true, at.UTC().Format(time.RFC3339)
	}
	return f
}

// statement replaces each parameter by its quoted value.
func (p *queryPage) statement() string {
	return placeholders.ReplaceAllStringFunc(p.SQL, func(hole string) string {
		m := placeholders.FindStringSubmatch(hole)
		i := slices.IndexFunc(p.Fields, func(f field) bool { return f.Name == m[1] })
		value := quote(p.Fields[i].Value)
		if strings.HasPrefix(m[2], "DateTime") { // the page sends it with a time zone
			value = "parseDateTime64BestEffort(" + value + ", 3, 'UTC')"
		}
		return "CAST(" + value + ", " + quote(strings.TrimSpace(m[2])) + ")"
	})
}

func (s *Server) runQuery(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	if page.SQL == "" {
		return refuse(http.StatusBadRequest, "The query is empty: type one or choose a question.")
	}
	if !asks.MatchString(page.SQL) {
		page.Failed = onlyAsks
		return s.show(w, r, who, "query", "Query", page)
	}
	ctx, cancel := timed(r.Context(), statementTime, "query")
	defer cancel()
	a, err := ask(ctx, s.db, page.statement(), maxRows)
	if err != nil {
		page.Failed = err.Error()
	} else {
		page.Answer, page.Charts = &a, chartsOf(a)
	}
	s.log.Info("console: query run", "subject", who.Subject(), "rows", len(a.Rows), "took", a.Took.String(), "failed", err != nil)
	return s.show(w, r, who, "query", "Query", page)
}

// queryCSV serves the rows of a statement as a file.
func (s *Server) queryCSV(w http.ResponseWriter, r *http.Request, who *session) error {
	page, err := s.queryOf(r, who)
	if err != nil {
		return err
	}
	if !asks.MatchString(page.SQL) {
		page.Failed = onlyAsks
		return s.show(w, r, who, "query", "Query", page)
	}
	ctx, cancel := timed(r.Context(), statementTime, "query")
	defer cancel()
	var file bytes.Buffer // complete before the first byte is sent: a truncated file looks complete
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

// limited is a buffer with a maximum size.
type limited struct {
	*bytes.Buffer
	limit int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.limit {
		return 0, fmt.Errorf("the file would be larger than %s: select fewer rows or columns", byteSize(l.limit))
	}
	return l.Buffer.Write(p)
}

// viewRow is a column of a view that statements can read.
type viewRow struct{ View, About, Column, Type, Means string }

const viewsQuery = `SELECT concat(if(c.database = 'flow', '', concat(c.database, '.')), c.table) AS view, t.comment AS about, c.name, c.type, c.comment
FROM system.columns AS c
INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
WHERE c.database = 'flow' AND (t.engine = 'View' OR c.table IN ('records', 'counts_1m')) OR c.database = 'models'
ORDER BY c.database, view, c.position
LIMIT 5000`

// views lists the views that statements can read. The query page shows it at the side.
func (s *Server) views(w http.ResponseWriter, r *http.Request, who *session) error {
	if err := who.whole("Views"); err != nil {
		return err
	}
	return s.show(w, r, who, "views", "Views", rowsOf[viewRow](r.Context(), s.db, viewsQuery))
}

type recordPage struct {
	Answer answer
	Back   string
	SQL    string
}

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
		return refuse(http.StatusNotFound, "The record does not exist, or your token cannot read it.")
	}
	return s.show(w, r, who, "record", "Record "+r.FormValue("id"), page)
}

func recordSQL(r *http.Request, who *session) (string, error) {
	day, err := time.Parse(time.DateOnly, r.FormValue("day"))
	key := r.FormValue("key")
	if err != nil || !wholeNumber.MatchString(key) {
		return "", refuse(http.StatusBadRequest, "The address lacks source, instance, day, id, or key: follow a link on the page of an instance.")
	}
	return fill(`SELECT * FROM flow.v_records
WHERE source = $source AND process_instance_key = $instance AND toDate(ts) = toDate('$day') AND key = $key AND id = $id AND $tenants
LIMIT 1`, "source", quote(r.FormValue("source")), "instance", quote(r.FormValue("instance")), "day", day.Format(time.DateOnly),
		"key", key, "id", quote(r.FormValue("id")), "tenants", who.only("tenant_id")), nil
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]{1,19}$`)
