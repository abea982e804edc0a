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

// filter is a field by which a page leaves something out. An address names it and
// its value; an empty value takes all.
type filter struct {
	Name, Label string
	Choices     []choice // it is chosen of these; nil is typed
	Digits      bool     // only a whole number is a value
	Span        bool     // only a duration is a value
	Size        int      // of the field, in characters; 0 as browsers have it
	Value       string   // as the address has it, unless it is given
	column      string   // that must be equal to it; empty where the page makes its own condition
	Hidden      bool     // it is kept, and chosen elsewhere
	more        bool     // its field is shown when it has a value, or when more is asked for
}

type filterOf = filter

// emptyValue is the value that takes what has none.
const emptyValue = "(none)"

// choice is a value that can be chosen.
type choice struct{ Name, Title string }

// filters are those of a page, in their order. pages/parts.html shows them.
type filters []filter

var onlyDigits = regexp.MustCompile(`^[0-9]{1,19}$`)

// filtersOf reads the values of an address. A name may be of spaces; the script of the page
// takes away those around what is typed.
func filtersOf(r *http.Request, all ...filter) filters {
	all = slices.Clone(all)
	for i := range all {
		if all[i].Value == "" {
			all[i].Value = r.FormValue(all[i].Name)
		}
		if all[i].Digits || all[i].Span || all[i].Name == "q" {
			all[i].Value = strings.TrimSpace(all[i].Value)
		}
	}
	return all
}

// Check refuses a value that is no number where it must be one.
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

// duration reads a time such as 90s, 2h, or 3d.
func duration(text string) (time.Duration, error) {
	text = strings.ReplaceAll(text, " ", "")
	if days, found := strings.CutSuffix(text, "d"); found {
		n, err := strconv.ParseFloat(days, 64)
		return time.Duration(n * float64(24*time.Hour)), err
	}
	return time.ParseDuration(text)
}

// Value is that of a filter.
func (f filters) Value(name string) string {
	for _, one := range f {
		if one.Name == name {
			return one.Value
		}
	}
	return ""
}

// Condition leaves the rows that the filters of a column take.
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

// Set are the filters that leave something out, each with the page without it.
func (f frame) Set(all filters) (chips []chip) {
	for _, one := range all {
		if one.Value == "" || one.Hidden {
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

// chip is a filter that is set, and the page without it.
type chip struct{ Label, Value, Drop string }

// Link is a path with the values of the filters.
func (f filters) Link(path string) string {
	var pairs []string
	for _, one := range f {
		pairs = append(pairs, one.Name, one.Value)
	}
	return link(path, pairs...)
}

// Few and Rest are the fields that are shown at once, and the others.
func (f filters) Few() (few filters) {
	for _, one := range f {
		if !one.more || one.Value != "" {
			few = append(few, one)
		}
	}
	return few
}

// Rest are the fields of Few's others.
func (f filters) Rest() (rest filters) {
	for _, one := range f {
		if one.more && one.Value == "" {
			rest = append(rest, one)
		}
	}
	return rest
}

// kept are the parameters that the menu keeps from page to page.
var kept = []string{"source", "id", "version", "tenant", "window", "from", "to", "compare"}

// with is a path with the parameters of a page, and pairs in their place; the page of a
// list is left out.
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

// withShared is a path with the parameters of a page that the menu keeps.
func withShared(at *url.URL, path string) string {
	var pairs []string
	for _, name := range kept {
		pairs = append(pairs, name, at.Query().Get(name))
	}
	return link(path, pairs...)
}
