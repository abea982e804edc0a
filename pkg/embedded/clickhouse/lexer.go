package clickhouse

import "strings"

type tokenKind int

const (
	tokenEnd    tokenKind = iota
	tokenWord             // an unquoted identifier or keyword
	tokenName             // `quoted` or "quoted"
	tokenText             // 'text' or a $heredoc$
	tokenNumber           // begins with a digit
	tokenMark             // any other single byte
)

type token struct {
	kind       tokenKind
	start, end int // in the statement's text
}

// lexer splits a statement's text into tokens the way ClickHouse does, as far
// as needed to find where its clauses begin. It never fails: what ClickHouse
// would refuse becomes some token, and ClickHouse refuses it later.
type lexer struct {
	text string
	pos  int
}

// next returns the next token, skipping white space and comments.
func (l *lexer) next() token {
	l.skip()
	start := l.pos
	if start >= len(l.text) {
		return token{kind: tokenEnd, start: start, end: start}
	}
	kind := tokenMark
	switch b := l.text[start]; {
	case isWordByte(b) && !isDigit(b):
		kind = tokenWord
		l.pos = l.scan(start, isWordByte)
	case isDigit(b):
		kind = tokenNumber
		l.pos = l.scan(start, func(b byte) bool { return isWordByte(b) || b == '.' })
	case b == '\'':
		kind = tokenText
		l.pos = l.quoted(start, b)
	case b == '`' || b == '"':
		kind = tokenName
		l.pos = l.quoted(start, b)
	case b == '$':
		if end := l.heredoc(start); end > 0 {
			kind, l.pos = tokenText, end
			break
		}
		fallthrough
	default:
		l.pos = start + 1
	}
	return token{kind: kind, start: start, end: l.pos}
}

// skip moves over white space and comments.
func (l *lexer) skip() {
	for l.pos < len(l.text) {
		rest := l.text[l.pos:]
		switch {
		case isSpace(rest[0]):
			l.pos++
		case strings.HasPrefix(rest, "--"), strings.HasPrefix(rest, "#!"), strings.HasPrefix(rest, "# "):
			l.skipTo("\n", 2)
		case strings.HasPrefix(rest, "/*"):
			l.skipTo("*/", 2)
		default:
			return
		}
	}
}

func (l *lexer) skipTo(mark string, from int) {
	if at := strings.Index(l.text[l.pos+from:], mark); at >= 0 {
		l.pos += from + at + len(mark)
		return
	}
	l.pos = len(l.text)
}

func (l *lexer) scan(from int, in func(byte) bool) int {
	for from < len(l.text) && in(l.text[from]) {
		from++
	}
	return from
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

// heredoc returns the end of the $tag$text$tag$ at start, or 0 if it is none.
func (l *lexer) heredoc(start int) int {
	tagEnd := l.scan(start+1, isWordByte)
	if tagEnd == len(l.text) || l.text[tagEnd] != '$' {
		return 0
	}
	tag := l.text[start : tagEnd+1]
	at := strings.Index(l.text[tagEnd+1:], tag)
	if at < 0 {
		return 0
	}
	return tagEnd + 1 + at + len(tag)
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

func isSpace(b byte) bool { return b == ' ' || '\t' <= b && b <= '\r' }

func isWordByte(b byte) bool {
	return b == '_' || isDigit(b) || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || b >= 0x80
}
