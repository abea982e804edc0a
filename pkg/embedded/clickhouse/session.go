package clickhouse

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// waitForConnection is how long a client waits for a free engine connection.
const waitForConnection = 5 * time.Second

// session is a client's view of the engine: one engine connection, with the
// settings its statements bring along.
type session struct {
	engine *engine
	conn   *conn
	lent   map[string]string // settings of the last statement that are still set
	sets   []string          // the client's own SET statements, in order
}

// newSession opens a session in a database ("": default).
func newSession(ctx context.Context, e *engine, database string) (*session, error) {
	c, err := e.acquire(ctx, waitForConnection)
	if err != nil {
		return nil, err
	}
	s := &session{engine: e, conn: c, lent: map[string]string{}}
	if database != "" && database != "default" {
		if err := s.do(ctx, "USE "+quoteName(database)); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) close() { s.engine.release(s.conn) }

// do runs a statement that answers nothing.
func (s *session) do(ctx context.Context, sql string) error {
	_, err := s.conn.run(ctx, sql, "Null", nil)
	return err
}

// apply makes settings hold for the next statement, and those of the statement
// before hold no more. One that ClickHouse does not know is left out, unless it
// is important.
func (s *session) apply(ctx context.Context, settings []setting) error {
	wanted := make(map[string]string, len(settings))
	for _, set := range settings {
		if s.engine.settings[set.name] {
			wanted[set.name] = set.value
		} else if set.important {
			return exceptionf("UNKNOWN_SETTING", "Unknown setting '%s'", set.name)
		}
	}
	if maps.Equal(wanted, s.lent) {
		return nil
	}
	if err := s.takeBack(ctx, wanted); err != nil {
		return err
	}
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if value, ok := s.lent[name]; !ok || value != wanted[name] {
			changes = append(changes, name+" = "+quoteText(wanted[name]))
		}
	}
	maps.Copy(s.lent, wanted) // Before it is tried: what fails half is taken back next time.
	if len(changes) == 0 {
		return nil
	}
	return s.do(ctx, "SET "+strings.Join(changes, ", "))
}

// takeBack undoes what was lent and is not wanted any more: back to the default,
// and from there on to what the client itself had set.
func (s *session) takeBack(ctx context.Context, wanted map[string]string) error {
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(s.lent)) {
		if _, stays := wanted[name]; stays {
			continue
		}
		if value, ok := base[name]; ok {
			changes = append(changes, name+" = "+quoteText(value))
		} else {
			changes = append(changes, name+" = DEFAULT")
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := s.do(ctx, "SET "+strings.Join(changes, ", ")); err != nil {
		return err
	}
	clear(s.lent) // What is wanted is set again, after the client's own.
	for _, set := range s.sets {
		if err := s.do(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// ran notes what a statement that succeeded has changed of the session.
func (s *session) ran(stmt statement) {
	if stmt.verb == "SET" {
		s.sets = append(s.sets, stmt.text)
	}
}

// column is a column of a table or of a result.
type column struct{ name, typ string }

// describe asks for the columns of a SELECT.
func (s *session) describe(ctx context.Context, query string) ([]column, error) {
	columns, _, err := s.describeTable(ctx, "("+query+"\n)")
	return columns, err
}

// insertColumns asks for the columns an INSERT takes, in its order.
func (s *session) insertColumns(ctx context.Context, i *insert) ([]column, error) {
	table := i.target
	if rest, ok := cutWord(table, "FUNCTION"); ok {
		table = rest
	}
	names, plain := plainNames(i.columns)
	if !plain { // (* EXCEPT (a)) and the like
		return s.describe(ctx, "SELECT "+i.columns+" FROM "+table)
	}
	all, kinds, err := s.describeTable(ctx, table)
	if err != nil {
		return nil, err
	}
	var columns []column
	if len(names) == 0 {
		for n, c := range all {
			if kinds[n] != "MATERIALIZED" && kinds[n] != "ALIAS" && kinds[n] != "EPHEMERAL" {
				columns = append(columns, c)
			}
		}
		return columns, nil
	}
	for _, name := range names {
		at := slices.IndexFunc(all, func(c column) bool { return c.name == name })
		if at < 0 { // A column of a Nested, or none at all: the engine knows.
			return s.describe(ctx, "SELECT "+i.columns+" FROM "+table)
		}
		columns = append(columns, all[at])
	}
	return columns, nil
}

func (s *session) describeTable(ctx context.Context, table string) (columns []column, kinds []string, err error) {
	var out []byte
	sql := "DESCRIBE TABLE " + table + " SETTINGS print_pretty_type_names = 0, describe_compact_output = 0, describe_include_subcolumns = 0"
	if _, err := s.conn.run(ctx, sql, "JSONCompactStrings", func(chunk []byte) error {
		out = append(out, chunk...)
		return nil
	}); err != nil {
		return nil, nil, err
	}
	var answer struct{ Data [][]string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, nil, fmt.Errorf("read the columns: %w", err)
	}
	for _, row := range answer.Data {
		if len(row) < 3 {
			return nil, nil, fmt.Errorf("read the columns: a row of %d", len(row))
		}
		columns = append(columns, column{name: row[0], typ: row[1]})
		kinds = append(kinds, row[2])
	}
	return columns, kinds, nil
}

// plainNames reads a list of names. It reports false if there is anything else
// in the list.
func plainNames(list string) (names []string, plain bool) {
	l := &lexer{text: list}
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		name := list[t.start:t.end]
		switch t.kind {
		case tokenWord:
		case tokenName:
			var ok bool
			if name, ok = unquoteName(name); !ok {
				return nil, false
			}
		default:
			return nil, false
		}
		names = append(names, name)
		if t = l.next(); t.kind == tokenEnd {
			break
		}
		if t.kind != tokenMark || list[t.start] != ',' {
			return nil, false
		}
	}
	return names, true
}

// unquoteName undoes `name` and "name". It reports false for escapes, which are
// left to the engine.
func unquoteName(quoted string) (string, bool) {
	last := len(quoted) - 1
	if last < 1 || quoted[last] != quoted[0] || strings.ContainsAny(quoted[1:last], "\\`\"") {
		return "", false
	}
	return quoted[1:last], true
}

// cutWord cuts a keyword off the front of text.
func cutWord(text, word string) (rest string, found bool) {
	l := &lexer{text: text}
	if t := l.next(); isWord(text, t, word) {
		return text[t.end:], true
	}
	return text, false
}

var (
	textEscapes = strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	nameEscapes = strings.NewReplacer(`\`, `\\`, "`", "\\`")
)

func quoteText(value string) string { return "'" + textEscapes.Replace(value) + "'" }

func quoteName(name string) string { return "`" + nameEscapes.Replace(name) + "`" }
