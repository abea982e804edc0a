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

// pages are the templates, each with the layout around it, by name.
type pages map[string]*template.Template

type menuItem struct{ Title, Path string }

// frame is what the layout needs around the data of a page.
type frame struct {
	Title string
	Path  string     // of the menu's item that is current
	Menu  []menuItem // empty without a sign-in
	Who   *session   // nil for the same
	Data  any

	at *url.URL // of the page
}

// loadPages reads every page. A page defines "main", and may define "head" for
// scripts and styles that it alone needs.
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

// functions are what templates can call.
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

// tableBegin begins a table that scrolls by itself; </table></div> ends it.
func tableBegin(label string) template.HTML {
	return template.HTML(`<div class="wide" tabindex="0" role="region" aria-label="Table: ` + template.HTMLEscapeString(label) + `"><table>`)
}

// tableColumns are the heads of a table's columns; those of numbers begin with #.
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

// show answers with a page.
func (s *Server) show(w http.ResponseWriter, r *http.Request, who *session, name, title string, data any) error {
	s.render(w, r, who, http.StatusOK, name, title, data)
	return nil
}

// render writes a page whole, or says that it is broken.
func (s *Server) render(w http.ResponseWriter, r *http.Request, who *session, status int, name, title string, data any) {
	f := frame{Title: title, Who: who, Data: data, at: r.URL}
	if who != nil {
		f.Menu = menuOf(who)
		f.Path = current(f.Menu, r.URL.Path)
	}
	var b bytes.Buffer
	if err := s.pages[name].ExecuteTemplate(&b, "layout.html", f); err != nil {
		s.log.Error("a page of the console is broken", "page", name, "error", err)
		http.Error(w, "This page is broken; the log says why.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the browser is gone when this fails
}

// menuOf is the menu without what a token of some tenants cannot see.
func menuOf(who *session) []menuItem {
	var seen []menuItem
	for _, item := range menu {
		if !who.Limited() || !wholeOnly[item.Path] {
			seen = append(seen, item)
		}
	}
	return seen
}

// MenuLink is a page of the menu with the filter of this one, where it has the same.
func (f frame) MenuLink(path string) string {
	if path == "/processes" || path == "/instances" || path == "/records" {
		return withShared(f.at, path)
	}
	return path
}

// wholeOnly are the pages that show all tenants or nothing.
var wholeOnly = map[string]bool{"/": true, "/dead": true, "/sources": true, "/query": true}

// current is the menu's item that a path belongs to.
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

// refusal is an error that is shown as it is.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// refuse is an error that is shown with its status and its sentence.
func refuse(status int, sentence string, args ...any) error {
	if len(args) > 0 {
		sentence = fmt.Sprintf(sentence, args...)
	}
	return &refusal{status, sentence}
}

// showError answers with a page that says what is wrong.
func (s *Server) showError(w http.ResponseWriter, r *http.Request, who *session, err error) {
	status, text := http.StatusBadGateway, "What this page shows could not be read: "+err.Error()
	var refused *refusal
	if errors.As(err, &refused) {
		status, text = refused.status, refused.text
	}
	s.render(w, r, who, status, "error", http.StatusText(status), text)
}

// how links to a statement that can be changed. A token of some tenants cannot run
// it, so it sees no link.
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

// answerCell is a value of an answer in its table. A key leads to its instance, a process to
// its page.
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

// milliseconds is how long something takes, as people say it; nothing when it is
// not known.
func milliseconds(ms *int64) string {
	if ms == nil {
		return "–"
	}
	return span(time.Duration(*ms) * time.Millisecond)
}

// whenever is a moment that may not be known.
func whenever(t *time.Time) template.HTML {
	if t == nil {
		return "–"
	}
	return when(*t)
}

// named is a name of a record, or what stands for one that could not be seen.
func named(name string) string {
	switch {
	case name == "":
		return "(no name)"
	case strings.TrimFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }) == "":
		return strconv.Quote(name)
	}
	return name
}

// percent is a part of a whole.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// figure is a number as a link to what it counts: things, or ms of them, which may not be
// known. The page behind it has the same value in its first line.
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

// delta is how a number has changed since the period before, as a link to what it was of
// then; nothing where that is not known.
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

// amount is a count, or ms that may not be known.
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

// lasts is how long something takes; the exact time is in the tooltip.
func lasts(d time.Duration) template.HTML {
	return template.HTML(`<span class="id" title="` + number(d.Milliseconds()) + ` ms">` + span(d) + `</span>`)
}

// number is a whole number with its digits in groups of three.
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

// byteSize is a number of bytes as people read it.
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

// span is how long something takes, as people say it.
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

// when is a moment, a time.Time or a pointer to one, which the script shows in
// the viewer's zone.
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

// stamp is when of a time that may be any.
func stamp(t time.Time) template.HTML {
	exact := exactly(t)
	return template.HTML(`<time datetime="` + exact + `" title="` + exact + `">` + t.UTC().Format("2006-01-02 15:04:05") + ` UTC</time>`)
}

// exactly is a time in UTC, to the millisecond, or as far as it goes.
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
