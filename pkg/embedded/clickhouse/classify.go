package clickhouse

import (
	"context"
	"runtime"
	"unsafe"
)

// analysis is chdb_query_analysis_v1: what ClickHouse's own parser says of a
// text without running it.
type analysis struct {
	size       uint32 // of this struct, set by the caller
	statements uint32 // 0: the text does not parse; both of `a PARALLEL WITH b` count
	_          uint32
	class      queryClass
}

// queryClass is what a statement does to what outlives it.
type queryClass uint32

const (
	classReads   queryClass = iota // SELECT, SHOW, DESCRIBE, EXPLAIN, EXISTS, CHECK
	classWrites                    // INSERT, CREATE, ALTER, DROP, TRUNCATE, OPTIMIZE and the like
	classGlobal                    // functions, users, whatever lives beside the databases
	classControl                   // SET, USE, SYSTEM, KILL, ATTACH, BACKUP, INTO OUTFILE, INSERT INTO FUNCTION
	classUnknown                   // it does not parse, or is not classified
)

// classify asks the engine's parser about a text.
func (c *conn) classify(sql string) analysis {
	about := analysis{size: uint32(unsafe.Sizeof(analysis{}))}
	text := append([]byte(sql), 0)
	if c.engine.lib.classify(*c.handle, &text[0], uintptr(len(sql)), nil, 0, &about) != 0 {
		about.statements, about.class = 0, classUnknown
	}
	runtime.KeepAlive(text)
	return about
}

// permit refuses a text that is not one statement, or one that this session may
// not run. What its role allows, the engine itself checks when it runs the
// statement; here is what it cannot check.
func (s *session) permit(ctx context.Context, stmt statement) error {
	if err := s.inside(stmt.text); err != nil {
		return err
	}
	if s.limited() && setsDefault(stmt.text) {
		return exceptionf("ACCESS_DENIED", "analyst: Not enough privileges: settings are given values, not DEFAULT, which would lift a limit")
	}
	about := s.conn.classify(stmt.text)
	switch {
	case about.statements > 1:
		return errManyStatements
	case about.statements == 0:
		return s.explainSyntax(ctx, stmt.text)
	case about.class == classReads:
		return nil
	case stmt.setsRole:
		return exceptionf("ACCESS_DENIED", "Roles cannot be changed: they follow from the user")
	case stmt.verb == "SET" || stmt.verb == "USE":
		return nil
	case s.limited():
		return errOnlyReads
	case s.readonly:
		return errReadonly
	case about.class >= classControl && s.user.Role == roleIngester:
		return exceptionf("ACCESS_DENIED", "ingester: Not enough privileges: it makes tables and views, and inserts")
	}
	return nil
}

// permitInsert is permit for an INSERT whose data comes apart from its text.
func (s *session) permitInsert(i *insert) error {
	switch {
	case s.limited():
		return errOnlyReads
	case s.readonly:
		return errReadonly
	}
	return s.inside(i.head)
}

// setsDefault looks for `SET a = DEFAULT` and `SETTINGS a = 1, b = DEFAULT`, which
// the engine holds against no limit.
func setsDefault(text string) bool {
	l := &lexer{text: text}
	var last [3]token // those before t, the latest first
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		named := last[1].kind == tokenWord || last[1].kind == tokenName
		first := isWord(text, last[2], "SET") || isWord(text, last[2], "SETTINGS") || isMark(text, last[2], ',')
		if isWord(text, t, "DEFAULT") && isMark(text, last[0], '=') && named && first {
			return true
		}
		last = [3]token{t, last[0], last[1]}
	}
	return false
}

var (
	errOnlyReads = exceptionf("ACCESS_DENIED", "analyst: Not enough privileges: it only reads. "+
		"Log in as admin to do more (deploy/README.md says where its password is)")
	errReadonly = exceptionf("READONLY", "Cannot execute query in readonly mode. "+
		"For queries over HTTP, method GET implies readonly. You should use method POST for modifying queries")
	errManyStatements = exceptionf("SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")
)

// explainSyntax is what the engine says of a text it cannot parse as a whole. It
// is not run: the first of several statements might parse, and run.
func (s *session) explainSyntax(ctx context.Context, text string) error {
	if err := s.do(ctx, "SELECT formatQuery("+quoteText(text)+")"); err != nil {
		return err
	}
	return exceptionf("SYNTAX_ERROR", "Syntax error: this is not one statement")
}
