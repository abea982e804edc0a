package console

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// filter is a form field that restricts a page. Its name and value are a URL parameter;
// an empty value matches everything.
type filter struct {
	Name, Label string
	Choices     []choice // options; nil: free text
	Digits      bool     // value must be a whole number
	Span        bool     // value must be a duration
	Size        int      // width of the field in characters; 0: the browser's default
	Value       string   // from the URL
	column      string   // column to compare with; empty: the page adds its own condition
	Hidden      bool     // kept in links, without a field
	more        bool     // its field is collapsed while it has no value
}

type filterOf = filter

// emptyValue matches rows whose value is empty.
const emptyValue = "(none)"

type choice struct{ Name, Title string }

// filters are the filters of a page, in display order. pages/parts.html shows them.
type filters []filter

var onlyDigits = regexp.MustCompile(`^[0-9]{1,19}$`)

// filtersOf reads the values from the URL, and those that follow from page to page as hidden
// fields. It keeps spaces, since a name can consist of them; the script of the page trims typed
// text.
func filtersOf(r *http.Request, all ...filter) filters {
	all = slices.Clone(all)
	for _, name := range kept {
		if !slices.ContainsFunc(all, func(f filter) bool { return f.Name == name }) {
			all = append(all, filter{Name: name, Hidden: true})
		}
	}
	for i := range all {
		all[i].Value = r.FormValue(all[i].Name)
		if all[i].Digits || all[i].Span || all[i].Name == "q" {
			all[i].Value = strings.TrimSpace(all[i].Value)
		}
	}
	return all
}

// Check rejects invalid numbers and durations.
func (f filters) Check() error {
	for _, one := range f {
		if one.Digits && one.Value != "" && !onlyDigits.MatchString(one.Value) {
			return refuse(http.StatusBadRequest, "%s: %q is not a number.", one.Label, one.Value)
		}
		if _, err := duration(one.Value); one.Span && one.Value != "" && err != nil {
			return refuse(http.StatusBadRequest, "%s: %q is not a duration such as 90s, 2h, or 3d.", one.Label, one.Value)
		}
	}
	return nil
}

// duration parses a duration such as 90s, 2h, or 3d.
func duration(text string) (time.Duration, error) {
	text = strings.ReplaceAll(text, " ", "")
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * float64(24*time.Hour)), err
	}
	return time.ParseDuration(text)
}

func (f filters) Value(name string) string {
	for _, one := range f {
		if one.Name == name {
			return one.Value
		}
	}
	return ""
}

// Condition is the SQL condition of all filters with a column.
func (f filters) Condition() string {
	all := []string{"1"}
	for _, one := range f {
		if one.column != "" && one.Value != "" {
			value := one.Value
			if value == emptyValue {
				value = ""
			}
			all = append(all, one.column+" = "+quote(value))
		}
	}
	return strings.Join(all, " AND ")
}

// Set are the chips of the active filters, and of those that this page only keeps for others.
func (f frame) Set(all filters) (chips []chip) {
	shown := slices.DeleteFunc(slices.Clone(all), func(one filter) bool { return one.Hidden })
	for _, one := range sharedFilters[:4] {
		if !slices.ContainsFunc(shown, func(of filter) bool { return of.Name == one.Name }) {
			shown = append(shown, filter{Name: one.Name, Label: one.Label + ", not applied here", Value: f.at.Query().Get(one.Name)})
		}
	}
	for _, one := range shown {
		if one.Value == "" {
			continue
		}
		c := chip{one.Label, one.Value, with(f.at, f.at.Path, one.Name, "")}
		for _, choice := range one.Choices {
			if choice.Name == one.Value {
				c.Value = choice.Title
			}
		}
		chips = append(chips, c)
	}
	return chips
}

// chip is an active filter, with a link that removes it.
type chip struct{ Label, Value, Drop string }

func (f filters) Link(path string) string {
	var pairs []string
	for _, one := range f {
		pairs = append(pairs, one.Name, one.Value)
	}
	return link(path, pairs...)
}

// Few are the fields that are not collapsed.
func (f filters) Few() (few filters) {
	for _, one := range f {
		if !one.more || one.Value != "" {
			few = append(few, one)
		}
	}
	return few
}

// Rest are the collapsed fields.
func (f filters) Rest() (rest filters) {
	for _, one := range f {
		if one.more && one.Value == "" {
			rest = append(rest, one)
		}
	}
	return rest
}

// kept are the URL parameters that follow from page to page: the menu and forms keep them.
var kept = []string{"source", "id", "version", "tenant", "window", "from", "to", "compare"}

// with is a path with the parameters of a page, except its page number, and with pairs
// replaced.
func with(at *url.URL, path string, pairs ...string) string {
	values := at.Query()
	values.Del("page")
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
		if pairs[i+1] == "" {
			values.Del(pairs[i])
		}
	}
	for name, all := range values {
		if len(all) == 0 || all[0] == "" {
			values.Del(name)
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

// withShared is a path with the kept parameters of a page, and with pairs.
func withShared(at *url.URL, path string, pairs ...string) string {
	for _, name := range kept {
		pairs = append(pairs, name, at.Query().Get(name))
	}
	return link(path, pairs...)
}
