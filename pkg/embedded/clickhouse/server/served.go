package server

import (
	"strings"
	"sync"

	"sluice/pkg/embedded/clickhouse/library"
)

// Features of a server that the engine lacks: the query ids of clients and the names of
// users. Statements that need them are rewritten.

// running maps query ids of clients to running statements.
type running struct {
	mu  sync.Mutex
	ids map[string]string // id of the connection, by that of the statement
}

// enter registers a running statement until leave is called.
func (r *running) enter(statement, connection string) (leave func()) {
	if statement == "" {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ids == nil {
		r.ids = map[string]string{}
	}
	r.ids[statement] = connection
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ids[statement] == connection {
			delete(r.ids, statement)
		}
	}
}

func (r *running) find(statement string) (connection string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	connection, ok = r.ids[statement]
	return connection, ok
}

// killOf rewrites KILL QUERY WHERE query_id = '…', by which clients cancel a statement, for
// query ids of clients: the engine finds it by its connection. Other conditions are
// unchanged.
func (s *session) killOf(text string) (string, bool) {
	l := &lexer{text: text}
	if !isWord(text, l.next(), "KILL") || !isWord(text, l.next(), "QUERY") || !isWord(text, l.next(), "WHERE") || !isWord(text, l.next(), "query_id") || !isMark(text, l.next(), '=') {
		return "", false
	}
	id := l.next()
	tail := peek(l)
	if id.kind != tokenText || text[id.start] != '\'' || tail.kind != tokenEnd && tail.kind != tokenWord && !isMark(text, tail, ';') ||
		isWord(text, tail, "AND") || isWord(text, tail, "OR") || isWord(text, tail, "LIKE") || isWord(text, tail, "IN") {
		return "", false
	}
	connection, ok := s.engine.running.find(unescape(text[id.start+1:id.end], '\''))
	if !ok {
		return "", false
	}
	return "KILL QUERY WHERE Settings['" + library.Marker + "'] = '" + connection + "'" + text[id.end:], true
}

// Names of the function currentUser.
var userFunctions = nameSet("currentuser current_user user authenticateduser")

// named replaces currentUser() by the user's name, since every session of the engine is its
// user default. An alias keeps the name of the column. The definition of a view, which is
// stored, is unchanged.
func (s *session) named(text string) string {
	if other, ok := s.killOf(text); ok {
		return other
	}
	name := s.user.Name
	if name == "default" || !strings.Contains(strings.ToLower(text), "user") {
		return text
	}
	l := &lexer{text: text}
	if first := peek(l); !isWord(text, first, "SELECT") && !isWord(text, first, "WITH") && !isMark(text, first, '(') {
		return text
	}
	var out strings.Builder
	var before, last token // the two before t
	from, open := 0, token{}
	for t := l.next(); t.kind != tokenEnd; before, last, t = last, t, l.next() {
		call := isMark(text, last, '(') && open == last && isMark(text, t, ')')
		if call {
			written := text[before.start:t.end]
			out.WriteString(text[from:before.start] + "(" + quoteText(name) + " AS " + quoteName(written) + ")")
			from = t.end
		}
		if isMark(text, t, '(') && last.kind == tokenWord && !isMark(text, before, '.') && userFunctions[strings.ToLower(text[last.start:last.end])] {
			open = t
		}
	}
	return out.String() + text[from:]
}
