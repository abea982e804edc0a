package console

import (
	"context"
	"strconv"
	"strings"
)

// treeRow is an instance of the tree, Depth steps below the one at its top.
type treeRow struct {
	instanceRow
	Depth int
	Here  bool // it is the one that the page is about
}

// How far a tree goes up and down, and how many it shows.
const (
	deepest = 8
	maxTree = 200
)

// tree is the instance with those that called it, up to the top, and all that it
// has called.
func (s *Server) tree(ctx context.Context, who *session, row instanceRow) (p section[treeRow]) {
	statement := func(seed string) string {
		return "SELECT " + instanceColumns + "\nFROM\n(\n    " + fill(instancesOf, "rows", found("source = "+quote(row.Source)+" AND "+seed), "tenants", who.only("tenant")) +
			"\n)\nORDER BY started, instance\nLIMIT " + strconv.Itoa(maxTree)
	}
	list := func(seed string) ([]instanceRow, error) {
		found := rowsOf[instanceRow](ctx, s.db, statement(seed))
		return found.Rows, found.Err
	}
	var above []instanceRow
	for caller := row.Caller; caller > 0 && len(above) < deepest; {
		rows, err := list("process_instance_key = " + quote(itoa(caller)))
		if err != nil {
			p.Err = err
			return p
		}
		if len(rows) == 0 {
			break
		}
		above = append([]instanceRow{rows[0]}, above...)
		caller = rows[0].Caller
	}
	called := map[string][]instanceRow{}
	count := len(above) + 1
	for level, depth := []instanceRow{row}, 0; len(level) > 0 && depth < deepest && count < maxTree; depth++ {
		var keys []string
		for _, i := range level {
			if _, err := strconv.ParseInt(i.Key, 10, 64); err == nil {
				keys = append(keys, i.Key)
			}
		}
		if len(keys) == 0 {
			break
		}
		rows, err := list("parent_process_instance_key IN (" + strings.Join(keys, ", ") + ")")
		if err != nil {
			p.Err = err
			return p
		}
		for _, i := range rows {
			called[itoa(i.Caller)] = append(called[itoa(i.Caller)], i)
		}
		count += len(rows)
		level = rows
	}
	for depth, i := range above {
		p.Rows = append(p.Rows, treeRow{i, depth, false})
	}
	var add func(i instanceRow, depth int)
	add = func(i instanceRow, depth int) {
		p.Rows = append(p.Rows, treeRow{i, depth, i.Key == row.Key})
		for _, child := range called[i.Key] {
			if depth < len(above)+deepest {
				add(child, depth+1)
			}
		}
	}
	add(row, len(above))
	keys := make([]string, len(p.Rows))
	for i, r := range p.Rows {
		keys[i] = quote(r.Key)
	}
	p.SQL = statement("process_instance_key IN (" + strings.Join(keys, ", ") + ")") // all of it, which was found level by level
	return p
}
