package console

import (
	"net/http"
	"regexp"
	"strings"
)

// filter is a field by which a page leaves something out. An address names it and
// its value; an empty value takes all.
type filter struct {
	Name, Label string
	Choices     []choice // it is chosen of these; nil is typed
	Digits      bool     // only a whole number is a value
	Size        int      // of the field, in characters; 0 as browsers have it
	Value       string   // as the address has it, unless it is given
	column      string   // that must be equal to it; empty where the page makes its own condition
}

// choice is a value that can be chosen.
type choice struct{ Name, Title string }

// filters are those of a page, in their order. pages/parts.html shows them.
type filters []filter

var onlyDigits = regexp.MustCompile(`^[0-9]{1,19}$`)

// filtersOf reads the values of an address.
func filtersOf(r *http.Request, all ...filter) filters {
	for i := range all {
		if all[i].Value == "" {
			all[i].Value = strings.TrimSpace(r.FormValue(all[i].Name))
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
	}
	return nil
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
			all = append(all, one.column+" = "+quote(one.Value))
		}
	}
	return strings.Join(all, " AND ")
}

// Link is a path with the values of the filters.
func (f filters) Link(path string) string {
	var pairs []string
	for _, one := range f {
		pairs = append(pairs, one.Name, one.Value)
	}
	return link(path, pairs...)
}
