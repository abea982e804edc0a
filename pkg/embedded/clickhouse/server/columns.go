package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
)

// column is a column of a table or of a result.
type column struct{ name, typ string }

// describe returns the columns of a SELECT. It changes no settings, since the session may
// be readonly.
func (s *session) describe(ctx context.Context, query string) (columns []column, err error) {
	var out []byte
	if _, err := s.conn.Run(ctx, "DESCRIBE TABLE ("+query+"\n)", "JSONCompactStrings", func(chunk []byte) error {
		out = append(out, chunk...)
		return nil
	}); err != nil {
		return nil, err
	}
	var answer struct{ Data [][]string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, fmt.Errorf("read the columns: %w", err)
	}
	for _, row := range answer.Data {
		row = append(row, make([]string, 8)...) // describe_compact_output leaves two
		if row[7] == "1" {                      // a subcolumn, with describe_include_subcolumns
			continue
		}
		columns = append(columns, column{name: row[0], typ: onOneLine(row[1])})
	}
	return columns, nil
}

// describeApart is describe on another connection, while the session's is busy.
func (s *session) describeApart(ctx context.Context, query string) ([]column, error) {
	twin, err := s.twin(ctx)
	if err != nil {
		return nil, err
	}
	defer twin.close()
	return twin.describe(ctx, query)
}

// insertColumns returns the columns of an INSERT, in order.
func (s *session) insertColumns(ctx context.Context, i *insert) ([]column, error) {
	table := i.target
	if rest, ok := cutWord(table, "FUNCTION"); ok {
		table = rest
	}
	return s.describe(ctx, "SELECT "+cmp.Or(i.columns, "*")+" FROM "+table)
}

var lineBreaks = strings.NewReplacer("(\n", "(", ",\n", ", ")

// onOneLine reverts print_pretty_type_names, which breaks and indents the elements of a
// Tuple.
func onOneLine(typ string) string {
	lines := strings.Split(typ, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], " ")
	}
	return lineBreaks.Replace(strings.Join(lines, "\n"))
}

// cutWord cuts a keyword off the front of text.
func cutWord(text, word string) (rest string, found bool) {
	l := &lexer{text: text}
	if t := l.next(); isWord(text, t, word) {
		return text[t.end:], true
	}
	return text, false
}
