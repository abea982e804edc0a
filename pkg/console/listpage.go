package console

import (
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Methods for the template of a list.

// Count is the sum of the list; nil if it could not be read.
func (p *listPage) Count() *sum { return p.Sum.first() }

// Before is the sum of the period before; nil if not compared.
func (p *listPage) Before() *sum { return p.Was.first() }

func (p *listPage) BeforeHref() string { return p.With(p.Window.Before().pairs()...) }

// First is the position of the first row shown, from 1.
func (p *listPage) First() int { return (p.Page-1)*shownOnPage + 1 }

// Last is the position of the last row shown.
func (p *listPage) Last() int { return p.First() + len(p.Answer.Rows) - 1 }

// More reports whether there is another page.
func (p *listPage) More() bool { return p.Count() != nil && uint64(p.Last()) < p.Count().Count }

// With is the first page of the list with changed parameters, as pairs of name and value.
func (a *asked) With(pairs ...string) string { return with(a.at, a.Kind.Path, pairs...) }

func (a *asked) CSV() string { return with(a.at, a.Kind.Path+".csv") }

// SortLink sorts by a column: descending first, then ascending.
func (a *asked) SortLink(name string) string {
	if a.Sort == "-"+name {
		return a.With("sort", name)
	}
	return a.With("sort", "-"+name)
}

// Sorted is the aria-sort value of a column.
func (a *asked) Sorted(name string) string {
	return map[string]string{name: "ascending", "-" + name: "descending"}[a.Sort]
}

func (a *asked) PageLink(by int) string {
	return with(a.at, a.Kind.Path, "page", strconv.Itoa(a.Page+by))
}

// To links to another kind of list with the shared filters.
func (p *listPage) To(k *kind) string { return withShared(p.at, k.Path) }

// Columns leaves out empty columns and adds the reason of a match after a search.
func (p *listPage) Columns() []column {
	all := slices.DeleteFunc(slices.Clone(p.Kind.columns), func(c column) bool {
		at := slices.IndexFunc(p.Answer.Columns, func(of answerColumn) bool { return of.Name == c.Name })
		return at >= 0 && !slices.ContainsFunc(p.Answer.Rows, func(row []cell) bool { return row[at].Null || row[at].Text != "" })
	})
	if len(p.Why) > 0 {
		all = append(all, column{"why", "Why"})
	}
	return all
}

func (p *listPage) cells(row []cell) map[string]cell {
	all := map[string]cell{}
	for i, c := range p.Answer.Columns {
		all[c.Name] = row[i]
	}
	return all
}

func (p *listPage) Cell(row []cell, c column) template.HTML {
	all := p.cells(row)
	value, source := all[c.Name], all["source"].Text
	to := func(path, text string) template.HTML {
		return template.HTML(`<td class="name"><a href="` + template.HTMLEscapeString(path) + `">` + template.HTMLEscapeString(named(text)) + `</a></td>`)
	}
	text := template.HTMLEscapeString(value.Text)
	switch {
	case c.Name == "why":
		return template.HTML(`<td class="why">` + template.HTMLEscapeString(p.Why[source+" "+all["instance"].Text]) + `</td>`)
	case value.Null && (c.Name == "took_ms" || strings.HasPrefix(c.Title, "#")):
		return `<td class="n">–</td>`
	case value.Null:
		return `<td>–</td>`
	case c.Name == "instance" && !keyless(value.Text):
		return template.HTML(strings.NewReplacer("<td ", `<th scope="row" `, "</td>", "</th>").Replace(string(to(link("/instance", "source", source, "key", value.Text), value.Text))))
	case c.Name == "instance":
		return `<th scope="row">none</th>`
	case c.Name == "process":
		version := ""
		if v := all["process_version"]; v.Text != "" && v.Text != "0" && !v.Null {
			version = `&nbsp;<small class="id">v` + template.HTMLEscapeString(v.Text) + `</small>`
		}
		return template.HTML(strings.Replace(string(to(link("/process", "source", source, "id", value.Text), value.Text)), "</td>", version+"</td>", 1))
	case c.Name == "state":
		return template.HTML(`<td><span class="state state-` + text + `">` + text + `</span>` + map[bool]string{true: ` <span class="state state-INCIDENT">incident</span>`}[all["open"].Value > 0] + `</td>`)
	case c.Name == "took_ms":
		return template.HTML(`<td class="n id" title="` + number(int64(value.Value)) + ` ms">` + span(time.Duration(value.Value)*time.Millisecond) + `</td>`)
	case value.Moment:
		return template.HTML(`<td>`) + stamp(value.At) + `</td>`
	case c.Name == "incidents" && value.Value > 0:
		return template.HTML(`<td class="n">`) + figure("count", uint64(value.Value), link("/incidents", "source", source, "instance", all["instance"].Text)) + `</td>`
	case strings.HasPrefix(c.Title, "#"):
		return template.HTML(`<td class="n id">` + text + `</td>`)
	}
	return template.HTML(`<td class="` + map[bool]string{true: "why", false: "name"}[c.Name == "message"] + `">` + text + `</td>`)
}

func keyless(key string) bool { return key == "" || key == "-1" || key == "0" }

// group is the count of one group, with the link that filters by it.
type group struct {
	Names []string
	Count uint64
	Link  string
}

// group links to the items with these values of Kind.by.
func (a *asked) group(names []string, count uint64) group {
	var pairs []string
	for i, column := range a.Kind.by {
		f := a.Filters[slices.IndexFunc(a.Filters, func(f filterOf) bool { return f.column == column })]
		pairs = append(pairs, f.Name, names[i])
		if names[i] == "" {
			pairs[len(pairs)-1] = emptyValue
		}
	}
	return group{names, count, a.With(pairs...)}
}

func (p *listPage) By() (all []string) {
	for _, name := range p.Kind.by {
		all = append(all, p.Kind.columns[slices.IndexFunc(p.Kind.columns, func(c column) bool { return c.Name == name })].Title)
	}
	return append(all, "#"+strings.ToUpper(p.Kind.Many[:1])+p.Kind.Many[1:])
}
