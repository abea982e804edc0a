package oracle

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// null is NULL in TabSeparated.
const null = `\N`

// Cells are TabSeparated texts, without escapes.

func whole(n int64) string { return strconv.FormatInt(n, 10) }

func (n number) cell() string {
	if !n.known {
		return null
	}
	return whole(n.n)
}

// but returns the cell of a key, null for the placeholder of a missing key.
func (n number) but(placeholder int64) string {
	if n.n == placeholder {
		return null
	}
	return n.cell()
}

// or returns o if n is unknown.
func (n number) or(o number) number {
	if n.known {
		return n
	}
	return o
}

// time returns the cell of a time in ms since 1970.
func (n number) time() string {
	if !n.known {
		return null
	}
	return time.UnixMilli(n.n).UTC().Format("2006-01-02 15:04:05.000")
}

// between returns the cell of the ms from one time to another.
func between(from, to number) string {
	if !from.known || !to.known {
		return null
	}
	return whole(to.n - from.n)
}

func flag(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

// texts and keys return cells of arrays.
func texts(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = "'" + s + "'"
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

func keys(set map[int64]bool) string {
	sorted := make([]int64, 0, len(set))
	for key := range set {
		sorted = append(sorted, key)
	}
	slices.Sort(sorted)
	var all []string
	for _, key := range sorted {
		all = append(all, whole(key))
	}
	return "[" + strings.Join(all, ",") + "]"
}

// unescape undoes the escapes of a TabSeparated cell, except for null.
func unescape(cell string) string {
	if cell == null || !strings.Contains(cell, `\`) {
		return cell
	}
	return escapes.Replace(cell)
}

var escapes = strings.NewReplacer(`\b`, "\b", `\f`, "\f", `\r`, "\r", `\n`, "\n", `\t`, "\t", `\0`, "\x00", `\'`, "'", `\\`, `\`)

// last has values of the last record, by time and then position.
type last struct {
	known        bool
	ts, position int64
	values       []string
}

func (l *last) take(r *record, values ...string) {
	next := last{true, r.ts, max(r.position, 0), values}
	if !l.known || l.before(next) {
		*l = next
	}
}

func (l last) before(o last) bool {
	switch {
	case l.ts != o.ts:
		return l.ts < o.ts
	case l.position != o.position:
		return l.position < o.position
	}
	return slices.Compare(l.values, o.values) < 0
}

// at returns the time of that record, if it has one.
func (l last) at() number { return number{l.ts, l.ts > 0} }

// or returns one of its values, or otherwise if there was no record.
func (l last) or(i int, otherwise string) string {
	if !l.known {
		return otherwise
	}
	return l.values[i]
}
