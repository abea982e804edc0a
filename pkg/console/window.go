package console

import (
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// window is the time range of a page: it shows items that began in it.
type window struct {
	Name string // such as 24h, as in the URL
	From time.Time
	To   time.Time

	Compare bool // compare with the period before
	Refresh bool // reload every refreshEvery

	Asked time.Time // time of the request

	Err  error    // the URL has an invalid time
	page *url.URL // URL it was read from
}

// windowNames are the windows to choose from, windowSpans their lengths.
var (
	windowNames = []choice{{"1h", "last hour"}, {"24h", "last 24 hours"}, {"7d", "last 7 days"}, {"30d", "last 30 days"}, {"all", "all time"}}
	windowSpans = map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "30d": 30 * 24 * time.Hour}
)

// windowOf reads the window from the URL: from and to, or a name; default: the last 24
// hours. Engine clocks may be ahead, so a named window ends an hour from now.
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
				parsed, err = time.Parse("2006-01-02T15:04", text) // a browser without JavaScript sends it
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

// pairs are the URL parameters of the window.
func (w window) pairs() []string {
	return []string{"window", w.Name, "from", w.FromText(), "to", w.ToText(), "compare", map[bool]string{true: "1"}[w.Compare]}
}

// Before is the period before, of the same length; the name determines a named window's length.
func (w window) Before() window {
	length := w.To.Sub(w.From)
	if w.Name != "" {
		length = windowSpans[w.Name]
	}
	return window{From: w.From.Add(-length), To: w.From, page: w.page}
}

// CompareHref toggles the comparison with the period before; empty if there is none.
func (w window) CompareHref() string {
	if w.From.Unix() == 0 {
		return ""
	}
	return with(w.page, w.page.Path, "compare", map[bool]string{false: "1"}[w.Compare])
}

// Every is refreshEvery in milliseconds.
func (window) Every() int64 { return refreshEvery.Milliseconds() }

// RefreshHref toggles the automatic refresh.
func (w window) RefreshHref() string {
	return with(w.page, w.page.Path, "refresh", map[bool]string{false: "1"}[w.Refresh])
}

// FromText is the start of the range as in the URL; empty for a named window.
func (w window) FromText() string { return w.text(w.From) }

// ToText is the end of the range.
func (w window) ToText() string { return w.text(w.To) }

func (w window) text(at time.Time) string {
	if w.Name != "" || at.Unix() == 0 {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

// Others are the other URL parameters, for the form that chooses the window.
func (w window) Others() (all []choice) {
	values := w.page.Query()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != "window" && name != "from" && name != "to" && name != "page" {
			all = append(all, choice{name, values.Get(name)})
		}
	}
	return all
}

func (window) Choices() []choice { return windowNames }

func (w window) Href(name string) string {
	return with(w.page, w.page.Path, "window", name, "from", "", "to", "")
}

// within is the condition that a time column is in the window.
func (w window) within(column string) string {
	return fmt.Sprintf("%s >= %s AND %s < %s", column, moment(w.From), column, moment(w.To))
}

// moment is a time as a ClickHouse literal.
func moment(t time.Time) string {
	return fmt.Sprintf("toDateTime64('%s', 3, 'UTC')", t.UTC().Format("2006-01-02 15:04:05.000"))
}

var escapes = strings.NewReplacer(`\`, `\\`, `'`, `\'`, "$", `\x24`, "{", `\x7b`, "\x00", `\0`)

// quote is a text as an SQL literal. User input enters statements only through quote;
// they run as the user analyst, which is read-only. quote escapes $ and {, so that fill
// and query parameters do not match in user input.
func quote(text string) string { return "'" + escapes.Replace(text) + "'" }

// fill replaces $names by SQL, given as pairs of name and SQL. The result is a plain
// statement that users can run.
func fill(sql string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		pairs[i] = "$" + pairs[i]
	}
	return strings.TrimSpace(strings.NewReplacer(pairs...).Replace(sql))
}

// only is a condition on the tenants visible to the session.
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

// asOf is the time of the page, with the precision of URLs.
func (s *session) asOf() time.Time { return s.at.Truncate(time.Second) }

// link is a path with a query string of pairs; empty values are left out.
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

// stamp is when, without "never" for zero times.
func stamp(t time.Time) template.HTML {
	exact := exactly(t)
	return template.HTML(`<time datetime="` + exact + `" title="` + exact + `">` + t.UTC().Format("2006-01-02 15:04:05") + ` UTC</time>`)
}

// exactly is a time in UTC, with milliseconds or its full precision.
func exactly(t time.Time) string {
	layout := "2006-01-02T15:04:05.000Z"
	switch ns := t.Nanosecond(); {
	case ns%1e3 != 0:
		layout = "2006-01-02T15:04:05.000000000Z"
	case ns%1e6 != 0:
		layout = "2006-01-02T15:04:05.000000Z"
	}
	return t.UTC().Format(layout)
}
