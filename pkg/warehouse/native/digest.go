package native

import (
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

// digested is a column as text, by ClickHouse and by us: the same bytes, so
// that a row can be compared with the record it was made of without being
// fetched.
type digested struct {
	record.Column     // of no rows: its name and its type
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
	// place says where a row belongs and whose it is: enough to tell that a record
	// is there. Nothing of it may change with the version of a binary that reads
	// what another has stored.
	place = named("source", "partition_id", "position", "own_id", "identity", "incarnation", "stream_seq", "stream_idx", "received_at")

	// whole is every column of a row but its lane, and when it was stored.
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

// sql is the text that ClickHouse makes of the column.
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

// text appends what we make of a row of the column, whose rows are in data.
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
		return strconv.AppendInt(b, data.Values[row], 10)
	case *[]int64:
		return strconv.AppendInt(b, (*data)[row], 10)
	case *[]uint16:
		return strconv.AppendUint(b, uint64((*data)[row]), 10)
	case *[]uint32:
		return strconv.AppendUint(b, uint64((*data)[row]), 10)
	case *[]uint64:
		return strconv.AppendUint(b, (*data)[row], 10)
	}
	panic("column " + d.Name + " is of no type that is compared") // a mistake in the program
}

// Content is every column that a record has by itself, wherever it is stored; nothing of
// it is NULL, which is never IN anything.
var Content = func() string {
	key := []string{"value_type", "bpmn_process_id", "process_instance_key", "ts", "source", "partition_id", "position", "own_id", "identity"}
	var rest []string
	for _, c := range except(whole, append(named(key...), place...)) {
		rest = append(rest, c.sql())
	}
	return strings.Join(key, ", ") + ", cityHash64(" + strings.Join(rest, ", ") + ")"
}()

// Said is the text of everything that a record says, in no order: all its columns but
// those that say where it came in, without the member sequence.
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

// between stands between two texts, so that none can pass for another by
// giving its end away.
const between = '\x1f'

// Digest hashes rows. Deep is every column, otherwise it is whose it is, its
// identity, the place in the stream, and when it was received. Not for concurrent use.
type Digest struct {
	Deep bool
	buf  []byte

	of  *record.Columns // whose columns all are
	all []record.Column
}

func (d *Digest) columns() []digested {
	if d.Deep {
		return whole
	}
	return place
}

// Row is the digest of a row that is to be stored.
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

// SQL is the same for a row that is stored.
func (d *Digest) SQL() string {
	columns := d.columns()
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = column.sql()
	}
	return `xxh3(concat(` + strings.Join(texts, `, '\x1f', `) + `))`
}
