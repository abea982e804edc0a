package oracle

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Table is the expected content of one table or view, for one source.
type Table struct {
	Name    string   // in the database
	Columns []string // key columns first
	keys    int      // number of key columns
	from    string   // SELECT expressions; default Columns
	rows    map[string][]string
}

func newTable(name string, keys int, columns ...string) *Table {
	return &Table{Name: name, Columns: columns, keys: keys, rows: map[string][]string{}}
}

// put adds a row. It panics on a duplicate key, which is a bug of the oracle.
func (t *Table) put(cells ...string) {
	if len(cells) != len(t.Columns) {
		panic(fmt.Sprintf("oracle: %d cells for the %d columns of %s", len(cells), len(t.Columns), t.Name))
	}
	key := strings.Join(cells[:t.keys], "\t")
	if t.rows[key] != nil {
		panic(fmt.Sprintf("oracle: two rows of %s for %q", t.Name, key))
	}
	t.rows[key] = cells[t.keys:]
}

// Query returns the query for Compare, in TabSeparated. Arrays of sets are sorted.
func (t *Table) Query(database, source string) string {
	columns := make([]string, len(t.Columns))
	for i, name := range t.Columns {
		columns[i] = name
		if name == "processes" || strings.HasSuffix(name, "incident_keys") {
			columns[i] = "arraySort(" + name + ")"
		}
	}
	selected := strings.Join(columns, ", ")
	if t.from != "" {
		selected = t.from
	}
	source = strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(source)
	text := fmt.Sprintf("SELECT %s FROM %s.%s AS c WHERE c.source = '%s'", selected, database, t.Name, source)
	if t.Name == Counters {
		text += " GROUP BY ALL HAVING records != 0"
	}
	return text + " FORMAT TabSeparated"
}

type Difference struct {
	Source, Table string
	Key           string // names and cells of the key
	Column        string // empty when the number of rows differs
	Want, Got     string // cells, or numbers of rows
}

func (d Difference) String() string {
	where := fmt.Sprintf("%s of %s: %s", d.Table, d.Source, d.Key)
	if d.Column == "" {
		return fmt.Sprintf("%s: %s rows, want %s", where, d.Got, d.Want)
	}
	return fmt.Sprintf("%s: %s is %q, want %q", where, d.Column, d.Got, d.Want)
}

// maxNamed bounds the named differences of one table.
const maxNamed = 20

// Report is the result of a comparison.
type Report struct {
	Table       string
	Rows        int64        // of the table
	Missing     int64        // keys without a row
	Doubled     int64        // rows beyond the first of their key
	Strangers   int64        // rows of no record
	Wrong       int64        // rows with a wrong column
	Differences []Difference // the first by key, each with its first wrong column
}

// OK reports whether the table has exactly the expected rows.
func (r Report) OK() bool { return r.Missing+r.Doubled+r.Strangers+r.Wrong == 0 }

// name keeps the first differences by key.
func (r *Report) name(d Difference) {
	at, _ := slices.BinarySearchFunc(r.Differences, d, func(a, b Difference) int { return strings.Compare(a.Key, b.Key) })
	if at < maxNamed {
		r.Differences = slices.Insert(r.Differences, at, d)
		r.Differences = r.Differences[:min(len(r.Differences), maxNamed)]
	}
}

// named returns a key with the names of its columns.
func (t *Table) named(key string) string {
	var all []string
	for i, cell := range strings.Split(key, "\t") {
		if name := t.Columns[i]; cell != "" {
			all = append(all, name+" "+cell)
		}
	}
	return strings.Join(all, ", ")
}

// Compare compares the rows of Query with the expected ones.
func (t *Table) Compare(source string, rows io.Reader) (Report, error) {
	r := Report{Table: t.Name}
	seen := make(map[string]int64, len(t.rows))
	err := t.each(rows, func(key string, cells []string) {
		r.Rows++
		seen[key]++
		want, known := t.rows[key]
		switch {
		case seen[key] > 1:
			r.Doubled++
			r.name(Difference{source, t.Name, t.named(key), "", "1", whole(seen[key])})
		case !known:
			r.Strangers++
			r.name(Difference{source, t.Name, t.named(key), "", "0", "1"})
		default:
			for i := range want {
				if want[i] != cells[i] {
					r.Wrong++
					r.name(Difference{source, t.Name, t.named(key), t.Columns[t.keys+i], want[i], cells[i]})
					break
				}
			}
		}
	})
	for key := range maps.Keys(t.rows) {
		if seen[key] == 0 {
			r.Missing++
			r.name(Difference{source, t.Name, t.named(key), "", "1", "0"})
		}
	}
	return r, err
}

// each reads rows, split into key and other cells.
func (t *Table) each(rows io.Reader, do func(key string, cells []string)) error {
	in := bufio.NewReaderSize(rows, 1<<20)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF && line == "" {
			return nil
		}
		if err != nil && err != io.EOF {
			return fmt.Errorf("oracle: read %s: %w", t.Name, err)
		}
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != len(t.Columns) {
			return fmt.Errorf("oracle: a row of %s has %d cells, want %d: %.300s", t.Name, len(cells), len(t.Columns), line)
		}
		for i := range cells {
			cells[i] = unescape(cells[i])
		}
		do(strings.Join(cells[:t.keys], "\t"), cells[t.keys:])
	}
}
