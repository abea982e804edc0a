package server

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

type tokenKind int

const (
	tokenEnd    tokenKind = iota
	tokenWord             // an unquoted identifier or keyword
	tokenName             // `quoted`, "quoted" or “quoted”
	tokenText             // 'text', ‘text’, x'hex' or a $heredoc$
	tokenNumber           // begins with a digit
	tokenMark             // any other single byte
)

type token struct {
	kind       tokenKind
	start, end int // in the statement's text
}

// lexer splits a statement into tokens exactly as ClickHouse's Lexer.cpp does, errors
// included: permissions depend on the tokens, so no text may look different to the two. It
// never fails: what ClickHouse would refuse becomes some token, and ClickHouse refuses it
// later.
type lexer struct {
	text string
	pos  int
	last byte // of the token before: its mark, or 'a' for a word, name or number; decides how a dot is read
}

// next returns the next token, skipping white space and comments.
func (l *lexer) next() token {
	l.skip()
	start := l.pos
	if start >= len(l.text) {
		return token{kind: tokenEnd, start: start, end: start}
	}
	kind := tokenMark
	rest := l.text[start:]
	switch b := rest[0]; {
	case isDigit(b):
		kind = tokenNumber
		l.pos = l.number(start)
	case b == '.' && start > 0 && (len(rest) == 1 || !isDigit(rest[1]) || strings.IndexByte(")]a", l.last) >= 0):
		l.pos = start + 1 // between names, or into a tuple
	case b == '.':
		kind = tokenNumber
		l.pos = l.exponent(l.digits(start+1, isDigit), "eE")
	case (b == 'x' || b == 'X' || b == 'b' || b == 'B') && len(rest) > 2 && rest[1] == '\'':
		kind = tokenText
		l.pos = l.binary(start)
	case b == '\'':
		kind = tokenText
		l.pos = l.quoted(start, b)
	case b == '`' || b == '"':
		kind = tokenName
		l.pos = l.quoted(start, b)
	case strings.HasPrefix(rest, "‘"):
		kind = tokenText
		l.pos = l.upTo(start+len("‘"), "’")
	case strings.HasPrefix(rest, "“"):
		kind = tokenName
		l.pos = l.upTo(start+len("“"), "”")
	case b == '$':
		if end := l.heredoc(start); end > 0 {
			kind, l.pos = tokenText, end
			break
		}
		if len(rest) == 1 || !isWordByte(rest[1]) {
			l.pos = start + 1
			break
		}
		fallthrough
	case isWordByte(b):
		kind = tokenWord
		l.pos = l.scan(start+1, func(b byte) bool { return isWordByte(b) || b == '$' })
	default:
		l.pos = start + 1
	}
	switch kind {
	case tokenWord, tokenName, tokenNumber:
		l.last = 'a'
	default:
		l.last = rest[0]
	}
	return token{kind: kind, start: start, end: l.pos}
}

// skip skips white space and comments.
func (l *lexer) skip() {
	for l.pos < len(l.text) {
		rest := l.text[l.pos:]
		switch {
		case isSpace(rest[0]):
			l.pos++
		case strings.HasPrefix(rest, "--"), strings.HasPrefix(rest, "//"), strings.HasPrefix(rest, "#!"), strings.HasPrefix(rest, "# "):
			l.pos = l.lineEnd(l.pos + 2)
		case strings.HasPrefix(rest, "/*"):
			l.pos = l.commentEnd(l.pos + 2)
		default:
			r, size := utf8.DecodeRuneInString(rest)
			if !isWideSpace(r) {
				return
			}
			l.pos += size
		}
	}
}

func (l *lexer) lineEnd(from int) int {
	if at := strings.IndexByte(l.text[from:], '\n'); at >= 0 {
		return from + at
	}
	return len(l.text)
}

// commentEnd is the end of a comment, perhaps with nested ones.
func (l *lexer) commentEnd(from int) int {
	for depth := 1; from+2 <= len(l.text); {
		switch l.text[from : from+2] {
		case "/*":
			depth++
			from += 2
		case "*/":
			depth--
			from += 2
			if depth == 0 {
				return from
			}
		default:
			from++
		}
	}
	return len(l.text)
}

// upTo is the end of a quoted text without escapes.
func (l *lexer) upTo(from int, mark string) int {
	if at := strings.Index(l.text[from:], mark); at >= 0 {
		return from + at + len(mark)
	}
	return len(l.text)
}

func (l *lexer) scan(from int, in func(byte) bool) int {
	for from < len(l.text) && in(l.text[from]) {
		from++
	}
	return from
}

// number is the end of a number, or of a name that begins with a digit.
func (l *lexer) number(start int) int {
	if l.last == '.' { // of a tuple: t.1.1
		return l.scan(l.digits(start, isDigit), isWordByte)
	}
	isOne, marks, at := isDigit, "eE", start
	if rest := l.text[start:]; len(rest) > 2 && rest[0] == '0' {
		switch {
		case (rest[1] == 'x' || rest[1] == 'X') && isHex(rest[2]):
			isOne, marks, at = isHex, "pP", start+2
		case (rest[1] == 'b' || rest[1] == 'B') && (rest[2] == '0' || rest[2] == '1'):
			at = start + 2
		}
	}
	at = l.digits(at, isOne)
	if at < len(l.text) && l.text[at] == '.' {
		at = l.digits(at+1, isOne)
	}
	return l.scan(l.exponent(at, marks), isWordByte)
}

// digits is the end of digits, perhaps with underscores between them.
func (l *lexer) digits(from int, is func(byte) bool) int {
	for at := from; ; at++ {
		if at == len(l.text) {
			return at
		}
		separator := l.text[at] == '_' && at > from && at+1 < len(l.text) && is(l.text[at+1])
		if !is(l.text[at]) && !separator {
			return at
		}
	}
}

// exponent is the end of an exponent, if there is one: it is decimal, and its
// sign belongs to it even if no digit follows.
func (l *lexer) exponent(at int, marks string) int {
	if at+1 >= len(l.text) || strings.IndexByte(marks, l.text[at]) < 0 {
		return at
	}
	at++
	if at+1 < len(l.text) && (l.text[at] == '-' || l.text[at] == '+') {
		at++
	}
	return l.digits(at, isDigit)
}

// binary is the end of x'…' or b'…', which has no escapes.
func (l *lexer) binary(start int) int {
	is := func(b byte) bool { return b == '0' || b == '1' }
	if b := l.text[start]; b == 'x' || b == 'X' {
		is = isHex
	}
	end := l.scan(start+2, is)
	if end < len(l.text) && l.text[end] == '\'' {
		return end + 1
	}
	return len(l.text)
}

// quoted returns the end of the quoted text at start: a quote inside is escaped
// by a backslash or doubled.
func (l *lexer) quoted(start int, quote byte) int {
	for at := start + 1; at < len(l.text); at++ {
		switch l.text[at] {
		case '\\':
			at++
		case quote:
			if at+1 == len(l.text) || l.text[at+1] != quote {
				return at + 1
			}
			at++
		}
	}
	return len(l.text)
}

// heredoc returns the end of the $tag$text$tag$ at start, or 0.
func (l *lexer) heredoc(start int) int {
	tagEnd := strings.IndexByte(l.text[start+1:], '$')
	if tagEnd < 0 {
		return 0
	}
	tag := l.text[start : start+tagEnd+2]
	from := start + len(tag)
	at := strings.Index(l.text[from:], tag)
	if at < 0 {
		return 0
	}
	return from + at + len(tag)
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func isHex(b byte) bool { return isDigit(b) || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F' }

func isSpace(b byte) bool { return b == ' ' || '\t' <= b && b <= '\r' }

func isWordByte(b byte) bool {
	return b == '_' || isDigit(b) || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// isWideSpace reports whether ClickHouse skips a space beyond ASCII.
func isWideSpace(r rune) bool {
	switch r {
	case 0x85, 0xA0, 0x180E, 0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF:
		return true
	}
	return 0x2000 <= r && r <= 0x200D
}

// nameOf is a word, quoted name, or text without quotes and escapes.
func nameOf(text string, t token) string {
	raw := text[t.start:t.end]
	if t.kind == tokenWord || len(raw) < 2 {
		return raw
	}
	for _, curly := range [][2]string{{"‘", "’"}, {"“", "”"}} {
		if inside, ok := strings.CutPrefix(raw, curly[0]); ok {
			return strings.TrimSuffix(inside, curly[1])
		}
	}
	return unescape(raw[1:], raw[0])
}

// unescape decodes a quoted text up to its closing quote.
func unescape(raw string, quote byte) string {
	var out bytes.Buffer
	for at := 0; at < len(raw); at++ {
		b := raw[at]
		if b == quote {
			if at+1 >= len(raw) || raw[at+1] != quote {
				break
			}
			at++
		}
		if b != '\\' || at+1 >= len(raw) {
			out.WriteByte(b)
			continue
		}
		at++
		switch e := raw[at]; e {
		case 'x', 'X':
			if at+2 < len(raw) {
				out.WriteByte(fromHex(raw[at+1])<<4 | fromHex(raw[at+2]))
				at += 2
			}
		case 'N': // nothing
		default:
			if i := strings.IndexByte("abefnrtv0", e); i >= 0 {
				e = "\a\b\x1b\f\n\r\t\v\x00"[i]
			}
			out.WriteByte(e)
		}
	}
	return out.String()
}

func fromHex(b byte) byte {
	switch {
	case isDigit(b):
		return b - '0'
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10
	}
	return 0xFF
}
