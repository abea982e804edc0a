package server

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/library"
)

// FORMAT Native prints neither totals nor extremes, so a statement that may have
// some is printed as text, in one run, and the engine reads each piece of the text
// back into a block.

// mayHaveMore tells whether a statement's result may have totals or extremes.
func (c *client) mayHaveMore(q query, stmt statement) bool {
	if !stmt.reads {
		return false
	}
	const extremes = "extremes"
	said := func(text string) bool { return strings.Contains(strings.ToLower(text), extremes) }
	return stmt.totals || said(stmt.text) || slices.ContainsFunc(c.session.sets, said) ||
		slices.ContainsFunc(q.settings, func(s setting) bool { return s.name == extremes && s.value != "0" })
}

// pieces are the parts of a result that was printed as text.
type pieces struct {
	columns                []column
	rows, totals, extremes []byte // lines
}

// rowsAndMore runs a SELECT and sends its result with totals and extremes. It
// reports false when it has sent nothing, because the result does not come back
// from its text.
func (c *client) rowsAndMore(ctx context.Context, q query, sql string) (done library.Stats, sent bool, err error) {
	var printed []byte
	done, err = c.session.conn.Run(ctx, sql, "TabSeparatedWithNamesAndTypes", func(chunk []byte) error {
		printed = bytes.Clone(chunk)
		return nil
	})
	if err != nil {
		return done, true, err
	}
	p, ok := splitPieces(printed, done.ResultRows)
	if !ok {
		return done, false, nil
	}
	next := func() ([]byte, error) {
		lines := p.rows[:wholeLines(p.rows, library.PieceSize)]
		p.rows = p.rows[len(lines):]
		return c.blockOf(ctx, p.columns, lines)
	}
	// All that can fail for its types fails before anything is sent.
	totals, err1 := c.blockOf(ctx, p.columns, p.totals)
	extremes, err2 := c.blockOf(ctx, p.columns, p.extremes)
	block, err3 := next()
	if errors.Join(err1, err2, err3) != nil {
		return done, false, nil
	}
	if err := c.header(q, p.columns); err != nil {
		return done, true, err
	}
	for ; len(block) > 0; done.Blocks++ {
		if err := c.data(q, proto.ServerCodeData, block); err != nil {
			return done, true, err
		}
		if block, err = next(); err != nil {
			return done, true, err
		}
	}
	if len(totals) > 0 {
		if err := c.data(q, proto.ServerCodeTotals, totals); err != nil {
			return done, true, err
		}
	}
	if len(extremes) > 0 {
		err = c.data(q, proto.ServerCodeExtremes, extremes)
	}
	return done, true, err
}

// blockOf is lines as the body of a block; nothing, if there are none.
func (c *client) blockOf(ctx context.Context, columns []column, lines []byte) (block []byte, err error) {
	if len(lines) == 0 {
		return nil, nil
	}
	types := make([]string, len(columns))
	for i, column := range columns {
		types[i] = "c" + strconv.Itoa(i) + " " + column.typ
	}
	sql := "SELECT * FROM format(TabSeparated, " + quoteText(strings.Join(types, ", ")) + ", " + quoteText(string(lines)) + ")" +
		" SETTINGS extremes = 0, max_query_size = 1000000000, date_time_input_format = 'best_effort', allow_suspicious_low_cardinality_types = 1"
	_, err = c.session.conn.Run(ctx, sql, "Native", func(printed []byte) error {
		return eachBlock(printed, true, func(body []byte, read *blockReader) error {
			block = append(block, forRevision(body, read, c.revision, columns)...)
			return nil
		})
	})
	return block, err
}

// splitPieces finds the pieces of a text of so many rows: names, types, rows, and
// after an empty line each the totals and the two rows of extremes. A row that is
// one empty text is an empty line too, so the rows are counted.
func splitPieces(printed []byte, rows uint64) (p pieces, ok bool) {
	names, rest, _ := bytes.Cut(printed, []byte("\n"))
	types, rest, ok := bytes.Cut(rest, []byte("\n"))
	if !ok {
		return p, false
	}
	typ := strings.Split(string(types), "\t")
	for i, name := range strings.Split(string(names), "\t") {
		if i >= len(typ) {
			return p, false
		}
		p.columns = append(p.columns, column{name: unescape(name, 0), typ: unescape(typ[i], 0)})
	}
	take := func(lines uint64) []byte {
		size := 0
		for range lines {
			size += bytes.IndexByte(rest[size:], '\n') + 1
		}
		taken := rest[:size]
		rest = rest[size:]
		return taken
	}
	p.rows = take(rows)
	for range 2 {
		if !bytes.HasPrefix(rest, []byte("\n")) {
			break
		}
		take(1)
		if bytes.Count(rest, []byte("\n")) == 2 {
			p.extremes = take(2)
			break
		}
		p.totals = take(1)
	}
	return p, len(rest) == 0 && uint64(bytes.Count(p.rows, []byte("\n"))) == rows
}

// wholeLines is how many bytes of text are lines, about so many and at least one.
func wholeLines(text []byte, about int) int {
	if len(text) <= about {
		return len(text)
	}
	if end := bytes.LastIndexByte(text[:about], '\n'); end >= 0 {
		return end + 1
	}
	return bytes.IndexByte(text, '\n') + 1
}
