package console

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// A number on a page is a link to what makes it: a metric, or the statement that
// its page has asked, around which another leaves that number alone. A link names
// the page, the moment at which it was asked, the number and its row:
//
//	/query?of=/process?id=order&at=1763705000000&get=heat.p50&row=id:pack
//
// The statement is made from these when the link is followed: it is too long to
// stand beside each number, and a token of some tenants cannot change it.

// made says what of the rows of its section's statement each number is. $at is the
// moment of the page.
var made = map[string]string{
	"list.instances": "sum(instances)",
	"list.active":    "sum(active)",
	"list.incidents": "sum(incidents)",
	"list.failed":    "if(sum(instances) = 0, 0, round(100 * sum(failed) / sum(instances), 1))",
	"list.p50":       "any(p50)",
	"list.p95":       "any(p95)",

	"versions.instances":  "sum(instances)",
	"versions.active":     "sum(active)",
	"versions.completed":  "sum(completed)",
	"versions.terminated": "sum(terminated)",
	"versions.incidents":  "if(sum(instances) = 0, 0, round(100 * sum(with_incidents) / sum(instances), 1))",
	"versions.p50":        "any(p50)",
	"versions.p95":        "any(p95)",
	"bars.instances":      "count()",
	"heat.executions":     "sum(executions)",
	"heat.terminated":     "sum(terminated)",
	"heat.p50":            "any(p50)",
	"heat.p95":            "any(p95)",
	"heat.total":          "sum(total)",
	"turns.executions":    "sumIf(executions, type != 'MULTI_INSTANCE_BODY')",
	"tokens.active":       "sum(active)",
	"troubles.incidents":  "sum(incidents)",
	"troubles.open":       "sum(open)",
	"variants.instances":  "sum(instances)",
	"variants.p50":        "any(p50)",
	"follows.times":       "sum(times)",
	"follows.p50":         "any(p50)",

	"instance.took":     lasted("any(started)", "any(ended)"),
	"instance.raised":   "any(raised_incidents)",
	"instance.open":     "any(open_incidents)",
	"steps.times":       "countIf(type != 'PROCESS')",
	"spans.took":        lasted("any(begun)", "any(ended)"),
	"spans.failures":    "any(times_failed)",
	"spans.work":        "countIf(kind != 'incident')",
	"spans.open":        "countIf(kind = 'incident' AND state = 'OPEN')",
	"variables.changes": "any(changes)",
	"variables.size":    "any(size)",
	"records.shown":     "least(count(), " + strconv.Itoa(maxRecords) + ")",

	"partitions.records": "any(records)",
	"partitions.last":    "any(last_position)",
	"partitions.behind":  "dateDiff('millisecond', any(last_ts), $at)",
}

// lasted is how long something took, or has taken until the moment of the page, in
// ms; 0 when it is not known when it began.
func lasted(begun, ended string) string {
	return "ifNull(if(" + ended + " IS NULL, greatest(dateDiff('millisecond', " + begun + ", $at), 0), dateDiff('millisecond', " + begun + ", " + ended + ")), 0)"
}

// spread is what stands between a section's statement and its numbers, where one
// row of the statement is several rows of the page, or has no name of its own.
var spread = map[string]string{
	"bars":     "SELECT process_version, arrayJoin(steps) AS step\nFROM\n(\n$statement\n)",
	"variants": "SELECT arrayStringConcat(path, ' → ') AS way, instances, p50\nFROM\n(\n$statement\n)",
}

// columnName is what may stand before the : of a row.
var columnName = regexp.MustCompile(`^[a-z][a-z_0-9]*$`)

// numbers is where the links of a page's numbers lead.
func numbers(of string, at time.Time) string {
	return "/query?of=" + urlQuery(of) + "&at=" + itoa(at.UnixMilli())
}

// Cells is the frame for numbers in tables: Tab passes over their links. With
// the keyboard one follows the one link to the query of the whole table.
func (f frame) Cells() frame {
	f.inTable = true
	return f
}

// Of is the frame for numbers of another page, whose statements are the same.
func (f frame) Of(page string) frame {
	f.Numbers = numbers(page, f.Who.at)
	return f
}

// href is where a number leads; row are pairs of a column and its value.
func (f frame) href(name string, row ...any) string {
	values := url.Values{"get": {name}}
	for i := 0; i+1 < len(row); i += 2 {
		values.Add("row", fmt.Sprint(row[i])+":"+fmt.Sprint(row[i+1]))
	}
	return f.Numbers + "&" + values.Encode()
}

// figure is a number as a link.
func (f frame) figure(name, text, exact string, row ...any) template.HTML {
	tab := ""
	if f.inTable {
		tab = ` tabindex="-1"`
	}
	if exact != "" {
		exact = ` title="` + template.HTMLEscapeString(exact) + `"`
	}
	return template.HTML(`<a class="fig"` + tab + exact + ` href="` + template.HTMLEscapeString(f.href(name, row...)) + `">` + template.HTMLEscapeString(text) + `</a>`)
}

// count is a number of things.
func (f frame) count(name string, n any, row ...any) template.HTML {
	return f.figure(name, number(n), "", row...)
}

// lasts is how long something takes, a time.Duration or milliseconds that may not
// be known; the exact time is in the tooltip.
func (f frame) lasts(name string, value any, row ...any) template.HTML {
	var d time.Duration
	switch v := value.(type) {
	case time.Duration:
		d = v
	case *int64:
		if v == nil {
			return unmeasured
		}
		d = time.Duration(*v) * time.Millisecond
	}
	return f.figure(name, span(d), number(d.Milliseconds())+" ms", row...)
}

// unmeasured stands where there is no number.
const unmeasured = "–"

// share is a part of a whole.
func (f frame) share(name string, part float64, row ...any) template.HTML {
	return f.figure(name, percent(part), "", row...)
}

// query is where the statement of a section of the page leads.
func (f frame) query(section string) string {
	return f.Numbers + "&get=" + section
}

// notAsked is a Warehouse for making statements alone.
type notAsked struct{}

var errNotAsked = errors.New("this statement is not asked")

func (notAsked) Query(context.Context, string, ...any) (driver.Rows, error) { return nil, errNotAsked }

// numberOf is the statement that a link of a number stands for, made anew.
func (s *Server) numberOf(r *http.Request, who *session) (sql, back string, err error) {
	of, err := url.Parse(r.FormValue("of"))
	if err != nil || of.Host != "" || of.Scheme != "" {
		return "", "", refuse(http.StatusBadRequest, "The page %q of a number cannot be read.", r.FormValue("of"))
	}
	back = of.Path + "?" + of.RawQuery
	ms, err := strconv.ParseInt(r.FormValue("at"), 10, 64)
	if err != nil || ms < 0 || ms > 1<<42 {
		return "", "", refuse(http.StatusBadRequest, "The moment %q of a number is no time in milliseconds.", r.FormValue("at"))
	}
	at := time.UnixMilli(ms)
	get := r.FormValue("get")
	section, _, one := strings.Cut(get, ".")
	if _, known := made[get]; one && !known {
		return "", "", refuse(http.StatusNotFound, "There is no number %q.", get)
	}
	if sql, err = s.statementOf(r.Context(), who, of, section, at); err != nil || !one {
		return sql, back, err
	}
	if around := spread[section]; around != "" {
		sql = fill(around, "statement", sql)
	}
	conditions := []string{}
	for _, row := range r.Form["row"] {
		name, value, _ := strings.Cut(row, ":")
		if !columnName.MatchString(name) {
			return "", "", refuse(http.StatusBadRequest, "A row is a column and its value, and not %q.", row)
		}
		conditions = append(conditions, name+" = "+quote(value))
	}
	where := ""
	if len(conditions) > 0 {
		where = "\nWHERE " + strings.Join(conditions, " AND ")
	}
	return "SELECT " + fill(made[get], "at", moment(at)) + " AS value\nFROM\n(\n" + sql + "\n)" + where, back, nil
}

// statementOf is the statement of a section of a page, as it was asked at a moment.
func (s *Server) statementOf(ctx context.Context, who *session, of *url.URL, section string, at time.Time) (string, error) {
	page := &http.Request{Method: http.MethodGet, URL: of}
	silent := &Server{db: notAsked{}}
	asked := *who
	asked.at = at
	statements := map[string]string{}
	switch of.Path {
	case "/processes":
		statements["list"] = silent.processList(ctx, &asked, windowOf(page, at)).SQL
	case "/process":
		c, err := chosenOf(page, at)
		if err != nil {
			return "", err
		}
		versions, heat := silent.versions(ctx, &asked, c).SQL, silent.heat(ctx, &asked, c).SQL
		statements = map[string]string{
			"versions": versions, "bars": versions, "heat": heat, "turns": heat, "tokens": silent.present(ctx, &asked, c).SQL,
			"troubles": silent.troubles(ctx, &asked, c).SQL, "variants": silent.variants(ctx, &asked, c).SQL, "follows": silent.follows(ctx, &asked, c).SQL,
		}
	case "/instance":
		source, key := page.FormValue("source"), page.FormValue("key")
		if section == "instance" {
			return oneInstanceSQL(&asked, source, key), nil
		}
		row, err := s.oneInstance(ctx, who, source, key) // it says in which days its records are
		if err != nil {
			return "", err
		}
		if row == nil {
			return "", refuse(http.StatusNotFound, "There is no instance %q of the source %q, or your token may not see it.", key, source)
		}
		if section == "tree" {
			return s.tree(ctx, who, *row).SQL, nil
		}
		p := silent.instanceData(ctx, &asked, *row)
		statements = map[string]string{
			"steps": p.Steps.SQL, "spans": p.Spans.SQL, "variables": p.Variables.SQL, "records": p.Records.SQL,
		}
	case "/record":
		sql, err := recordSQL(page, &asked)
		if err != nil {
			return "", err
		}
		statements["record"] = sql
	case "/sources":
		if err := who.whole("Sources and tokens"); err != nil {
			return "", err
		}
		statements["partitions"] = partitionsQuery
	}
	if statements[section] == "" {
		return "", refuse(http.StatusNotFound, "The page %q has no numbers of the name %q.", of.Path, section)
	}
	return statements[section], nil
}
