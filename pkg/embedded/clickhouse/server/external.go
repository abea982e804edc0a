package server

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"sluice/pkg/embedded/clickhouse/library"
)

// externalTable is an external table of a statement: a temporary table while the statement
// runs.
type externalTable struct {
	name      string
	structure string // columns, as in CREATE TABLE
	format    string // of data; empty: defaultFormat
	data      []byte
	blocks    [][]byte // data in FORMAT Native, instead of the above
}

// maxExternal bounds the bytes of the external tables of one statement.
const maxExternal = 256 << 20

// externals are the external tables of one statement, or the error that refuses them.
type externals struct {
	tables []externalTable
	bytes  int
	err    error
}

// add adds a block of the native protocol. After a refusal it ignores further ones.
func (e *externals) add(s *session, read block, columns []column) {
	if e.err != nil || read.columns == 0 {
		return
	}
	if !s.user.mayLend() {
		e.err = errExternalTables
		return
	}
	if e.bytes += len(read.body); e.bytes > maxExternal {
		e.tables, e.err = nil, library.Exceptionf("QUERY_IS_TOO_LARGE", "External tables are larger than %d bytes: insert them into a temporary table", maxExternal)
		return
	}
	at := slices.IndexFunc(e.tables, func(t externalTable) bool { return t.name == read.table })
	if at < 0 {
		var structure []string
		for _, c := range columns {
			structure = append(structure, quoteName(c.name)+" "+c.typ)
		}
		at = len(e.tables)
		e.tables = append(e.tables, externalTable{name: read.table, structure: strings.Join(structure, ", ")})
	}
	if read.rows > 0 {
		e.tables[at].blocks = append(e.tables[at].blocks, bytes.Clone(read.body))
	}
}

// described applies the parameters of HTTP that describe its tables, and returns the others.
func (e *externals) described(settings []setting) (rest []setting) {
	for _, set := range settings {
		at := slices.IndexFunc(e.tables, func(t externalTable) bool { return strings.HasPrefix(set.name, t.name+"_") })
		if at < 0 {
			rest = append(rest, set)
			continue
		}
		switch t := &e.tables[at]; strings.TrimPrefix(set.name, t.name+"_") {
		case "structure":
			t.structure = set.value
		case "types":
			var columns []string
			for i, typ := range splitTypes(set.value) {
				columns = append(columns, fmt.Sprintf("_%d %s", i+1, typ))
			}
			t.structure = strings.Join(columns, ", ")
		case "format":
			t.format = set.value
		default:
			rest = append(rest, set)
		}
	}
	return rest
}

// splitTypes splits at commas outside of parentheses and texts.
func splitTypes(text string) (types []string) {
	l := &lexer{text: text}
	start, depth := 0, 0
	for t := l.next(); t.kind != tokenEnd; t = l.next() {
		switch {
		case isMark(text, t, '('):
			depth++
		case isMark(text, t, ')'):
			depth--
		case isMark(text, t, ',') && depth == 0:
			types, start = append(types, text[start:t.start]), t.end
		}
	}
	return append(types, text[start:])
}

// mayLend reports whether the user may use external tables.
func (u user) mayLend() bool { return u.Role == roleAdmin || u.Role == roleModeller }

// lend creates the external tables of a statement; drop removes them.
func (s *session) lend(ctx context.Context, tables []externalTable) (drop func(), err error) {
	var made []string
	drop = func() {
		for _, name := range made {
			_ = s.do(context.WithoutCancel(ctx), "DROP TEMPORARY TABLE "+quoteName(name)) // else it ends with the session
		}
	}
	if len(tables) > 0 && (s.readonly || !s.user.mayLend()) {
		return drop, errExternalTables
	}
	for _, t := range tables {
		if err := s.makeExternal(ctx, t, &made); err != nil {
			drop()
			return func() {}, err
		}
	}
	return drop, nil
}

func (s *session) makeExternal(ctx context.Context, t externalTable, made *[]string) error {
	create := "CREATE TEMPORARY TABLE " + quoteName(t.name) + " (" + t.structure + ")"
	if t.name == "" || s.conn.Classify(create).Statements != 1 || t.format != "" && !isName(t.format) {
		return library.Exceptionf("BAD_ARGUMENTS", "External table %.64q has an invalid name, structure or format: %.256s", t.name, t.structure)
	}
	if err := s.permit(ctx, parseStatement(create)); err != nil {
		return err
	}
	if err := s.do(ctx, create); err != nil {
		return err
	}
	*made = append(*made, t.name)
	format, blocks := "Native", t.blocks
	if t.data != nil {
		format, blocks = t.format, [][]byte{t.data}
		if format == "" {
			format = defaultFormat
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	insertion, err := s.conn.Insert("INSERT INTO "+quoteName(t.name), format)
	if err != nil {
		return err
	}
	defer insertion.Cancel()
	for _, block := range blocks {
		if !insertion.Append(block) {
			break
		}
	}
	_, err = insertion.Finish(ctx)
	return err
}
