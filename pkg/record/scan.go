package record

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// kind is the lexical kind of a JSON value.
type kind uint8

const (
	kindNone    kind = iota // the member is missing
	kindNull                // null
	kindBool                // true or false
	kindString              // text without escapes
	kindEscaped             // text with escapes
	kindInt                 // a number of at most 18 digits: it fits 64 bits
	kindNumber              // any other number
	kindObject
	kindArray
)

// value is the span and kind of a JSON value.
type value struct {
	start, end uint32
	kind       kind
}

// scanner reads JSON text exactly as RFC 8259 defines it, in valid UTF-8. Its methods take
// a start position and return the position after what they read, or -1 after an error:
// code and pos are then set.
type scanner struct {
	b    []byte
	code string
	pos  int

	open []byte // closing brackets of the enclosing objects and arrays

	mask   *Mask    // which values are secrets; nil: not needed
	masked []secret // those found
	until  int      // end of the last one; nested secrets need no mask
	named  bool     // the name read last is masked
	level  uint8    // nesting of b in JSON texts
	within *within  // for JSON texts; created for the first
}

func (s *scanner) fail(code string, pos int) int {
	s.code, s.pos = code, pos
	return -1
}

// space skips white space.
func (s *scanner) space(i int) int {
	if i < len(s.b) && s.b[i] > ' ' {
		return i
	}
	return s.spaces(i)
}

func (s *scanner) spaces(i int) int {
	for i < len(s.b) && (s.b[i] == ' ' || s.b[i] == '\n' || s.b[i] == '\r' || s.b[i] == '\t') {
		i++
	}
	return i
}

// skip reads any value that nests at most depth deep.
func (s *scanner) skip(i, depth int) (int, kind) {
	if i >= len(s.b) {
		return s.fail(CodeInvalidJSON, i), kindNone
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.text(i)
	case c == '-' || c-'0' < 10:
		return s.number(i)
	case c == '{':
		return s.nested(i, depth), kindObject
	case c == '[':
		return s.nested(i, depth), kindArray
	}
	switch b := s.b[i:]; {
	case len(b) >= 4 && string(b[:4]) == "null":
		return i + 4, kindNull
	case len(b) >= 4 && string(b[:4]) == "true":
		return i + 4, kindBool
	case len(b) >= 5 && string(b[:5]) == "false":
		return i + 5, kindBool
	}
	return s.fail(CodeInvalidJSON, i), kindNone
}

// nested reads an object or array. It is not recursive: JSON texts nest without limit.
func (s *scanner) nested(i, depth int) int {
	for open := s.open[:0]; ; {
		if len(open) >= depth {
			return s.fail(CodeTooDeep, i)
		}
		end := s.b[i] + '}' - '{' // likewise for arrays
		open = append(open, end)
		i++
		for first := true; ; first = false {
			var more bool
			if i, more = s.next(i, first, end); !more {
				if open = open[:len(open)-1]; i < 0 || len(open) == 0 {
					s.open = open
					return i
				}
				end = open[len(open)-1]
				continue
			}
			if end == '}' {
				if _, i = s.key(i); i < 0 {
					return -1
				}
			}
			if i < len(s.b) && (s.b[i] == '{' || s.b[i] == '[') {
				break
			}
			at := i
			var k kind
			if i, k = s.skip(at, 0); i < 0 {
				return -1
			}
			if k == kindEscaped && s.mask != nil {
				s.lookInto(at, i)
			}
		}
	}
}

// next finds the next element or member before the closing bracket end; i is after the
// opening bracket or the last element. Without a next one, at is after the closing
// bracket.
func (s *scanner) next(i int, first bool, end byte) (at int, more bool) {
	if i = s.space(i); i < len(s.b) {
		switch c := s.b[i]; {
		case c == end:
			return i + 1, false
		case first:
			return i, true
		case c == ',':
			return s.space(i + 1), true
		}
	}
	return s.fail(CodeInvalidJSON, i), false
}

// follows reports whether a comma at i is directly followed by a member.
func (s *scanner) follows(i int) bool {
	return i+1 < len(s.b) && s.b[i] == ',' && s.b[i+1] > ' '
}

// key reads the name of a member and the colon; at is the start of its value.
func (s *scanner) key(i int) (name value, at int) {
	if i >= len(s.b) || s.b[i] != '"' {
		return value{}, s.fail(CodeInvalidJSON, i)
	}
	end, k := s.text(i)
	if end < 0 {
		return value{}, -1
	}
	if at = s.space(end); at >= len(s.b) || s.b[at] != ':' {
		return value{}, s.fail(CodeInvalidJSON, at)
	}
	name, at = value{uint32(i), uint32(end), k}, s.space(at+1)
	if s.mask != nil {
		s.named = s.note(name, at)
	}
	return name, at
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// stops marks, in the high bits of bytes, the quotes, backslashes and control characters
// among the eight bytes of w. Only the lowest mark is reliable.
func stops(w uint64) uint64 {
	return ((w - 0x20*ones) | (w ^ '"'*ones - ones) | ((w ^ '\\'*ones) - ones)) &^ w & highs
}

// text reads a string; i is at its quote.
func (s *scanner) text(i int) (int, kind) {
	var high uint64 // collects the high bits of all bytes: none set means ASCII
	for b := s.b[i+1:]; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		stop := stops(w)
		if stop == 0 {
			high |= w
			continue
		}
		n := bits.TrailingZeros64(stop) &^ 7
		if byte(w>>n) == '"' && (high|w&(1<<n-1))&highs == 0 {
			return len(s.b) - len(b) + n/8 + 1, kindString
		}
		break
	}
	return s.anyText(i)
}

// anyText is text for strings with escapes, beyond ASCII, invalid, or near the end.
func (s *scanner) anyText(i int) (int, kind) {
	b, start, k := s.b, i, kindString
	ascii := true
	for i++; ; {
		for ; i+8 <= len(b); i += 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			ascii = ascii && w&highs == 0
			if stop := stops(w); stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
		}
		for ; i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' '; i++ {
			ascii = ascii && b[i] < utf8.RuneSelf
		}
		switch {
		case i >= len(b) || b[i] < ' ':
			return s.fail(CodeInvalidJSON, i), k
		case b[i] == '"':
			if !ascii && !utf8.Valid(b[start:i]) {
				return s.fail(CodeInvalidUTF8, start), k
			}
			return i + 1, k
		}
		if i = s.escape(i); i < 0 {
			return -1, k
		}
		k = kindEscaped
	}
}

// escape reads one escape sequence; i is at its backslash.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.b) {
		return s.fail(CodeInvalidJSON, i)
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		if _, ok := hex4(s.b[i+2:]); ok {
			return i + 6
		}
	}
	return s.fail(CodeInvalidJSON, i)
}

// number reads a number; i is at its sign or first digit.
func (s *scanner) number(i int) (int, kind) {
	b, k := s.b, kindInt
	if b[i] == '-' {
		i++
	}
	start := i
	i = digits(b, i)
	if n := i - start; n == 0 || n > 1 && b[start] == '0' {
		return s.fail(CodeInvalidJSON, i), k
	} else if n > 18 {
		k = kindNumber
	}
	if i < len(b) && b[i] == '.' {
		k, start = kindNumber, i+1
		if i = digits(b, start); i == start {
			return s.fail(CodeInvalidJSON, i), k
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		k, start = kindNumber, i+1
		if start < len(b) && (b[start] == '+' || b[start] == '-') {
			start++
		}
		if i = digits(b, start); i == start {
			return s.fail(CodeInvalidJSON, i), k
		}
	}
	return i, k
}

// digits returns the position after the decimal digits that begin at i.
func digits(b []byte, i int) int {
	for b := b[i:]; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b) ^ '0'*ones // digits become 0 to 9
		if stop := (w + (0x80-10)*ones | w) & highs; stop != 0 {
			return i + bits.TrailingZeros64(stop)/8
		}
		i += 8
	}
	for ; i < len(b) && b[i]-'0' < 10; i++ {
	}
	return i
}

// unquote appends the unescaped inside of a JSON string that a scanner accepted. A lone
// surrogate becomes U+FFFD, as in encoding/json.
func unquote(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = s[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			var r rune
			r, i = unicodeEscape(s, i)
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

// unicodeEscape decodes the hexadecimal digits at i, and the second half of a
// surrogate pair if it follows.
func unicodeEscape(s []byte, i int) (rune, int) {
	r, _ := hex4(s[i:])
	i += 4
	if !utf16.IsSurrogate(r) {
		return r, i
	}
	if i+6 <= len(s) && s[i] == '\\' && s[i+1] == 'u' {
		low, _ := hex4(s[i+2:])
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, i + 6
		}
	}
	return utf8.RuneError, i
}

func hex4(s []byte) (r rune, ok bool) {
	if len(s) < 4 {
		return 0, false
	}
	for _, c := range s[:4] {
		switch {
		case c-'0' < 10:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
