package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// kind is a kind of list. A number on any page links to the list of the items it counts;
// the list's first line has the same number.
type kind struct {
	Path, Title string
	Many        string                  // plural of the items
	rows        func(a *asked) string   // statement with one row per item
	columns     []column                // columns shown
	by          []string                // columns to group by; each has a filter
	filters     []filter                // in addition to sharedFilters
	matches     func(a *asked) []string // conditions on rows; may be nil
}

type column struct{ Name, Title string }

// sharedFilters are the filters that all lists have; the first four follow to every page.
var sharedFilters = []filter{
	{Name: "source", Label: "Source", Size: 12, column: "source"},
	{Name: "id", Label: "Process", Size: 14, column: "process"},
	{Name: "version", Label: "Version", Digits: true, Size: 4, column: "process_version"},
	{Name: "tenant", Label: "Tenant", Size: 8, column: "tenant"},
	{Name: "element", Label: "Element", Size: 12, column: "element"},
	{Name: "instance", Label: "Instance", Size: 18, column: "instance", more: true},
	{Name: "as_of", Label: "As of", more: true},
	{Name: "any", Label: "Started", Choices: []choice{{"", "in the period"}, {"1", "at any time"}}},
}

var (
	stateColumns  = []column{{"instance", "Instance"}, {"process", "Process"}, {"element", "Element"}}
	momentColumns = []column{{"state", "State"}, {"began", "Created"}, {"took_ms", "Duration"}, {"source", "Source"}}
)

// between puts a kind's own columns between those of every list.
func between(own ...column) []column {
	return slices.Concat(stateColumns, own, momentColumns)
}

func statesOf(names ...string) filter {
	f := filter{Name: "state", Label: "State", column: "state", Choices: []choice{{"", "any"}}}
	for _, name := range names {
		f.Choices = append(f.Choices, choice{name, name})
	}
	return f
}

// viewRows reads a view with one row per item of an instance, such as a job.
func viewRows(view, columns, at string) func(a *asked) string {
	return func(a *asked) string {
		seed := a.Window.within(at)
		if a.Anytime() {
			seed = "1"
		}
		if a.Value("instance") != "" {
			seed = "process_instance_key = " + quote(a.Value("instance"))
		}
		if a.only != "" {
			seed = a.only
		}
		if source := a.Value("source"); source != "" {
			seed = "source = " + quote(source) + " AND " + seed
		}
		return "SELECT source, process_instance_key AS instance, key, tenant_id AS tenant, element_id AS element, " + columns +
			"\n    FROM " + view + " AS v\n    WHERE " + seed + " AND " + a.who.only("tenant_id")
	}
}

var overdue = filter{Name: "overdue", Label: "Overdue", Choices: []choice{{"", "any"}, {"1", "overdue"}}}

func isOverdue(a *asked) []string {
	if a.Value("overdue") == "" {
		return nil
	}
	return []string{"due < " + moment(a.who.at)}
}

// kinds are all lists, in menu order.
var kinds = []*kind{
	instanceKind,
	{
		Path: "/elements", Title: "Elements", Many: "element executions", rows: (*asked).elementRows,
		columns: between(column{"type", "Type"}), by: []string{"element", "state"},
		filters: []filter{{Name: "type", Label: "Type", column: "type", Size: 14}, statesOf("ACTIVE", "COMPLETED", "TERMINATED"), {Name: "variant", Label: "Variant", Digits: true, Size: 8, more: true}},
	},
	{
		Path: "/incidents", Title: "Incidents", Many: "incidents",
		rows:    viewRows("flow.v_incidents", "bpmn_process_id AS process, error_type AS type, substringUTF8(error_message, 1, 200) AS message, if(v.open, 'OPEN', 'RESOLVED') AS state, created_at AS began, resolution_ms AS took_ms", "created_at"),
		columns: between(column{"type", "Type"}, column{"message", "Message"}), by: []string{"type", "message"},
		filters: []filter{{Name: "type", Label: "Type", column: "type", Size: 18}, {Name: "message", Label: "Message", column: "message", Size: 20, more: true}, statesOf("OPEN", "RESOLVED")},
	},
	{
		Path: "/jobs", Title: "Jobs", Many: "jobs",
		rows:    viewRows("flow.v_jobs", "bpmn_process_id AS process, version AS process_version, job_type AS type, worker, v.state AS state, deadline_at AS due, retries, failures, created_at AS began, duration_ms AS took_ms", "created_at"),
		columns: between(column{"type", "Type"}, column{"worker", "Worker"}, column{"retries", "#Retries left"}, column{"failures", "#Failures"}), by: []string{"type", "worker", "state"},
		filters: []filter{{Name: "type", Label: "Type", column: "type", Size: 12}, {Name: "worker", Label: "Worker", column: "worker", Size: 12}, statesOf("CREATED", "ACTIVATED", "FAILED", "TIMED_OUT", "ERROR_THROWN", "COMPLETED", "CANCELED"), overdue}, matches: isOverdue,
	},
	{
		Path: "/tasks", Title: "User tasks", Many: "user tasks",
		rows:    viewRows("flow.v_user_tasks", "bpmn_process_id AS process, version AS process_version, assignee, v.state AS state, due_at AS due, created_at AS began, duration_ms AS took_ms", "created_at"),
		columns: between(column{"assignee", "Assignee"}, column{"due", "Due"}), by: []string{"element", "assignee", "state"},
		filters: []filter{{Name: "assignee", Label: "Assignee", column: "assignee", Size: 12}, statesOf("CREATED", "COMPLETED", "CANCELED"), overdue}, matches: isOverdue,
	},
	{
		Path: "/timers", Title: "Timers", Many: "timers",
		rows:    viewRows("flow.v_timers", "bpmn_process_id AS process, v.state AS state, due_at AS due, created_at AS began, dateDiff('millisecond', created_at, coalesce(triggered_at, canceled_at)) AS took_ms", "created_at"),
		columns: between(column{"due", "Due"}), by: []string{"element", "state"},
		filters: []filter{statesOf("WAITING", "TRIGGERED", "CANCELED"), overdue}, matches: isOverdue,
	},
	{
		Path: "/messages", Title: "Messages", Many: "message subscriptions",
		rows:    viewRows("flow.v_message_waits", "bpmn_process_id AS process, message_name AS name, correlation_key AS correlation, v.state AS state, created_at AS began, dateDiff('millisecond', created_at, coalesce(correlated_at, deleted_at)) AS took_ms", "created_at"),
		columns: between(column{"name", "Message"}, column{"correlation", "Correlation key"}), by: []string{"name", "state"},
		filters: []filter{{Name: "name", Label: "Message", column: "name", Size: 14}, {Name: "correlation", Label: "Correlation key", column: "correlation", Size: 14}, statesOf("WAITING", "CORRELATED", "DELETED")},
	},
	{
		Path: "/decisions", Title: "Decisions", Many: "decision evaluations",
		rows:    viewRows("flow.v_decisions", "bpmn_process_id AS process, decision_id AS name, v.state AS state, substringUTF8(if(failure = '', output, failure), 1, 200) AS message, evaluated_at AS began, toInt64OrNull('') AS took_ms", "evaluated_at"),
		columns: between(column{"name", "Decision"}, column{"message", "Result"}), by: []string{"name", "state"},
		filters: []filter{{Name: "name", Label: "Decision", column: "name", Size: 14}, statesOf("EVALUATED", "FAILED")},
	},
}

// asked is a list as its URL requests it.
type asked struct {
	Kind    *kind
	Filters filters
	Window  window
	Sort    string // a column; - before it: descending
	Page    int    // from 1 on

	who  *session
	at   *url.URL
	only string // condition that selects the instances to read; empty: those of the filters
}

func (a *asked) Value(name string) string { return a.Filters.Value(name) }

// Anytime reports whether the list ignores the window, as the list of one instance does.
func (a *asked) Anytime() bool {
	return a.Value("any") != "" || a.Value("instance") != "" || a.Value("at") != ""
}

func askedOf(r *http.Request, who *session, k *kind) (*asked, error) {
	if text := r.FormValue("as_of"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "%q is not a time such as 2026-01-31T12:00:00Z.", text)
		}
		then := *who
		then.at, who = at, &then
	}
	a := &asked{Kind: k, Window: windowOf(r, who.at), who: who, at: r.URL, Page: 1}
	all := slices.Clone(sharedFilters)
	if !strings.Contains(k.rows(&asked{Kind: k, who: who}), "process_version") {
		all = slices.DeleteFunc(all, func(f filter) bool { return f.Name == "version" })
	}
	if k == instanceKind { // instances have no element column: instanceRows applies the filter
		all[slices.IndexFunc(all, func(f filter) bool { return f.Name == "element" })].column = ""
	}
	a.Filters = filtersOf(r, slices.Concat(k.filters, all)...)
	if a.Window.Err != nil {
		return nil, a.Window.Err
	}
	a.Sort = r.FormValue("sort")
	if !slices.ContainsFunc(k.columns, func(c column) bool { return c.Name == strings.TrimPrefix(a.Sort, "-") }) {
		a.Sort = "-began"
	}
	if n, err := strconv.Atoi(r.FormValue("page")); err == nil && n > 1 && n <= 1e6 {
		a.Page = n
	}
	return a, a.Filters.Check()
}

// from is the FROM and WHERE clauses that select one row per item.
func (a *asked) from() string {
	conditions := []string{a.Filters.Condition()}
	if a.Kind.matches != nil {
		conditions = append(conditions, a.Kind.matches(a)...)
	}
	return "FROM\n(\n    " + a.Kind.rows(a) + "\n)\nWHERE " + strings.Join(conditions, " AND ")
}

func (a *asked) order() string {
	name, down := strings.CutPrefix(a.Sort, "-")
	return "\nORDER BY " + name + map[bool]string{true: " DESC NULLS LAST", false: ""}[down] + ", source, instance, key"
}

func (a *asked) list(columns string) string { return "SELECT " + columns + "\n" + a.from() + a.order() }

// names are the columns shown, with those that links need.
func (a *asked) names() string {
	all := []string{"key"}
	for _, c := range a.Kind.columns {
		all = append(all, c.Name)
	}
	if a.has("version") {
		all = append(all, "process_version")
	}
	if a.Kind == instanceKind {
		all = append(all, "open")
	}
	return strings.Join(all, ", ")
}

func (a *asked) has(filter string) bool {
	return slices.ContainsFunc(a.Filters, func(f filterOf) bool { return f.Name == filter && !f.Hidden })
}

const shownOnPage = 100

// sum is the count of a list's items, and their durations.
type sum struct {
	Count           uint64
	P50, P95, Total *int64 // ms, of ended items
}

const sumColumns = `count(), toInt64OrNull(toString(round(quantileExactInclusive(0.5)(took_ms)))) AS p50, toInt64OrNull(toString(round(quantileExactInclusive(0.95)(took_ms)))) AS p95, toInt64(sum(took_ms)) AS total`

// maxGroups is the number of groups that a list shows.
const maxGroups = 15

// sums reads the sum of the list, and its largest groups: one statement, because reading the
// rows costs most.
func (s *Server) sums(ctx context.Context, a *asked) (section[sum], []group) {
	sql, by := "SELECT "+sumColumns, strings.Join(a.Kind.by, ", ")
	if by == "" {
		return rowsOf[sum](ctx, s.db, sql+"\n"+a.from()), nil
	}
	names := make([]string, len(a.Kind.by))
	for i, column := range a.Kind.by {
		names[i] = "toString(any(" + column + "))"
	}
	type counted struct {
		sum
		Names []string
	}
	all := rowsOf[counted](ctx, s.db, fmt.Sprintf("%s, [%s] AS names\n%s\nGROUP BY cityHash64(%s) AS one WITH ROLLUP\nORDER BY grouping(one) DESC, count() DESC, names\nLIMIT %d", sql, strings.Join(names, ", "), a.from(), by, maxGroups+1))
	total := section[sum]{SQL: all.SQL, Err: all.Err}
	var groups []group
	if total.Rows = make([]sum, 1); len(all.Rows) > 0 { // there is no row of nothing
		total.Rows[0] = all.Rows[0].sum
		for _, row := range all.Rows[1:] {
			groups = append(groups, a.group(row.Names, row.Count))
		}
	}
	return total, groups
}

type listPage struct {
	*asked
	Kinds  []*kind
	Sum    section[sum]
	Was    section[sum] // of the period before, if compared
	Answer answer
	Err    error
	SQL    string
	Groups []group // the most frequent values of Kind.by
	Why    map[string]string
}

func (s *Server) list(k *kind) func(http.ResponseWriter, *http.Request, *session) error {
	return func(w http.ResponseWriter, r *http.Request, who *session) error {
		a, err := askedOf(r, who, k)
		if err != nil {
			return err
		}
		return s.show(w, r, who, "list", k.Title, s.listData(r.Context(), a))
	}
}

// listData reads all parts in parallel.
func (s *Server) listData(ctx context.Context, a *asked) *listPage {
	p := &listPage{asked: a, Kinds: kinds}
	var g errgroup.Group
	g.Go(func() error { p.Sum, p.Groups = s.sums(ctx, a); return nil })
	if a.Window.Compare && !a.Anytime() {
		before := *a
		before.Window = a.Window.Before()
		g.Go(func() error { p.Was = rowsOf[sum](ctx, s.db, "SELECT "+sumColumns+"\n"+before.from()); return nil })
	}
	g.Go(func() error {
		p.SQL = a.list(a.names())
		p.Answer, p.Err = s.rowsOfPage(ctx, a)
		if p.Err == nil && a.Kind == instanceKind {
			p.Why = s.why(ctx, a, p.Answer)
		}
		return nil
	})
	_ = g.Wait() // each part has its own error
	return p
}

// rowsOfPage reads the keys of the page's rows and then their columns: ordering all rows of a list
// reads few columns that way, and a condition on instances is applied before rows are merged.
func (s *Server) rowsOfPage(ctx context.Context, a *asked) (answer, error) {
	type place struct{ Source, Instance, Key string }
	keys := func(a *asked) section[place] {
		return rowsOf[place](ctx, s.db, a.list("source, instance, toString(key)")+fmt.Sprintf("\nLIMIT %d OFFSET %d", shownOnPage, (a.Page-1)*shownOnPage))
	}
	var found section[place]
	if a.Sort == "-began" && !a.Anytime() && a.Value("variant") == "" { // the newest rows are in the end of the window
		end := *a
		end.Window.From = a.Window.To.Add(a.Window.From.Sub(a.Window.To) / 16)
		found = keys(&end)
	}
	if len(found.Rows) < shownOnPage {
		found = keys(a)
	}
	if found.Err != nil || len(found.Rows) == 0 {
		return answer{}, found.Err
	}
	var instances, pairs []string
	for _, at := range found.Rows {
		instances, pairs = append(instances, quote(at.Instance)), append(pairs, "("+quote(at.Source)+", "+quote(at.Key)+")")
	}
	all, of := strings.Join(instances, ", "), *a
	of.only = "process_instance_key IN (" + all + ") AND bitAnd(toInt64OrZero(process_instance_key), 2251799813685247) IN (SELECT bitAnd(toInt64OrZero(arrayJoin([" + all + "])), 2251799813685247))" // the sorting key
	return ask(ctx, s.db, "SELECT "+a.names()+"\nFROM\n(\n    "+a.Kind.rows(&of)+"\n)\nWHERE (source, key) IN ("+strings.Join(pairs, ", ")+")"+a.order(), shownOnPage)
}

// listCSV serves all rows of a list as a file.
func (s *Server) listCSV(k *kind) func(http.ResponseWriter, *http.Request, *session) error {
	return func(w http.ResponseWriter, r *http.Request, who *session) error {
		a, err := askedOf(r, who, k)
		if err != nil {
			return err
		}
		ctx, cancel := timed(r.Context(), statementTime, "file")
		defer cancel()
		var file bytes.Buffer // complete before the first byte is sent
		if err := writeCSV(ctx, s.db, a.list(a.names()), maxCSV, &limited{&file, 64 << 20}); err != nil {
			return err
		}
		sendCSV(w, strings.TrimPrefix(k.Path, "/"), &file)
		return nil
	}
}

func sendCSV(w http.ResponseWriter, name string, file *bytes.Buffer) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
	_, _ = w.Write(file.Bytes()) // fails only when the browser has disconnected
}
