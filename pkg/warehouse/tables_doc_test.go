package warehouse_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// schemaTable is a table as a migration makes it.
type schemaTable struct {
	name    string
	about   string      // the comment before it
	columns [][2]string // with what stands behind each
}

var (
	createTable  = regexp.MustCompile(`(?s)((?:--[^\n]*\n)+)CREATE TABLE IF NOT EXISTS (?:{{\.Table "|{{\.Database}}\.)(\w+)[^\n]*\n\(\n(.*?)\n\)\nENGINE`)
	createColumn = regexp.MustCompile(`(?m)^    (\w+) [^\n]*?(?:-- (.*))?$`)
	alterTable   = regexp.MustCompile(`(?s)ALTER TABLE {{\.Table "(\w+)"}}{{\.OnCluster}}\n(.*?);\n`)
	addColumn    = regexp.MustCompile(`(?m)^    ADD COLUMN IF NOT EXISTS (\w+) .* AFTER (\w+)(?:.* -- (.*))?`)
	aboutColumn  = regexp.MustCompile(`(?m)^    COMMENT COLUMN (\w+) '(.*)'`)
)

// schemaTables reads them from the migrations, in order.
func schemaTables(t *testing.T) (all []schemaTable) {
	t.Helper()
	files, err := fs.Glob(os.DirFS("migrations"), "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile("migrations/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range createTable.FindAllStringSubmatch(string(text), -1) {
			one := schemaTable{name: m[2]}
			for line := range strings.Lines(m[1]) {
				said := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "--"))
				if said == "" {
					said = "\n"
				}
				one.about += " " + said
			}
			one.about = strings.TrimSpace(strings.ReplaceAll(one.about, " \n ", "\n\n"))
			for _, c := range createColumn.FindAllStringSubmatch(m[3], -1) {
				if c[1] != "INDEX" {
					one.columns = append(one.columns, [2]string{c[1], c[2]})
				}
			}
			all = append(all, one)
		}
		for _, alter := range alterTable.FindAllStringSubmatch(string(text), -1) {
			table := slices.IndexFunc(all, func(one schemaTable) bool { return one.name == alter[1] })
			columns := &all[table].columns
			at := func(name string) int {
				return slices.IndexFunc(*columns, func(c [2]string) bool { return c[0] == name })
			}
			for _, m := range addColumn.FindAllStringSubmatch(alter[2], -1) {
				*columns = slices.Insert(*columns, at(m[2])+1, [2]string{m[1], m[3]})
			}
			for _, m := range aboutColumn.FindAllStringSubmatch(alter[2], -1) {
				(*columns)[at(m[1])][1] = m[2]
			}
		}
	}
	return all
}

// pageOfTables lists every column of every table, as the comments of the
// migrations explain it. A column of records that is stored as it is sent may be
// explained as that of v_records.
func pageOfTables(t *testing.T, w *world) string {
	t.Helper()
	_, views := explained(t)
	var b strings.Builder
	b.WriteString("\n## Tables\n\nWhat the views are made of, for those who extend them. A row of a fold holds what was heard of its key in some records; merges, FINAL and the function in parentheses behind the type make one of them all.\n")
	tables := slices.DeleteFunc(schemaTables(t), func(table schemaTable) bool { // of those that a later migration took away, the name may be left
		return query(t, w.db, "SELECT count() FROM system.tables WHERE database = '{db}' AND name = '"+table.name+"' AND engine LIKE '%MergeTree'") == "0"
	})
	if got, want := query(t, w.db, "SELECT count() FROM system.tables WHERE database = '{db}' AND engine LIKE '%MergeTree'"), fmt.Sprint(len(tables)); got != want {
		t.Errorf("there are %s tables, the migrations explain %s", got, want)
	}
	for _, table := range tables {
		of := func(column string) string {
			return query(t, w.db, "SELECT "+column+" FROM system.tables WHERE database = '{db}' AND name = '"+table.name+"'")
		}
		fmt.Fprintf(&b, "\n### %s\n%s\n\nSorted by %s%s.\n\n| column | type | |\n|---|---|---|\n", table.name, table.about, of("sorting_key"), of("if(partition_key = '', '', concat(', parted by ', partition_key))"))
		types := map[string]string{}
		for line := range strings.Lines(query(t, w.db, "SELECT name, type FROM system.columns WHERE database = '{db}' AND table = '"+table.name+"'")) {
			name, kind, _ := strings.Cut(strings.TrimSpace(line), "\t")
			types[name] = kind
		}
		for _, c := range table.columns {
			means := cmp.Or(c[1], views["v_records."+c[0]], views["*."+c[0]])
			if means == "" || types[c[0]] == "" {
				t.Errorf("%s.%s of type %q is explained as %q", table.name, c[0], types[c[0]], means)
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c[0], storedType(types[c[0]]), means)
			delete(types, c[0])
		}
		for name := range types {
			t.Errorf("no migration explains %s.%s", table.name, name)
		}
	}
	return b.String()
}

// storedType is a type, and how two of a key become one.
func storedType(kind string) string {
	if m := regexp.MustCompile(`^SimpleAggregateFunction\((\w+), `).FindStringSubmatch(kind); m != nil {
		return plainType(plainType(kind)) + " (" + m[1] + ")"
	}
	return plainType(kind)
}
