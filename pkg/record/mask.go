package record

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Mask says which members of a posted record hold secrets: their values are
// replaced before anything is made of the body, its hash included. A name means
// the members of that name at any depth, in any case of letters, as it does for
// users. A text that holds JSON is a text: nothing inside of it has a name.
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

// note remembers that the value at i belongs to a masked name.
func (s *scanner) note(name value, i int) {
	plain := s.b[name.start+1 : name.end-1]
	if name.kind == kindEscaped {
		plain = unquote(nil, plain)
	}
	if s.mask.has(plain) {
		s.masked = append(s.masked, uint32(i))
	}
}

// hide replaces the masked values, in the memory of the body, which becomes
// shorter: what stands for a value is never longer than it.
func (r *Request) hide() {
	masked := r.w.masked
	slices.Sort(masked) // a list of records that is wrapped was read twice
	s, read, written := scanner{b: r.body}, 0, 0
	cuts := r.cuts[:0]
	for _, start := range masked {
		if int(start) < read {
			continue // inside of a value that is hidden, or the same again
		}
		end, k := s.skip(int(start), deepest+2)
		written += copy(r.body[written:], r.body[read:start])
		written += copy(r.body[written:], hidden(r.body[start:end], k))
		read = end
		cuts = append(cuts, cut{start, uint32(read - written)})
	}
	written += copy(r.body[written:], r.body[read:])
	r.body, r.w.b, r.cuts = r.body[:written], r.body[:written], cuts

	var gone uint32
	before := func(i uint32) uint32 { // the bytes that are gone before i
		for len(cuts) > 0 && cuts[0].at < i {
			gone, cuts = cuts[0].gone, cuts[1:]
		}
		return gone
	}
	for i := range r.records {
		p := &r.records[i]
		p.start -= before(p.start)
		p.end -= before(p.end)
	}
}

// cut is a value that was replaced: where it stood, and how many bytes are gone
// from the body up to its end.
type cut struct{ at, gone uint32 }

// hidden is what stands for a value: three asterisks, or as many as there is
// room for, and 0 for a single digit. Nothing is nothing to hide.
func hidden(raw []byte, k kind) string {
	switch {
	case k == kindNull || len(raw) == 2 && (k == kindString || k >= kindObject):
		return string(raw)
	case len(raw) == 1:
		return "0"
	}
	return `"***"`[:min(3, len(raw)-2)+1] + `"`
}
