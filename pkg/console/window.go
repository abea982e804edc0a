package console

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// window is the time that a page is about: what began in it.
type window struct {
	Name string // such as 24h, as it stands in the address
	From time.Time
	To   time.Time

	Compare bool // with the period before
	Refresh bool // the page is asked for again every refreshEvery

	Asked time.Time // when the page was asked for

	Err  error    // what it was read from is no time
	page *url.URL // that it was read from
}

// refreshEvery is how often a list is read again on request: ten browsers take at most one
// statement a second.
const refreshEvery = 15 * time.Second

// windowNames are the windows that can be chosen, and windowSpans how long they are.
var (
	windowNames = []choice{{"1h", "last hour"}, {"24h", "last 24 hours"}, {"7d", "last 7 days"}, {"30d", "last 30 days"}, {"all", "all the time"}}
	windowSpans = map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "30d": 30 * 24 * time.Hour}
)

// windowOf reads the time of an address: from and to, or a name; the last 24 hours when it
// has none. Clocks of engines may be a little ahead, so a named one ends an hour from now.
func windowOf(r *http.Request, now time.Time) window {
	w := window{page: r.URL, Name: r.FormValue("window"), Compare: r.FormValue("compare") != "", Refresh: r.FormValue("refresh") != "", Asked: now, To: now.Add(time.Hour).Truncate(time.Second)}
	if from, to := r.FormValue("from"), r.FormValue("to"); from != "" || to != "" {
		w.Name, w.From = "", time.Unix(0, 0)
		w.Compare = w.Compare && from != ""
		for text, at := range map[string]*time.Time{from: &w.From, to: &w.To} {
			if text == "" {
				continue
			}
			parsed, err := time.Parse(time.RFC3339, text)
			if err != nil {
				parsed, err = time.Parse("2006-01-02T15:04", text) // as a browser without script sends it
			}
			if err != nil || parsed.Year() < 1970 || parsed.Year() > 2299 {
				w.Err = refuse(http.StatusBadRequest, "%q is not a time such as 2026-01-31T12:00:00Z.", text)
			}
			*at = parsed
		}
		return w
	}
	if w.Name == "all" {
		w.From, w.Compare = time.Unix(0, 0), false
		return w
	}
	if windowSpans[w.Name] == 0 {
		w.Name = "24h"
	}
	w.From = now.Add(-windowSpans[w.Name]).Truncate(time.Second)
	return w
}

// pairs name the window in an address.
func (w window) pairs() []string {
	return []string{"window", w.Name, "from", w.FromText(), "to", w.ToText(), "compare", map[bool]string{true: "1"}[w.Compare]}
}

// Before is the period before, as long as the window is; of a named one its name says that.
func (w window) Before() window {
	length := w.To.Sub(w.From)
	if w.Name != "" {
		length = windowSpans[w.Name]
	}
	return window{From: w.From.Add(-length), To: w.From, page: w.page}
}

// CompareHref is the same page with the period before, or without it; empty where there is none.
func (w window) CompareHref() string {
	if w.From.Unix() == 0 {
		return ""
	}
	return with(w.page, w.page.Path, "compare", map[bool]string{false: "1"}[w.Compare])
}

// Every is how often the page is asked for again, in milliseconds.
func (window) Every() int64 { return refreshEvery.Milliseconds() }

// RefreshHref is the same page that refreshes, or does not.
func (w window) RefreshHref() string {
	return with(w.page, w.page.Path, "refresh", map[bool]string{false: "1"}[w.Refresh])
}

// FromText is the beginning of a range, as an address has it; empty of a named window.
func (w window) FromText() string { return w.text(w.From) }

// ToText is its end.
func (w window) ToText() string { return w.text(w.To) }

func (w window) text(at time.Time) string {
	if w.Name != "" || at.Unix() == 0 {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// Others are the other parameters of the page, for a form that chooses the time.
func (w window) Others() (all []choice) {
	values := w.page.Query()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != "window" && name != "from" && name != "to" && name != "page" {
			all = append(all, choice{name, values.Get(name)})
		}
	}
	return all
}

// Choices are all windows there are.
func (window) Choices() []choice { return windowNames }

// Href is the same page with another window.
func (w window) Href(name string) string {
	return with(w.page, w.page.Path, "window", name, "from", "", "to", "")
}

// within is a condition on a column with a time.
func (w window) within(column string) string {
	return fmt.Sprintf("%s >= %s AND %s < %s", column, moment(w.From), column, moment(w.To))
}

// moment is a time as ClickHouse reads it.
func moment(t time.Time) string {
	return fmt.Sprintf("toDateTime64('%s', 3, 'UTC')", t.UTC().Format("2006-01-02 15:04:05.000"))
}

var escapes = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "$", `\x24`, "{", `\x7b`, "\x00", `\0`)

// quote is a text as a literal of SQL. What people type comes into a statement by it
// alone; the statement runs as the user analyst, which can only read. There is
// neither $ nor { in it, so that no name or parameter is found in what was
// typed.
func quote(text string) string { return "'" + escapes.Replace(text) + "'" }

// fill puts values in the place of $names: pairs of a name and SQL. The
// statement is then a text that people can run too.
func fill(sql string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = "$" + pairs[i]
	}
	return strings.TrimSpace(strings.NewReplacer(pairs...).Replace(sql))
}

// only is a condition that leaves the tenants that a session may see.
func (s *session) only(column string) string {
	if !s.Limited() {
		return "1"
	}
	tenants := make([]string, len(s.identity.Tenants))
	for i, t := range s.identity.Tenants {
		tenants[i] = quote(t)
	}
	if len(tenants) == 0 {
		return "0"
	}
	return column + " IN (" + strings.Join(tenants, ", ") + ")"
}

// asOf is the moment of the page as an address has it.
func (s *session) asOf() time.Time { return s.at.Truncate(time.Second) }

// link is a path with a query of pairs; empty values are left out.
func link(path string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}
