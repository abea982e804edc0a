package change

import (
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"
)

// path is where in a body a walk stands. Each walk pushes and pops its own
// steps, so that nothing is built unless there is something to report.
type path []string

func (p *path) in(name string) { *p = append(*p, name) }
func (p *path) at(index int)   { p.in(strconv.Itoa(index)) }
func (p *path) out()           { *p = (*p)[:len(*p)-1] }

// String is the JSON pointer (RFC 6901) as a URI fragment. Long names are
// cut: a pointer must not make a reply of a body.
func (p path) String() string {
	var b strings.Builder
	b.WriteByte('#')
	for _, step := range p {
		step = strings.NewReplacer("~", "~0", "/", "~1").Replace(cut(step, maxMemberName))
		b.WriteByte('/')
		b.WriteString(url.PathEscape(step))
	}
	return b.String()
}

// cut shortens s to about size bytes, between characters, and says so.
func cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for size > 0 && !utf8.RuneStart(s[size]) {
		size--
	}
	return s[:size] + "…"
}
