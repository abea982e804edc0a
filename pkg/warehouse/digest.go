package warehouse

import (
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"sluice/pkg/record"
)

// digested is a column as text, by ClickHouse and by us: the same bytes, so
// that a row can be compared with the record it was made of without being
// fetched.
type digested struct {
	sql  string
	text func(b []byte, c *record.Columns, row int) []byte
}

// place says where a row belongs and whose it is: enough to tell that a record
// is there. Nothing of it may change with the version of a binary that reads
// what another has stored.
var place = []digested{
	{"id", func(b []byte, c *record.Columns, i int) []byte { return append(b, c.ID.Value(i)...) }},
	{"toString(stream_seq)", func(b []byte, c *record.Columns, i int) []byte { return strconv.AppendUint(b, c.StreamSeq[i], 10) }},
	{"toString(stream_idx)", func(b []byte, c *record.Columns, i int) []byte {
		return strconv.AppendUint(b, uint64(c.StreamIdx[i]), 10)
	}},
	{"toString(toUnixTimestamp64Milli(received_at))", func(b []byte, c *record.Columns, i int) []byte { return strconv.AppendInt(b, c.ReceivedAt[i], 10) }},
}

// sortingKey says which rows ReplacingMergeTree takes for one.
var sortingKey = []digested{
	symbolText("value_type", func(c *record.Columns) *record.Symbol { return &c.ValueType }),
	symbolText("bpmn_process_id", func(c *record.Columns) *record.Symbol { return &c.BpmnProcessID }),
	plainText("process_instance_key", func(c *record.Columns) *record.Text { return &c.ProcessInstanceKey }),
	{"toString(toUnixTimestamp64Milli(ts))", func(b []byte, c *record.Columns, i int) []byte { return strconv.AppendInt(b, c.TS[i], 10) }},
	plainText("id", func(c *record.Columns) *record.Text { return &c.ID }),
}

// whole is every column of a row but its lane.
var whole = append(append(append([]digested{}, place...), sortingKey[:4]...),
	integerText("key", func(c *record.Columns) []int64 { return c.Key }),
	symbolText("record_type", func(c *record.Columns) *record.Symbol { return &c.RecordType }),
	symbolText("intent", func(c *record.Columns) *record.Symbol { return &c.Intent }),
	integerText("partition_id", func(c *record.Columns) []int64 { return c.PartitionID }),
	integerText("position", func(c *record.Columns) []int64 { return c.Position }),
	symbolText("tenant_id", func(c *record.Columns) *record.Symbol { return &c.TenantID }),
	nullableText("process_definition_key", func(c *record.Columns) *record.NullInt64 { return &c.ProcessDefinitionKey }),
	nullableText("version", func(c *record.Columns) *record.NullInt64 { return &c.Version }),
	symbolText("element_id", func(c *record.Columns) *record.Symbol { return &c.ElementID }),
	nullableText("element_instance_key", func(c *record.Columns) *record.NullInt64 { return &c.ElementInstanceKey }),
	symbolText("bpmn_element_type", func(c *record.Columns) *record.Symbol { return &c.BpmnElementType }),
	symbolText("job_type", func(c *record.Columns) *record.Symbol { return &c.JobType }),
	symbolText("worker", func(c *record.Columns) *record.Symbol { return &c.Worker }),
	nullableText("retries", func(c *record.Columns) *record.NullInt64 { return &c.Retries }),
	nullableText("deadline", func(c *record.Columns) *record.NullInt64 { return &c.Deadline }),
	symbolText("error_type", func(c *record.Columns) *record.Symbol { return &c.ErrorType }),
	symbolText("error_code", func(c *record.Columns) *record.Symbol { return &c.ErrorCode }),
	plainText("error_message", func(c *record.Columns) *record.Text { return &c.ErrorMessage }),
	plainText("variables", func(c *record.Columns) *record.Text { return &c.Variables }),
	symbolText("custom_headers", func(c *record.Columns) *record.Symbol { return &c.CustomHeaders }),
	plainText("extra", func(c *record.Columns) *record.Text { return &c.Extra }),
)

func plainText(name string, column func(*record.Columns) *record.Text) digested {
	return digested{name, func(b []byte, c *record.Columns, i int) []byte { return append(b, column(c).Value(i)...) }}
}

func symbolText(name string, column func(*record.Columns) *record.Symbol) digested {
	return digested{name, func(b []byte, c *record.Columns, i int) []byte { return append(b, column(c).Value(i)...) }}
}

func integerText(name string, column func(*record.Columns) []int64) digested {
	return digested{"toString(" + name + ")", func(b []byte, c *record.Columns, i int) []byte {
		return strconv.AppendInt(b, column(c)[i], 10)
	}}
}

func nullableText(name string, column func(*record.Columns) *record.NullInt64) digested {
	return digested{"ifNull(toString(" + name + "), 'NULL')", func(b []byte, c *record.Columns, i int) []byte {
		n := column(c)
		if n.Nulls[i] != 0 {
			return append(b, "NULL"...)
		}
		return strconv.AppendInt(b, n.Values[i], 10)
	}}
}

// between stands between two texts, so that none can pass for another by
// giving its end away.
const between = '\x1f'

// Digest hashes rows. Deep is every column, otherwise it is the id, the place
// in the stream, and when it was received. Not for concurrent use.
type Digest struct {
	Deep bool
	buf  []byte
}

func (d *Digest) columns() []digested {
	if d.Deep {
		return whole
	}
	return place
}

// Row is the digest of a row that is to be stored.
func (d *Digest) Row(c *record.Columns, row int) uint64 { return d.hash(d.columns(), c, row) }

// Key is the digest of what makes two rows one for ReplacingMergeTree.
func (d *Digest) Key(c *record.Columns, row int) uint64 { return d.hash(sortingKey, c, row) }

func (d *Digest) hash(columns []digested, c *record.Columns, row int) uint64 {
	d.buf = d.buf[:0]
	for i, column := range columns {
		if i > 0 {
			d.buf = append(d.buf, between)
		}
		d.buf = column.text(d.buf, c, row)
	}
	return xxh3.Hash(d.buf)
}

// sql is the same for a row that is stored.
func (d *Digest) sql() string { return digestSQL(d.columns()) }

func digestSQL(columns []digested) string {
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = column.sql
	}
	return `xxh3(concat(` + strings.Join(texts, `, '\x1f', `) + `))`
}
