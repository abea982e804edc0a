package native

import (
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

// digested is a column as text, equal in ClickHouse and here, so that a stored row can be compared with
// its record without being fetched.
type digested struct {
	record.Column     // without rows: name and type
	index         int // of record.Columns.All
}

// columns are those of flow.records.
var columns = func() (all []digested) {
	for i, c := range new(record.Columns).All() {
		all = append(all, digested{c, i})
	}
	return all
}()

var (
	// place identifies a row and its source: enough to show that a record is stored. It must
	// not change with the version of the binary, which may read rows that another stored.
	place = named("source", "partition_id", "position", "own_id", "identity", "incarnation", "stream_seq", "stream_idx", "received_at")

	// whole is every column of a row except its lane and stored_at.
	whole = except(columns, named("lane"))
)

// named are columns by their names.
func named(names ...string) (some []digested) {
	for _, name := range names {
		some = append(some, columns[slices.IndexFunc(columns, func(c digested) bool { return c.Name == name })])
	}
	return some
}

// except are columns without some of them.
func except(all, some []digested) []digested {
	return slices.DeleteFunc(slices.Clone(all), func(c digested) bool {
		return slices.ContainsFunc(some, func(other digested) bool { return other.index == c.index })
	})
}

// sql is the SQL expression of the text.
func (d digested) sql() string {
	switch d.Data.(type) {
	case *record.LowCardinality, *record.StringColumn:
		return d.Name
	case *record.NullInt64:
		return "ifNull(toString(" + d.Name + "), 'NULL')"
	}
	if d.Time {
		return "toString(toUnixTimestamp64Milli(" + d.Name + "))"
	}
	return "toString(" + d.Name + ")"
}

// text appends the text of a row of data.
func (d digested) text(b []byte, data any, row int) []byte {
	switch data := data.(type) {
	case *record.LowCardinality:
		return append(b, data.Value(row)...)
	case *record.StringColumn:
		return append(b, data.Value(row)...)
	case *record.NullInt64:
		if data.Nulls[row] != 0 {
			return append(b, "NULL"...)
		}
		return strconv.AppendInt(b, data.Value(row), 10)
	case *[]int64:
		return strconv.AppendInt(b, (*data)[row], 10)
	case *[]uint16:
		return strconv.AppendUint(b, uint64((*data)[row]), 10)
	case *[]uint32:
		return strconv.AppendUint(b, uint64((*data)[row]), 10)
	case *[]uint64:
		return strconv.AppendUint(b, (*data)[row], 10)
	}
	panic("column " + d.Name + " has an unsupported type") // a bug
}

// Content is every column that belongs to the record itself, not to its place. None is NULL, which no IN matches.
var Content = func() string {
	key := []string{"value_type", "bpmn_process_id", "process_instance_key", "ts", "source", "partition_id", "position", "own_id", "identity"}
	var rest []string
	for _, c := range except(whole, append(named(key...), place...)) {
		rest = append(rest, c.sql())
	}
	return strings.Join(key, ", ") + ", cityHash64(" + strings.Join(rest, ", ") + ")"
}()

// Said is the text of all columns of a record, except its place, without the member sequence.
var Said = func() string {
	texts := []string{"ifNull(toString(position + source_record_offset), '')"}
	for _, c := range except(columns, named("source", "identity", "source_record_offset", "lane", "incarnation", "stream_seq", "stream_idx", "received_at")) {
		text := c.sql()
		if c.Name == "extra" {
			text = `replaceRegexpAll(extra, '"sequence"[[:space:]]*:[[:space:]]*[0-9]+', '')`
		}
		texts = append(texts, text)
	}
	return "concat(" + strings.Join(texts, ", ' ', ") + ")"
}()

// between separates two texts, so that different pairs give different hashes.
const between = '\x1f'

// Digest hashes rows. Deep covers every column, otherwise source, identity, place, and receive time. Not
// for concurrent use.
type Digest struct {
	Deep bool
	buf  []byte

	of  *record.Columns // owner of the columns
	all []record.Column
}

func (d *Digest) columns() []digested {
	if d.Deep {
		return whole
	}
	return place
}

// Row is the digest of a row before it is stored.
func (d *Digest) Row(c *record.Columns, row int) uint64 { return d.hash(d.columns(), c, row) }

func (d *Digest) hash(columns []digested, c *record.Columns, row int) uint64 {
	if d.of != c {
		d.of, d.all = c, c.All()
	}
	d.buf = d.buf[:0]
	for i, column := range columns {
		if i > 0 {
			d.buf = append(d.buf, between)
		}
		d.buf = column.text(d.buf, d.all[column.index].Data, row)
	}
	return xxh3.Hash(d.buf)
}

// SQL is the SQL expression of the same for a stored row.
func (d *Digest) SQL() string {
	columns := d.columns()
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = column.sql()
	}
	return `xxh3(concat(` + strings.Join(texts, `, '\x1f', `) + `))`
}
