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
	symbolText("source", func(c *record.Columns) *record.Symbol { return &c.Source }),
	integerText("partition_id", func(c *record.Columns) []int64 { return c.PartitionID }),
	integerText("position", func(c *record.Columns) []int64 { return c.Position }),
	plainText("own_id", func(c *record.Columns) *record.Text { return &c.OwnID }),
	plainText("identity", func(c *record.Columns) *record.Text { return &c.Identity }),
	unsignedText("incarnation", func(c *record.Columns) []uint64 { return c.Incarnation }),
	unsignedText("stream_seq", func(c *record.Columns) []uint64 { return c.StreamSeq }),
	{"toString(stream_idx)", func(b []byte, c *record.Columns, i int) []byte {
		return strconv.AppendUint(b, uint64(c.StreamIdx[i]), 10)
	}},
	momentText("received_at", func(c *record.Columns) []int64 { return c.ReceivedAt }),
}

// sortingKey says which rows ReplacingMergeTree takes for one.
var sortingKey = []digested{
	symbolText("value_type", func(c *record.Columns) *record.Symbol { return &c.ValueType }),
	symbolText("bpmn_process_id", func(c *record.Columns) *record.Symbol { return &c.BpmnProcessID }),
	plainText("process_instance_key", func(c *record.Columns) *record.Text { return &c.ProcessInstanceKey }),
	momentText("ts", func(c *record.Columns) []int64 { return c.TS }),
	integerText("key", func(c *record.Columns) []int64 { return c.Key }),
	symbolText("record_type", func(c *record.Columns) *record.Symbol { return &c.RecordType }),
	symbolText("intent", func(c *record.Columns) *record.Symbol { return &c.Intent }),
	place[0], place[1], place[2], place[3], place[4], // source to identity
}

// whole is every column of a row but its lane.
var whole = append(append(append([]digested{}, place...), sortingKey[:7]...),
	nullableText("source_record_offset", func(c *record.Columns) *record.NullInt64 { return &c.SourceRecordOffset }),
	nullableText("record_version", func(c *record.Columns) *record.NullInt64 { return &c.RecordVersion }),
	symbolText("broker_version", func(c *record.Columns) *record.Symbol { return &c.BrokerVersion }),
	symbolText("rejection_type", func(c *record.Columns) *record.Symbol { return &c.RejectionType }),
	plainText("rejection_reason", func(c *record.Columns) *record.Text { return &c.RejectionReason }),
	nullableText("operation_reference", func(c *record.Columns) *record.NullInt64 { return &c.OperationReference }),
	symbolText("tenant_id", func(c *record.Columns) *record.Symbol { return &c.TenantID }),
	nullableText("process_definition_key", func(c *record.Columns) *record.NullInt64 { return &c.ProcessDefinitionKey }),
	nullableText("version", func(c *record.Columns) *record.NullInt64 { return &c.Version }),
	nullableText("parent_process_instance_key", func(c *record.Columns) *record.NullInt64 { return &c.ParentProcessInstanceKey }),
	nullableText("parent_element_instance_key", func(c *record.Columns) *record.NullInt64 { return &c.ParentElementInstanceKey }),
	symbolText("element_id", func(c *record.Columns) *record.Symbol { return &c.ElementID }),
	nullableText("element_instance_key", func(c *record.Columns) *record.NullInt64 { return &c.ElementInstanceKey }),
	nullableText("flow_scope_key", func(c *record.Columns) *record.NullInt64 { return &c.FlowScopeKey }),
	nullableText("scope_key", func(c *record.Columns) *record.NullInt64 { return &c.ScopeKey }),
	symbolText("bpmn_element_type", func(c *record.Columns) *record.Symbol { return &c.BpmnElementType }),
	symbolText("bpmn_event_type", func(c *record.Columns) *record.Symbol { return &c.BpmnEventType }),
	symbolText("job_type", func(c *record.Columns) *record.Symbol { return &c.JobType }),
	symbolText("job_kind", func(c *record.Columns) *record.Symbol { return &c.JobKind }),
	nullableText("job_key", func(c *record.Columns) *record.NullInt64 { return &c.JobKey }),
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

func unsignedText(name string, column func(*record.Columns) []uint64) digested {
	return digested{"toString(" + name + ")", func(b []byte, c *record.Columns, i int) []byte {
		return strconv.AppendUint(b, column(c)[i], 10)
	}}
}

func momentText(name string, column func(*record.Columns) []int64) digested {
	return digested{"toString(toUnixTimestamp64Milli(" + name + "))", func(b []byte, c *record.Columns, i int) []byte {
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

// Digest hashes rows. Deep is every column, otherwise it is whose it is, its
// identity, the place in the stream, and when it was received. Not for concurrent use.
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
