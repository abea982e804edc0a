package console

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

//go:embed pages/*.html
var pageFiles embed.FS

// pages are the templates by name, each with the layout.
type pages map[string]*template.Template

type menuItem struct{ Title, Path string }

// frame is the data of the layout around a page.
type frame struct {
	Title string
	Path  string     // path of the current menu item
	Menu  []menuItem // empty without a sign-in
	Who   *session   // nil without a sign-in
	Data  any

	at *url.URL // URL of the page
}

// loadPages parses every page. A page defines "main", and may define "head" for its
// own scripts and styles.
func (s *Server) loadPages() (pages, error) {
	layout, err := template.New("layout.html").Funcs(s.functions()).ParseFS(pageFiles, "pages/layout.html", "pages/parts.html")
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(pageFiles, "pages/*.html")
	if err != nil {
		return nil, err
	}
	all := pages{}
	for _, name := range names {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page == "layout" || page == "parts" {
			continue
		}
		one, err := layout.Clone()
		if err == nil {
			one, err = one.ParseFS(pageFiles, name)
		}
		if err != nil {
			return nil, err
		}
		all[page] = one
	}
	return all, nil
}

func (s *Server) functions() template.FuncMap {
	return template.FuncMap{
		"busy":        isBusy,
		"asset":       s.assets.path,
		"number":      number,
		"bytes":       byteSize,
		"span":        span,
		"when":        when,
		"stamp":       stamp,
		"incarnation": func(ms uint64) template.HTML { return when(time.UnixMilli(int64(ms))) },
		"join":        strings.Join,
		"key":         fmt.Sprint,
		"named":       named,
		"path":        link,
		"how":         how,
		"json":        jsonText,
		"spark":       drawSpark,
		"moment":      whenever,
		"fig":         figure,
		"lasts":       lasts,
		"delta":       delta,
		"percent":     percent,
		"ms":          milliseconds,
		"bars":        drawBars,
		"value":       answerCell,
		"table":       tableBegin,
		"cols":        tableColumns,
	}
}

// tableBegin begins a table with its own scroll bar; </table></div> ends it.
func tableBegin(label string) template.HTML {
	return template.HTML(`<div class="wide" tabindex="0" role="region" aria-label="Table: ` + template.HTMLEscapeString(label) + `"><table>`)
}

// tableColumns is the head of a table. A title with a leading # is a number column.
func tableColumns(titles ...string) template.HTML {
	var b strings.Builder
	b.WriteString("<thead><tr>")
	for _, title := range titles {
		text, isNumber := strings.CutPrefix(title, "#")
		class := ""
		if isNumber {
			class = ` class="n"`
		}
		b.WriteString(`<th scope="col"` + class + `>` + template.HTMLEscapeString(text) + `</th>`)
	}
	b.WriteString("</tr></thead>")
	return template.HTML(b.String())
}

func (s *Server) show(w http.ResponseWriter, r *http.Request, who *session, name, title string, data any) error {
	s.render(w, r, who, http.StatusOK, name, title, data)
	return nil
}

// render writes a page. It executes the template first, so that an error is never sent
// after half a page.
func (s *Server) render(w http.ResponseWriter, r *http.Request, who *session, status int, name, title string, data any) {
	f := frame{Title: title, Who: who, Data: data, at: r.URL}
	if who != nil {
		f.Menu = menuOf(who)
		f.Path = current(f.Menu, r.URL.Path)
	}
	var b bytes.Buffer
	if err := s.pages[name].ExecuteTemplate(&b, "layout.html", f); err != nil {
		s.log.Error("console: page failed to render", "page", name, "error", err)
		http.Error(w, "This page failed to render; the console's log has the cause.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only when the browser has disconnected
}

// menuOf is the menu without the pages that a token of some tenants cannot see.
func menuOf(who *session) []menuItem {
	var seen []menuItem
	for _, item := range menu {
		if !who.Limited() || !wholeOnly[item.Path] {
			seen = append(seen, item)
		}
	}
	return seen
}

// Keep links to a page with the parameters that follow from page to page.
func (f frame) Keep(path string, pairs ...string) string { return withShared(f.at, path, pairs...) }

// wholeOnly are the pages that only a token of all tenants can see.
var wholeOnly = map[string]bool{"/": true, "/dead": true, "/sources": true, "/query": true}

// current is the menu item of a path.
func current(items []menuItem, path string) string {
	best := ""
	if slices.ContainsFunc(kinds, func(k *kind) bool { return k.Path == path }) || path == "/instance" {
		return instanceKind.Path
	}
	for _, item := range items {
		within := path == item.Path || item.Path != "/" && strings.HasPrefix(path, item.Path+"/")
		if within && len(item.Path) > len(best) {
			best = item.Path
		}
	}
	return best
}

// refusal is an error whose text is shown to the user.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// refuse makes a refusal.
func refuse(status int, sentence string, args ...any) error {
	if len(args) > 0 {
		sentence = fmt.Sprintf(sentence, args...)
	}
	return &refusal{status, sentence}
}

// showError responds with an error page; 502 unless err is a refusal.
func (s *Server) showError(w http.ResponseWriter, r *http.Request, who *session, err error) {
	status, text := http.StatusBadGateway, "The page's data could not be read: "+err.Error()
	var refused *refusal
	if errors.As(err, &refused) {
		status, text = refused.status, refused.text
	}
	s.render(w, r, who, status, "error", http.StatusText(status), text)
}

// how links to the query page with a statement. It is empty for a token of some tenants,
// which cannot run it.
func how(f frame, sql string) string {
	if sql == "" || f.Who.Limited() {
		return ""
	}
	return link("/query", "sql", sql)
}

func jsonText(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

// answerCell is a table cell of an answer. Keys link to their instance, processes to their
// page.
func answerCell(a *answer, row []cell, i int) template.HTML {
	c, v, source := a.Columns[i], row[i], ""
	if at := slices.IndexFunc(a.Columns, func(c answerColumn) bool { return c.Name == "source" }); at >= 0 {
		source = row[at].Text
	}
	shown := c.show(v)
	text, class := template.HTMLEscapeString(shown), map[bool]string{true: "n", false: "why"}[c.Number]
	switch {
	case v.Null:
		text = `<span class="null">NULL</span>`
	case v.Moment:
		text = string(stamp(v.At))
	case shown != v.Text:
		return template.HTML(`<td class="n" title="` + template.HTMLEscapeString(v.Text) + `">` + text + `</td>`)
	case c.Name == "process_instance_key" && !keyless(v.Text):
		text = `<a href="` + template.HTMLEscapeString(link("/instances", "q", v.Text, "source", source)) + `">` + template.HTMLEscapeString(named(v.Text)) + `</a>`
	case c.Name == "bpmn_process_id" && source != "" && v.Text != "":
		text = `<a href="` + template.HTMLEscapeString(link("/process", "source", source, "id", v.Text)) + `">` + template.HTMLEscapeString(named(v.Text)) + `</a>`
	}
	return template.HTML(`<td class="` + class + `">` + text + `</td>`)
}

// milliseconds formats a duration in ms; nil is a dash.
func milliseconds(ms *int64) string {
	if ms == nil {
		return "–"
	}
	return span(time.Duration(*ms) * time.Millisecond)
}

// whenever formats a time; nil is a dash.
func whenever(t *time.Time) template.HTML {
	if t == nil {
		return "–"
	}
	return when(*t)
}

// named is a name, or a visible replacement for an empty or invisible one.
func named(name string) string {
	switch {
	case name == "":
		return "(no name)"
	case strings.TrimFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) == "":
		return strconv.Quote(name)
	}
	return name
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// figure is a number that links to the list of the items it counts. The value is a count,
// or ms or nil. The first line of the list has the same value.
func figure(is string, value any, href string) template.HTML {
	text, exact, title := "", fmt.Sprint(value), ""
	switch v := value.(type) {
	case *int64:
		if v == nil {
			return "–"
		}
		exact, text = itoa(*v), milliseconds(v)
		title = ` title="` + number(*v) + ` ms"`
	default:
		text = number(v)
	}
	return template.HTML(`<a class="fig" data-is="` + is + `" data-value="` + exact + `"` + title + ` href="` + template.HTMLEscapeString(href) + `">` + template.HTMLEscapeString(text) + `</a>`)
}

// delta is the change of a number since the period before, as a link to the list of that
// period; empty if either number is missing.
func delta(is string, now, before any, href string) template.HTML {
	n, known := amount(now)
	was, compared := amount(before)
	if !compared || !known {
		return ""
	}
	text, class := "new", "same"
	switch {
	case was == n:
		text = "="
	case was > 0 && n >= 10*was:
		text = fmt.Sprintf(" ×%.0f", n/was)
	case was > 0:
		text = fmt.Sprintf("%+.0f %%", 100*(n-was)/was)
	}
	if n > was && was > 0 {
		class = "more"
	} else if n < was {
		class = "less"
	}
	shown := number(was)
	if is != "count" {
		shown = span(time.Duration(was) * time.Millisecond)
	}
	return template.HTML(fmt.Sprintf(` <a class="fig delta %s" data-is="%s" data-value="%.0f" title="%s in the period before" href="%s">%s</a>`, class, is, was, shown, template.HTMLEscapeString(href), text))
}

// amount is a count or ms as a number; false if it is missing.
func amount(value any) (float64, bool) {
	switch v := value.(type) {
	case uint64:
		return float64(v), true
	case *int64:
		if v != nil {
			return float64(*v), true
		}
	}
	return 0, false
}

// lasts formats a duration; the tooltip has the exact ms.
func lasts(d time.Duration) template.HTML {
	return template.HTML(`<span class="id" title="` + number(d.Milliseconds()) + ` ms">` + span(d) + `</span>`)
}

// number formats a whole number with digits in groups of three.
func number(value any) string {
	var text string
	switch n := value.(type) {
	case int:
		text = strconv.Itoa(n)
	case int64:
		text = strconv.FormatInt(n, 10)
	case *int64:
		text = strconv.FormatInt(*n, 10)
	case uint64:
		text = strconv.FormatUint(n, 10)
	case float64:
		text = strconv.FormatFloat(n, 'f', 0, 64)
	default:
		text = fmt.Sprint(n)
	}
	sign := ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return sign + text
		}
	}
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return sign + text
}

// byteSize formats a number of bytes, such as 1.5 MiB.
func byteSize(value any) string {
	var n float64
	switch v := value.(type) {
	case int:
		n = float64(v)
	case int64:
		n = float64(v)
	case uint64:
		n = float64(v)
	case float64:
		n = v
	}
	unit := 0
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	for n >= 1024 && unit < len(units)-1 {
		n, unit = n/1024, unit+1
	}
	if unit == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[unit])
	}
	return fmt.Sprintf("%.1f %s", n, units[unit])
}

// span formats a duration, such as 1.5 s or 3 days.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f days", d.Hours()/24)
}

// when formats a time.Time or a pointer to one. The script shows it in the viewer's time
// zone.
func when(moment any) template.HTML {
	t, _ := moment.(time.Time)
	if at, ok := moment.(*time.Time); ok && at != nil {
		t = *at
	}
	if t.IsZero() || t.Unix() == 0 {
		return "never"
	}
	return stamp(t)
}
