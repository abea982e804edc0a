package console

import (
	"context"
	"strconv"
	"strings"
)

// treeRow is an instance of the call tree, Depth levels below the root.
type treeRow struct {
	instanceRow
	Depth int
	Here  bool // the instance of the page
}

// Maximum levels up and down, and maximum instances.
const (
	deepest = 8
	maxTree = 200
)

// tree reads the instance, its callers up to the root, and all instances called from it.
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
	p.SQL = statement("process_instance_key IN (" + strings.Join(keys, ", ") + ")") // one statement for the whole tree
	return p
}
