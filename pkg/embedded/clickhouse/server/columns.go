package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// column is a column of a table or of a result.
type column struct{ name, typ string }

// describe asks for the columns of a SELECT.
func (s *session) describe(ctx context.Context, query string) ([]column, error) {
	columns, _, err := s.describeTable(ctx, "("+query+"\n)")
	return columns, err
}

// describeApart is describe while the session's own connection is busy.
func (s *session) describeApart(ctx context.Context, query string) ([]column, error) {
	twin, err := s.twin(ctx)
	if err != nil {
		return nil, err
	}
	defer twin.close()
	return twin.describe(ctx, query)
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

// describeTable asks for the columns of a table or a SELECT, and of what kind
// each is: DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL or "". It sets nothing, since
// the session may be readonly.
func (s *session) describeTable(ctx context.Context, table string) (columns []column, kinds []string, err error) {
	var out []byte
	if _, err := s.conn.Run(ctx, "DESCRIBE TABLE "+table, "JSONCompactStrings", func(chunk []byte) error {
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
		row = append(row, make([]string, 8)...) // With describe_compact_output there are but two.
		if row[7] == "1" {                      // A part of another column, with describe_include_subcolumns.
			continue
		}
		columns = append(columns, column{name: row[0], typ: onOneLine(row[1])})
		kinds = append(kinds, row[2])
	}
	return columns, kinds, nil
}

var lineBreaks = strings.NewReplacer("(\n", "(", ",\n", ", ")

// onOneLine undoes print_pretty_type_names, which breaks types at the elements of
// a Tuple and indents them.
func onOneLine(typ string) string {
	lines := strings.Split(typ, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], " ")
	}
	return lineBreaks.Replace(strings.Join(lines, "\n"))
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
