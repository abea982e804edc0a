package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Mask selects secrets in posted records: they are replaced by "***" before any other use
// of the body, its hash included. A name matches, ignoring case, members at any depth,
// also in texts that are JSON, and the value of a VARIABLE record of that name. The rest
// of the body is unchanged.
type Mask struct {
	names   [][]byte
	lengths uint64    // bit n: a name has n bytes in some letter case; bit 63: 63 or more
	first   [256]bool // possible first bytes
}

// always is masked regardless of options: USER and IDENTITY records have it.
const always = "password"

var defaultMask, _ = NewMask(nil)

// maskable are the named fields that Sluice does not interpret. All others are needed
// unchanged: for identity, types, tables, or routing.
var maskable = []field{fieldRejectionReason, fieldWorker, fieldErrorMessage, fieldVariables, fieldCustomHeaders}

// verbatim is the set of those others, without fields that may be JSON texts.
var verbatim = func() uint64 {
	set := uint64(1)<<namedFields - 1
	for _, f := range append([]field{fieldValue}, maskable...) {
		set &^= 1 << f
	}
	return set
}()

const (
	maxMasked     = 64  // names of a Mask
	maxMaskedName = 256 // bytes of one
)

// NewMask masks password and more names. The error names an unsupported one.
func NewMask(more []string) (*Mask, error) {
	if len(more) > maxMasked {
		return nil, fmt.Errorf("%d names, at most %d can be masked", len(more), maxMasked)
	}
	m := &Mask{}
	for _, name := range append([]string{always}, more...) {
		if name == "" || len(name) > maxMaskedName || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%q is not a member name: use 1 to %d bytes of UTF-8", name, maxMaskedName)
		}
		for f, spec := range named {
			if strings.EqualFold(name, spec.name) && !slices.Contains(maskable, field(f)) {
				return nil, fmt.Errorf("%q cannot be masked: Sluice needs the member %s unchanged", name, spec.name)
			}
		}
		m.add(name)
	}
	return m, nil
}

// add adds a name in all letter cases, whose lengths in bytes may differ.
func (m *Mask) add(name string) {
	m.names = append(m.names, []byte(name))
	shortest, longest := 0, 0
	for i, r := range name {
		low, high := utf8.RuneLen(r), utf8.RuneLen(r)
		for other := unicode.SimpleFold(r); ; other = unicode.SimpleFold(other) {
			low, high = min(low, utf8.RuneLen(other)), max(high, utf8.RuneLen(other))
			if i == 0 {
				m.first[utf8.AppendRune(nil, other)[0]] = true
			}
			if other == r {
				break
			}
		}
		shortest, longest = shortest+low, longest+high
	}
	for n := shortest; n <= longest; n++ {
		m.lengths |= 1 << min(n, 63)
	}
}

// has reports whether a name, unquoted and unescaped, is masked. It is called for every
// name outside the cache, so a cheap filter comes first.
func (m *Mask) has(name []byte) bool {
	if m.lengths>>min(len(name), 63)&1 == 0 || len(name) == 0 || !m.first[name[0]] {
		return false
	}
	return slices.ContainsFunc(m.names, func(masked []byte) bool { return bytes.EqualFold(masked, name) })
}

// secret is a value that is replaced.
type secret struct {
	start, end uint32
	level      uint8 // nesting in JSON texts
}

// maxTexts bounds the nesting of JSON texts that are searched. One level deeper a quote
// would have 63 backslashes.
const maxTexts = 5

// stars is the replacement of a secret, by its nesting in JSON texts.
var stars = func() (stars [maxTexts + 1]string) {
	text := `"***"`
	for level := range stars {
		stars[level] = text
		text = strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(text)
	}
	return stars
}()

// note reports whether a name is masked, and marks its value, at i, as a secret.
func (s *scanner) note(name value, i int) bool {
	plain := s.b[name.start+1 : name.end-1]
	if name.kind == kindEscaped {
		plain = unquote(nil, plain)
	}
	if !s.mask.has(plain) {
		return false
	}
	s.hide(i)
	return true
}

// hide marks the value at i as a secret. null is not one. An unterminated value is a
// secret up to the end.
func (s *scanner) hide(i int) {
	if i < s.until {
		return // inside another one
	}
	value := scanner{b: s.b}
	end, k := value.skip(i, len(s.b))
	switch {
	case end < 0:
		end = len(s.b)
	case k == kindNull, end-i == 2 && (k == kindString || k >= kindObject):
		return
	}
	s.masked = append(s.masked, secret{uint32(min(i, end)), uint32(end), s.level})
	s.until = end
}

// ofVariable notes the members of a value that a variable may consist of. It returns no
// field.
func (w *walker) ofVariable(f field, at int) field {
	switch {
	case w.mask == nil:
	case f == fieldVariableName:
		w.variableNames = append(w.variableNames, uint32(at))
	default:
		w.variableValues = append(w.variableValues, uint32(at))
	}
	return fieldUnknown
}

// noteVariable hides the value of a variable with a masked name. A record without type
// may be one. Every occurrence of a repeated member counts: the body has all of them.
func (w *walker) noteVariable() {
	switch t := w.get(fieldValueType); string(w.text(t)) {
	case "VARIABLE", "CLUSTER_VARIABLE", "":
	default:
		return
	}
	if !slices.ContainsFunc(w.variableNames, w.isMasked) {
		return
	}
	for _, at := range w.variableValues {
		w.until = 0 // an earlier secret may be inside it
		w.hide(int(at))
	}
}

// isMasked reports whether the text at an offset is a masked name.
func (w *walker) isMasked(at uint32) bool {
	text := scanner{b: w.b}
	end, k := text.skip(int(at), 0)
	return end >= 0 && (k == kindString || k == kindEscaped) && w.mask.has(w.plainName(value{at, uint32(end), k}))
}

// within finds secrets in texts that are JSON.
type within struct {
	scanner        // of plain
	plain   []byte // the text without its escapes
}

// lookInto finds the secrets in the text at:end, if it is JSON.
func (s *scanner) lookInto(at, end int) {
	raw := s.b[at+1 : end-1]
	if at < s.until || !mayHoldNames(raw) {
		return
	}
	if s.level == maxTexts {
		s.masked = append(s.masked, secret{uint32(at), uint32(end), s.level})
		s.until = end
		return
	}
	if s.within == nil {
		s.within = new(within)
	}
	in := s.within
	in.plain = unquote(in.plain[:0], raw)
	in.b, in.mask, in.level, in.masked, in.until = in.plain, s.mask, s.level+1, in.masked[:0], 0
	i := in.space(0)
	to, k := in.skip(i, len(in.b))
	if to < 0 || in.space(to) < len(in.b) {
		return
	}
	if k == kindEscaped {
		in.lookInto(i, to)
	}
	place := place{raw: raw}
	for _, found := range in.masked {
		found.start = uint32(at + 1 + place.of(int(found.start)))
		found.end = uint32(at + 1 + place.of(int(found.end)))
		s.masked = append(s.masked, found)
	}
}

// mayHoldNames reports whether an escaped text may be JSON with members.
func mayHoldNames(raw []byte) bool {
	switch {
	case len(raw) == 0:
		return false
	case raw[0] == '\\' && raw[1] == '"': // a nested text with escapes of its own
		return bytes.Contains(raw, []byte(`\\`)) || bytes.Contains(raw, []byte(`\u`))
	}
	return raw[0] == '{' || raw[0] == '[' || raw[0] == '\\' || raw[0] == ' '
}

// place maps offsets of an unescaped text to the escaped one.
type place struct {
	raw       []byte
	i         int // in raw
	unescaped int // the same offset, unescaped
}

// of is called with ascending offsets.
func (p *place) of(unescaped int) int {
	for p.unescaped < unescaped {
		switch {
		case p.raw[p.i] != '\\':
			p.i++
			p.unescaped++
		case p.raw[p.i+1] == 'u':
			r, next := unicodeEscape(p.raw, p.i+2)
			p.i = next
			p.unescaped += utf8.RuneLen(r)
		default:
			p.i += 2
			p.unescaped++
		}
	}
	return p.i
}

// arranged is secrets in order, without nested ones and duplicates: a wrapped list of
// records is read twice.
func arranged(secrets []secret) []secret {
	slices.SortFunc(secrets, func(a, b secret) int { return cmp.Compare(a.start, b.start) })
	read := uint32(0)
	return slices.DeleteFunc(secrets, func(one secret) bool {
		if one.start < read {
			return true
		}
		read = one.end
		return false
	})
}

// growth is the bytes by which replacement lengthens arranged secrets.
func growth(secrets []secret) (n int) {
	for _, one := range secrets {
		n += len(stars[one.level]) - int(one.end-one.start)
	}
	return n
}

// hide replaces the secrets, in place where the replacements fit, which is usual.
func (r *Request) hide() {
	cuts, read, written, room := r.cuts[:0], 0, 0, true
	w := r.walker()
	for _, m := range arranged(w.masked) {
		written += int(m.start) - read + len(stars[m.level])
		read = int(m.end)
		room = room && written <= read // always: no unread byte is overwritten
		cuts = append(cuts, cut{m, int32(written - read)})
	}
	to := r.body
	if !room {
		to = make([]byte, written+len(r.body)-read)
	}
	read, written = 0, 0
	for _, c := range cuts {
		written += copy(to[written:], r.body[read:c.start])
		written += copy(to[written:], stars[c.level])
		read = int(c.end)
	}
	written += copy(to[written:], r.body[read:])
	r.body, w.b, r.cuts = to[:written], to[:written], cuts

	var moved int32
	at := func(i uint32) uint32 { // where i is now
		for len(cuts) > 0 && cuts[0].start < i {
			moved, cuts = cuts[0].moved, cuts[1:]
		}
		return uint32(int32(i) + moved)
	}
	for i := range r.records {
		p := &r.records[i]
		p.start, p.end = at(p.start), at(p.end)
	}
}

// cut is a replaced value and the shift of the bytes after it.
type cut struct {
	secret
	moved int32
}
