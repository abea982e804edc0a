package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"sluice/pkg/record"
)

// placedBytes is the formatted body of a dead letter, with the rejected members marked.
type placedBytes struct {
	Pieces []piece
	Size   int
	Places []string // JSON pointers, or a sentence
	Cut    bool     // truncated
	Hex    bool     // shown as a hex dump
}

type piece struct {
	Text   string
	Marked bool
}

// maxShown bounds the bytes on a page; the download has all of them.
const maxShown = 256 << 10

// place marks the rejected parts of a body. In invalid JSON it marks the byte of the
// syntax error. Otherwise the reason names a member, as a JSON pointer or by its column,
// or place validates the record again, as the api does.
func place(body []byte, reason string) placedBytes {
	p := placedBytes{Size: len(body)}
	if !utf8.Valid(body) || bytes.ContainsFunc(body, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) }) {
		p.Hex, p.Cut = true, len(body) > maxShown/4
		p.Pieces = []piece{{Text: hex.Dump(body[:min(len(body), maxShown/4)])}}
		return p
	}
	var pretty bytes.Buffer
	err := json.Indent(&pretty, body, "", "  ")
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		at := min(max(int(syntax.Offset)-1, 0), len(body))
		p.Places = []string{"byte " + strconv.Itoa(at) + ": not valid JSON from here (" + syntax.Error() + ")"}
		p.mark(body, []stretch{{at, min(at+1, len(body))}})
		return p
	}
	var spans []stretch
	text := pretty.Bytes()
	for _, pointer := range pointers(body, reason) {
		if found, ok := find(text, pointer); ok {
			spans, p.Places = append(spans, found), append(p.Places, "/"+strings.Join(pointer, "/"))
		}
	}
	if len(p.Places) == 0 {
		p.Places = []string{"the record as a whole: see the reason"}
	}
	p.mark(text, spans)
	return p
}

// stretch is a half-open range of bytes.
type stretch struct{ start, end int }

// mark splits text into pieces at the spans.
func (p *placedBytes) mark(text []byte, spans []stretch) {
	slices.SortFunc(spans, func(a, b stretch) int { return a.start - b.start })
	if p.Cut = len(text) > maxShown; p.Cut {
		text = text[:maxShown]
	}
	at := 0
	for _, s := range spans {
		s.start, s.end = max(s.start, at), min(s.end, len(text))
		if s.start >= s.end {
			continue
		}
		p.Pieces = append(p.Pieces, piece{Text: string(text[at:s.start])}, piece{string(text[s.start:s.end]), true})
		at = s.end
	}
	p.Pieces = append(p.Pieces, piece{Text: string(text[at:])})
}

var (
	pointerIn = regexp.MustCompile(`#((?:/[^/\s]+)+)`)
	columnIn  = regexp.MustCompile(`\b[a-z]+(?:_[a-z]+)+\b`)
)

// pointers are the paths of members that may have been rejected.
func pointers(body []byte, reason string) (all [][]string) {
	add := func(path ...string) {
		if !slices.ContainsFunc(all, func(p []string) bool { return slices.Equal(p, path) }) {
			all = append(all, path)
		}
	}
	for _, found := range pointerIn.FindAllStringSubmatch(reason, -1) {
		add(pathOf(found[1])...)
	}
	for _, column := range columnIn.FindAllString(reason, -1) {
		var member strings.Builder
		for i, word := range strings.Split(column, "_") {
			if i > 0 {
				word = strings.ToUpper(word[:1]) + word[1:]
			}
			member.WriteString(word)
		}
		add(member.String())
		add("value", member.String())
	}
	request := record.NewRequest()
	refused, err := request.ParseEach(slices.Clone(body), []record.Span{{Start: 0, End: len(body)}}, record.Limits{})
	request.Release()
	for _, one := range refused {
		if path := pathOf(strings.TrimPrefix(one.Pointer, "#")); err == nil && len(path) > 0 {
			add(path...)
		}
	}
	return all
}

// pathOf splits a JSON pointer.
func pathOf(pointer string) []string {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i, part := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	return slices.DeleteFunc(parts, func(part string) bool { return part == "" })
}

// find locates the value at a path in JSON.
func find(text []byte, path []string) (stretch, bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var walk func(path []string) (stretch, bool)
	walk = func(path []string) (stretch, bool) {
		if len(path) == 0 {
			var value json.RawMessage
			if d.Decode(&value) != nil {
				return stretch{}, false
			}
			end := int(d.InputOffset())
			return stretch{end - len(value), end}, true
		}
		open, err := d.Token()
		if err != nil || open != json.Delim('{') && open != json.Delim('[') {
			return stretch{}, false
		}
		for i := 0; d.More(); i++ {
			name := strconv.Itoa(i)
			if open == json.Delim('{') {
				key, err := d.Token()
				if err != nil {
					return stretch{}, false
				}
				name, _ = key.(string)
			}
			if name == path[0] {
				return walk(path[1:])
			}
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil && !errors.Is(err, io.EOF) {
				return stretch{}, false
			}
		}
		return stretch{}, false
	}
	return walk(path)
}
