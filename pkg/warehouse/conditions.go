package warehouse

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// maxListed bounds a list of values in a statement. A longer one is left out:
// it would take longer to read than it saves.
const maxListed = 1000

// conditions are those of a WHERE.
type conditions []string

func (c conditions) String() string { return strings.Join(c, " AND ") }

func (c *conditions) add(format string, args ...any) {
	*c = append(*c, fmt.Sprintf(format, args...))
}

// in adds that a column has one of these values, which are in order and as they
// stand in a statement.
func (c *conditions) in(column string, values []string) {
	if len(values) <= maxListed {
		c.add("%s IN (%s)", column, strings.Join(values, ", "))
	}
}

// when limits the rows to days and types of those of c that are named: by both
// the primary key finds its way, and by the time whole parts are passed over.
func (c *conditions) when(columns *record.Columns, rows []int) {
	days := map[int64]bool{}
	types := map[int]bool{}
	first, last := columns.TS[rows[0]], columns.TS[rows[0]]
	for _, row := range rows {
		ts := columns.TS[row]
		first, last = min(first, ts), max(last, ts)
		days[flow.Day(ts)] = true
		types[columns.ValueType.Key(row)] = true
	}
	c.in("toDate(ts)", dates(days))
	c.add("ts BETWEEN fromUnixTimestamp64Milli(%d, 'UTC') AND fromUnixTimestamp64Milli(%d, 'UTC')", first, last)
	c.in("value_type", symbols(&columns.ValueType, types))
}

// dates are days as they stand in a statement.
func dates(days map[int64]bool) []string {
	var all []string
	for _, day := range slices.Sorted(maps.Keys(days)) {
		all = append(all, date(day))
	}
	return all
}

func date(day int64) string {
	return quote(time.Unix(day*24*60*60, 0).UTC().Format(time.DateOnly))
}

// symbols are values of a column, by their keys, as they stand in a statement.
func symbols(column *record.LowCardinality, keys map[int]bool) []string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, quote(string(column.Values.Value(key))))
	}
	return all
}

// numbers are integers as they stand in a statement.
func numbers(values map[int64]bool) []string {
	var all []string
	for _, v := range slices.Sorted(maps.Keys(values)) {
		all = append(all, strconv.FormatInt(v, 10))
	}
	return all
}

// quote makes a literal of a text.
func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}

// numbersOf are the rows from to to-1.
func numbersOf(from, to int) []int {
	rows := make([]int, 0, to-from)
	for row := from; row < to; row++ {
		rows = append(rows, row)
	}
	return rows
}
