package console

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"
)

// asked is what is looked for among instances.
type asked struct {
	Filters filters
	Window  window
}

var states = []choice{{"", "any"}, {"ACTIVE", "ACTIVE"}, {"INCIDENT", "INCIDENT"}, {"COMPLETED", "COMPLETED"}, {"CANCELED", "CANCELED"}}

// askedOf reads an address.
func askedOf(r *http.Request, now time.Time) (a asked, err error) {
	a.Window = windowOf(r, now)
	a.Filters = filtersOf(r,
		filter{Name: "q", Label: "Key, variable (name=value) or text of an error", Size: 40},
		filter{Name: "id", Label: "Process", column: "process"},
		filter{Name: "source", Label: "Source", column: "source"},
		filter{Name: "version", Label: "Version", Digits: true, Size: 4, column: "process_version"},
		filter{Name: "state", Label: "State", Choices: states},
		filter{Name: "window", Label: "Began in the", Choices: windowNames, Value: a.Window.Name},
	)
	return a, a.Filters.Check()
}

// Text is a key, name=value of a variable, or a text of an error or a value.
func (a asked) Text() string { return a.Filters.Value("q") }

// ongoing tells whether instances that are active are looked for.
func (a asked) ongoing() bool {
	state := a.Filters.Value("state")
	return state == "ACTIVE" || state == "INCIDENT"
}

// hit is an instance that was found, and why.
type hit struct {
	instanceRow
	Why string
}

// maxHits is how many instances the page shows.
const maxHits = 100

var nameValue = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$`)

// instancesPage is what pages/instances.html shows.
type instancesPage struct {
	asked
	Found section[hit]
	Now   time.Time
}

// instances is the page that lists instances and looks for them.
func (s *Server) instances(w http.ResponseWriter, r *http.Request, who *session) error {
	a, err := askedOf(r, who.at)
	if err != nil {
		return err
	}
	return s.show(w, r, who, "instances", "Instances", instancesPage{a, s.search(r.Context(), who, a), who.at})
}

// search finds instances by what is typed.
func (s *Server) search(ctx context.Context, who *session, a asked) section[hit] {
	text := a.Text()
	m := nameValue.FindStringSubmatch(text)
	switch {
	case text == "":
		return s.latest(ctx, who, a)
	case onlyDigits.MatchString(text):
		return s.byKey(ctx, who, text)
	case m != nil:
		return s.byText(ctx, who, a, s.withVariable(who, a, m[1], m[2]))
	}
	return s.byText(ctx, who, a, s.withVariable(who, a, "", text), s.withError(who, a, text))
}

const latestSQL = `
SELECT $columns
FROM
(
    $instances
)
WHERE $filters
ORDER BY ifNull(started, noticed) DESC, source, instance
LIMIT $limit`

// conditions of the states that can be chosen.
var ofState = map[string]string{
	"ACTIVE": "reached < 3", "INCIDENT": "reached < 3 AND open > 0", "COMPLETED": "reached = 3", "CANCELED": "reached = 4",
}

// condition is what the fields of the page set.
func (a asked) condition() string {
	all := a.Filters.Condition()
	if state := ofState[a.Filters.Value("state")]; state != "" {
		all += " AND " + state
	}
	return all
}

// seed finds rows of the instances that may be shown: those that are active need not
// have begun in the window.
func (a asked) seed() string {
	seed := a.Window.within("started_at")
	if a.ongoing() {
		seed = "state < 3"
	}
	return a.ofSource() + seed
}

func (a asked) ofSource() string {
	if source := a.Filters.Value("source"); source != "" {
		return "source = " + quote(source) + " AND "
	}
	return ""
}

// rows leaves those instances.
func (a asked) rows() string {
	if !a.ongoing() {
		return a.seed()
	}
	return found(active(a.ofSource() + "1"))
}

// latest are the instances that began last. Where it does not matter which they are,
// only the time is looked at in which the last ones began, however many began in the
// window.
func (s *Server) latest(ctx context.Context, who *session, a asked) section[hit] {
	rows := a.rows()
	if v := a.Filters.Value; v("id")+v("version")+v("state") == "" && !who.Limited() {
		rows = fmt.Sprintf("%s AND started_at >=\n        (SELECT min(started_at) FROM (SELECT started_at FROM flow.process_instances WHERE %[1]s ORDER BY started_at DESC LIMIT %d))", a.seed(), lately)
	}
	return s.hits(ctx, "", fill(latestSQL, "columns", instanceColumns, "filters", a.condition(), "limit", itoa(maxHits),
		"instances", fill(instancesOf, "rows", rows, "tenants", who.only("tenant"))))
}

// hits are the instances of a statement, all found for the same reason.
func (s *Server) hits(ctx context.Context, why, sql string) section[hit] {
	p := rowsOf[hit](ctx, s.db, sql)
	for i := range p.Rows {
		p.Rows[i].Why = why
	}
	return p
}

// byKey finds the instance with a key, else those that have a record with it: of
// an element, a job, an incident, a variable.
func (s *Server) byKey(ctx context.Context, who *session, key string) section[hit] {
	of := func(rows string) string {
		return fill(latestSQL, "columns", instanceColumns, "filters", "1", "limit", itoa(maxHits),
			"instances", fill(instancesOf, "rows", rows, "tenants", who.only("tenant")))
	}
	p := s.hits(ctx, "is its key", of("process_instance_key = "+quote(key)))
	if p.Err != nil || len(p.Rows) > 0 {
		return p
	}
	return s.hits(ctx, "is a key in it", of(fmt.Sprintf(
		"(source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.records WHERE key = %s AND %s LIMIT 10)", key, who.only("tenant_id"))))
}

// clue finds instances by a text of theirs: SQL with the columns source,
// instance and why.
type clue string

// withVariable finds values of variables, of the instances that the page is
// about: there is no index of values.
func (s *Server) withVariable(who *session, a asked, name, value string) clue {
	condition := fmt.Sprintf("(position(created, %s) > 0 OR position(updated, %s) > 0)", quote(value), quote(value))
	if name != "" {
		condition = "name = " + quote(name) + " AND " + condition
	}
	return clue(fmt.Sprintf(`SELECT source, process_instance_key AS instance, concat(name, ' = ', substring(if(updated = '', created, substring(updated, 37)), 1, 120)) AS why
    FROM flow.variables
    WHERE %s AND %s AND (source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM flow.process_instances WHERE %s)
    LIMIT 1000`, condition, who.only("tenant_id"), a.seed()))
}

// withError finds what incidents and failed jobs say, in the window.
func (s *Server) withError(who *session, a asked, text string) clue {
	return clue(fmt.Sprintf(`SELECT source, process_instance_key AS instance, concat(if(error_type = '', '', concat(error_type, ': ')), substring(error_message, 1, 160)) AS why
    FROM flow.records
    WHERE value_type IN ('JOB', 'INCIDENT') AND record_type = 'EVENT' AND intent IN ('FAILED', 'ERROR_THROWN', 'CREATED') AND %s AND %s
        AND positionCaseInsensitive(concat(error_type, ' ', error_message), %s) > 0
    ORDER BY ts DESC
    LIMIT 1000`, a.Window.within("ts"), who.only("tenant_id"), quote(text)))
}

// byText finds the instances of clues.
func (s *Server) byText(ctx context.Context, who *session, a asked, clues ...clue) section[hit] {
	found := make([]section[hit], len(clues))
	var g errgroup.Group
	for i, c := range clues {
		g.Go(func() error {
			found[i] = s.followClue(ctx, who, a, c)
			return nil // each keeps its own error
		})
	}
	_ = g.Wait()
	all := found[0]
	seen := map[string]bool{}
	for _, h := range all.Rows {
		seen[h.Source+" "+h.Key] = true
	}
	for _, p := range found[1:] {
		all.Also = p.SQL
		if p.Err != nil {
			all.Err = p.Err
		}
		for _, h := range p.Rows {
			if !seen[h.Source+" "+h.Key] && len(all.Rows) < maxHits {
				all.Rows = append(all.Rows, h)
			}
		}
	}
	return all
}

// A clue reads much for few instances, so it is one value, which is made once however
// often it is named.
const clueSQL = `
WITH
    (
        SELECT groupArray((toString(source), instance, why)) FROM
        (SELECT source, instance, any(why) AS why FROM ($clue) GROUP BY source, instance LIMIT 300)
    ) AS clues
SELECT $columns, why
FROM
(
    $instances
) AS i
GLOBAL INNER JOIN
(
    SELECT clue.1 AS source, clue.2 AS instance, clue.3 AS why FROM (SELECT arrayJoin(clues) AS clue)
) AS c ON c.source = i.source AND c.instance = i.instance
WHERE $filters
ORDER BY ifNull(started, noticed) DESC, source, instance
LIMIT $limit`

func (s *Server) followClue(ctx context.Context, who *session, a asked, c clue) section[hit] {
	return rowsOf[hit](ctx, s.db, fill(clueSQL, "columns", instanceColumns, "filters", a.condition(), "limit", itoa(maxHits), "clue", string(c),
		"instances", fill(instancesOf, "rows", "(source, process_instance_key) GLOBAL IN (SELECT clue.1, clue.2 FROM (SELECT arrayJoin(clues) AS clue))", "tenants", who.only("tenant"))))
}
