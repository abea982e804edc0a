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

// Mask says which values of a posted record are secrets: they are replaced by "***"
// before anything is made of the body, its hash included. A name means the members of
// that name at any depth, in any case of letters, also in texts that are JSON, and the
// value of a VARIABLE record of that name. Nothing else of the body changes.
type Mask struct {
	names   [][]byte
	lengths uint64    // bit n: a name may have n bytes in some case of letters, 63 and more are one bit
	first   [256]bool // what it may begin with
}

// always is masked whatever the options say: USER and IDENTITY records have it.
const always = "password"

var defaultMask, _ = NewMask(nil)

// maskable are the fields with names that only readers look at. All others of them are
// needed as they are: for identity, types, tables or routing.
var maskable = []field{fieldRejectionReason, fieldWorker, fieldErrorMessage, fieldVariables, fieldCustomHeaders}

// asTheyAre is the set of those others. Texts that are JSON are none of them, but for a
// value that is no object.
var asTheyAre = func() uint64 {
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

// NewMask masks password and more names. An error names the one that cannot be.
func NewMask(more []string) (*Mask, error) {
	if len(more) > maxMasked {
		return nil, fmt.Errorf("%d names, at most %d can be masked", len(more), maxMasked)
	}
	m := &Mask{}
	for _, name := range append([]string{always}, more...) {
		if name == "" || len(name) > maxMaskedName || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%q is no name of a member: 1 to %d bytes of UTF-8", name, maxMaskedName)
		}
		for f, spec := range named {
			if strings.EqualFold(name, spec.name) && !slices.Contains(maskable, field(f)) {
				return nil, fmt.Errorf("%q cannot be masked: Sluice needs the member %s as it is", name, spec.name)
			}
		}
		m.add(name)
	}
	return m, nil
}

// add notes a name and what it looks like in other cases of letters, which may
// have more or fewer bytes.
func (m *Mask) add(name string) {
	m.names = append(m.names, []byte(name))
	shortest, longest := 0, 0
	for i, r := range name {
		least, most := utf8.RuneLen(r), utf8.RuneLen(r)
		for other := unicode.SimpleFold(r); ; other = unicode.SimpleFold(other) {
			least, most = min(least, utf8.RuneLen(other)), max(most, utf8.RuneLen(other))
			if i == 0 {
				m.first[utf8.AppendRune(nil, other)[0]] = true
			}
			if other == r {
				break
			}
		}
		shortest, longest = shortest+least, longest+most
	}
	for n := shortest; n <= longest; n++ {
		m.lengths |= 1 << min(n, 63)
	}
}

// has tells whether a name without quotes and escapes is one of the Mask. It is
// asked for every name that is not remembered, so it first looks at what nearly
// all fail.
func (m *Mask) has(name []byte) bool {
	if m.lengths>>min(len(name), 63)&1 == 0 || len(name) == 0 || !m.first[name[0]] {
		return false
	}
	return slices.ContainsFunc(m.names, func(masked []byte) bool { return bytes.EqualFold(masked, name) })
}

// secret is a value that is replaced.
type secret struct {
	start, end uint32
	level      uint8 // texts it is in
}

// maxTexts is how deep texts that are JSON are followed into each other. In one more, a
// quote would have 63 backslashes.
const maxTexts = 5

// stars is what stands for a secret, by the texts it is in.
var stars = func() (stars [maxTexts + 1]string) {
	text := `"***"`
	for level := range stars {
		stars[level] = text
		text = strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(text)
	}
	return stars
}()

// note tells whether a name is masked, and remembers that its value, at i, is a secret.
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

// hide remembers that the value at i is a secret. Nothing is nothing to hide. What does
// not end is a secret up to the end.
func (s *scanner) hide(i int) {
	if i < s.until {
		return // inside of another one
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

// ofVariable notes where a member of a value is that a variable may consist of, and
// returns which field it is: none.
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

// noteVariable hides the value of a variable whose name is masked. A record that says
// no type may be one. Of members that occur twice any counts: the body has all of them.
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
		w.until = 0 // a secret of before may be inside of it
		w.hide(int(at))
	}
}

// isMasked tells whether the text at a place is a masked name.
func (w *walker) isMasked(at uint32) bool {
	text := scanner{b: w.b}
	end, k := text.skip(int(at), 0)
	return end >= 0 && (k == kindString || k == kindEscaped) && w.mask.has(w.plainName(value{at, uint32(end), k}))
}

// within looks for secrets in texts that are JSON.
type within struct {
	scanner        // of plain
	plain   []byte // the text without its escapes
}

// lookInto finds the secrets in the text from at to end, if it is JSON.
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

// mayHoldNames tells whether a text with escapes may be JSON that has members.
func mayHoldNames(raw []byte) bool {
	switch {
	case len(raw) == 0:
		return false
	case raw[0] == '\\' && raw[1] == '"': // a text again: one with escapes of its own
		return bytes.Contains(raw, []byte(`\\`)) || bytes.Contains(raw, []byte(`\u`))
	}
	return raw[0] == '{' || raw[0] == '[' || raw[0] == '\\' || raw[0] == ' '
}

// place finds out where a byte of a text without escapes is in the text with them.
type place struct {
	raw       []byte
	i         int // in raw
	unescaped int // the same without escapes
}

// of is asked for one byte after the other, in order.
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

// arranged are secrets in their order, without those inside of others and those that were
// found twice: a list of records that is wrapped is read twice.
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

// growth is how many bytes longer secrets get that are arranged.
func growth(secrets []secret) (n int) {
	for _, one := range secrets {
		n += len(stars[one.level]) - int(one.end-one.start)
	}
	return n
}

// hide replaces the secrets: in the memory of the body where there is room for what
// stands for them, which there mostly is.
func (r *Request) hide() {
	cuts, read, written, room := r.cuts[:0], 0, 0, true
	for _, m := range arranged(r.w.masked) {
		written += int(m.start) - read + len(stars[m.level])
		read = int(m.end)
		room = room && written <= read // always: nothing is written over what is still to be read
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
	r.body, r.w.b, r.cuts = to[:written], to[:written], cuts

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

// cut is a value that was replaced, and how much farther what follows it is since.
type cut struct {
	secret
	moved int32
}
