package server

import (
	"strings"

	"sluice/pkg/embedded/clickhouse/library"
)

// statement is the parts of a statement that the server needs before the engine runs
// it.
type statement struct {
	text   string // up to its last token; an INSERT with data: as sent
	verb   string // its first keyword in capitals: SELECT, INSERT, USE, …
	format string // of its FORMAT clause, or ""
	insert *insert
	many   bool // more statements follow
	file   bool // it reads or writes a file of the client, which only a client can do

	setsRole bool // SET ROLE or SET DEFAULT ROLE

	formatStart, formatEnd int // span of the FORMAT clause, if any
}

// insert is an INSERT with data, that is, without a SELECT.
type insert struct {
	head    string // up to, but without, VALUES or FORMAT
	target  string // table, or FUNCTION f(…), as written
	columns string // the list as written between its parentheses, or ""
	format  string // "Values" after VALUES, "" without either
	data    string // the rest of the text
}

// parseStatement finds the parts of a statement.
func parseStatement(text string) statement {
	l := &lexer{text: text}
	first := l.next()
	for isMark(text, first, ';') { // `; SELECT 1`
		first = l.next()
	}
	s := statement{text: text}
	if first.kind == tokenWord {
		s.verb = strings.ToUpper(text[first.start:first.end])
	}
	if s.verb == "INSERT" {
		if s.insert = parseInsert(text, l); s.insert != nil {
			return s
		}
	}
	if second := peek(l); s.verb == "SET" {
		s.setsRole = isWord(text, second, "ROLE") || isWord(text, second, "DEFAULT")
	}
	l.pos, l.last = first.start, 0
	s.clauses(l)
	return s
}

// clauses finds the end of a statement and its FORMAT clause, the last one except SETTINGS.
func (s *statement) clauses(l *lexer) {
	var outside []token // of all parentheses
	end, depth := 0, 0
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		if depth == 0 && isMark(l.text, t, ';') {
			for isMark(l.text, t, ';') {
				t = l.next()
			}
			s.many = t.kind != tokenEnd
			break
		}
		if t.kind == tokenMark {
			switch l.text[t.start] {
			case '(', '[', '{':
				depth++
			case ')', ']', '}':
				depth = max(0, depth-1)
			}
		}
		if depth == 0 {
			outside = append(outside, t)
		}
		end = t.end
	}
	s.text = s.text[:end]
	for i := len(outside) - 2; i > 0; i-- {
		s.file = s.file || isWord(s.text, outside[i], "INTO") && isWord(s.text, outside[i+1], "OUTFILE") ||
			isWord(s.text, outside[i], "FROM") && isWord(s.text, outside[i+1], "INFILE")
	}
	for i := len(outside) - 2; i > 0; i-- {
		name := outside[i+1]
		last := i+2 == len(outside) || isWord(s.text, outside[i+2], "SETTINGS")
		if last && name.kind == tokenWord && isWord(s.text, outside[i], "FORMAT") {
			s.format = s.text[name.start:name.end]
			s.formatStart, s.formatEnd = outside[i].start, name.end
			return
		}
	}
}

// check refuses what the engine supports and a server does not.
func (s *statement) check() error {
	if s.many {
		return library.Exceptionf("SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")
	}
	if s.file {
		return library.Exceptionf("NOT_IMPLEMENTED", "INTO OUTFILE and FROM INFILE must be handled by the client")
	}
	return nil
}

// withoutFormat is the text without its FORMAT clause.
func (s *statement) withoutFormat() string {
	if s.format == "" {
		return s.text
	}
	return s.text[:s.formatStart] + s.text[s.formatEnd:]
}

// parseInsert parses the rest after INSERT. It returns nil if the statement has no data.
func parseInsert(text string, l *lexer) *insert {
	i := new(insert)
	t := l.next()
	if !isWord(text, t, "INTO") {
		return nil
	}
	t = l.next()
	if isWord(text, t, "TABLE") {
		if following := peek(l); following.kind == tokenWord || following.kind == tokenName {
			t = l.next()
		}
	}
	start := t.start
	function := isWord(text, t, "FUNCTION") && (peek(l).kind == tokenWord || peek(l).kind == tokenName)
	if function {
		t = l.next()
	}
	if t.kind != tokenWord && t.kind != tokenName {
		return nil
	}
	end := t.end
	for t = l.next(); isMark(text, t, '.'); t = l.next() {
		end = l.next().end
	}
	if function {
		if end = closing(text, l, t); end == 0 {
			return nil
		}
		t = l.next()
	}
	i.target = text[start:end]
	for {
		switch {
		case t.kind == tokenEnd || isMark(text, t, ';'):
			i.head = text[:t.start]
			return i
		case isWord(text, t, "SELECT"), isWord(text, t, "WITH"), isWord(text, t, "FROM"), isWord(text, t, "WATCH"):
			return nil
		case isWord(text, t, "VALUES"):
			i.head, i.format = text[:t.start], "Values"
			i.data = text[t.end:]
			return i
		case isWord(text, t, "FORMAT"):
			name := l.next()
			if name.kind != tokenWord {
				return nil // the engine reports the error
			}
			i.head, i.format = text[:t.start], text[name.start:name.end]
			i.data = afterFormat(text[name.end:])
			return i
		case isMark(text, t, '('):
			inside := t.end
			end := closing(text, l, t)
			if end == 0 {
				return nil
			}
			list := text[inside : end-1]
			if first := (&lexer{text: list}).next(); isWord(list, first, "SELECT") || isWord(list, first, "WITH") {
				return nil
			}
			if i.columns == "" {
				i.columns = list
			}
		}
		t = l.next()
	}
}

// afterFormat is the data after the name of its format: after following spaces and one line
// break.
func afterFormat(rest string) string {
	rest = strings.TrimLeft(rest, " \t\f")
	rest = strings.TrimPrefix(rest, "\r")
	return strings.TrimPrefix(rest, "\n")
}

func isMark(text string, t token, mark byte) bool {
	return t.kind == tokenMark && text[t.start] == mark
}

func isWord(text string, t token, word string) bool {
	return t.kind == tokenWord && strings.EqualFold(text[t.start:t.end], word)
}

func peek(l *lexer) token {
	ahead := *l
	return ahead.next()
}

// closing returns the end of the parenthesis that t opens, or 0.
func closing(text string, l *lexer, t token) int {
	if !isMark(text, t, '(') {
		return 0
	}
	for depth := 1; depth > 0; {
		if t = l.next(); t.kind == tokenEnd {
			return 0
		}
		if t.kind == tokenMark {
			switch text[t.start] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
	}
	return t.end
}
