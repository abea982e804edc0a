package warehouse

import (
	"encoding/binary"
	"slices"

	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/record"
)

// blockColumns are the rows from to to-1 of c as columns of flow.records. They
// share the memory of c.
func blockColumns(c *record.Columns, from, to int) proto.Input {
	r := rows{from, to}
	return proto.Input{
		{Name: "source", Data: symbol{&c.Source, r}},
		{Name: "own_id", Data: text{&c.OwnID, r}},
		{Name: "identity", Data: text{&c.Identity, r}},
		{Name: "key", Data: r.int64(c.Key)},
		{Name: "record_type", Data: symbol{&c.RecordType, r}},
		{Name: "value_type", Data: symbol{&c.ValueType, r}},
		{Name: "intent", Data: symbol{&c.Intent, r}},
		{Name: "ts", Data: r.milliseconds(c.TS)},
		{Name: "partition_id", Data: r.int64(c.PartitionID)},
		{Name: "position", Data: r.int64(c.Position)},
		{Name: "source_record_offset", Data: r.nullable(c.SourceRecordOffset)},
		{Name: "record_version", Data: r.nullable(c.RecordVersion)},
		{Name: "broker_version", Data: symbol{&c.BrokerVersion, r}},
		{Name: "rejection_type", Data: symbol{&c.RejectionType, r}},
		{Name: "rejection_reason", Data: text{&c.RejectionReason, r}},
		{Name: "operation_reference", Data: r.nullable(c.OperationReference)},
		{Name: "tenant_id", Data: symbol{&c.TenantID, r}},
		{Name: "bpmn_process_id", Data: symbol{&c.BpmnProcessID, r}},
		{Name: "process_definition_key", Data: r.nullable(c.ProcessDefinitionKey)},
		{Name: "version", Data: r.nullable(c.Version)},
		{Name: "process_instance_key", Data: text{&c.ProcessInstanceKey, r}},
		{Name: "parent_process_instance_key", Data: r.nullable(c.ParentProcessInstanceKey)},
		{Name: "parent_element_instance_key", Data: r.nullable(c.ParentElementInstanceKey)},
		{Name: "element_id", Data: symbol{&c.ElementID, r}},
		{Name: "element_instance_key", Data: r.nullable(c.ElementInstanceKey)},
		{Name: "flow_scope_key", Data: r.nullable(c.FlowScopeKey)},
		{Name: "scope_key", Data: r.nullable(c.ScopeKey)},
		{Name: "bpmn_element_type", Data: symbol{&c.BpmnElementType, r}},
		{Name: "bpmn_event_type", Data: symbol{&c.BpmnEventType, r}},
		{Name: "job_type", Data: symbol{&c.JobType, r}},
		{Name: "job_kind", Data: symbol{&c.JobKind, r}},
		{Name: "job_key", Data: r.nullable(c.JobKey)},
		{Name: "worker", Data: symbol{&c.Worker, r}},
		{Name: "retries", Data: r.nullable(c.Retries)},
		{Name: "deadline", Data: r.nullable(c.Deadline)},
		{Name: "error_type", Data: symbol{&c.ErrorType, r}},
		{Name: "error_code", Data: symbol{&c.ErrorCode, r}},
		{Name: "error_message", Data: text{&c.ErrorMessage, r}},
		{Name: "variables", Data: text{&c.Variables, r}},
		{Name: "custom_headers", Data: symbol{&c.CustomHeaders, r}},
		{Name: "extra", Data: text{&c.Extra, r}},
		{Name: "received_at", Data: r.milliseconds(c.ReceivedAt)},
		{Name: "lane", Data: proto.ColUInt16(c.Lane[from:to])},
		{Name: "incarnation", Data: proto.ColUInt64(c.Incarnation[from:to])},
		{Name: "stream_seq", Data: proto.ColUInt64(c.StreamSeq[from:to])},
		{Name: "stream_idx", Data: proto.ColUInt32(c.StreamIdx[from:to])},
	}
}

// rows is a range of rows, to excluded.
type rows struct{ from, to int }

func (r rows) Rows() int { return r.to - r.from }

func (r rows) int64(v []int64) proto.ColInt64 { return v[r.from:r.to] }

func (r rows) nullable(v record.NullInt64) *proto.ColNullable[int64] {
	values := r.int64(v.Values)
	return &proto.ColNullable[int64]{Nulls: v.Nulls[r.from:r.to], Values: &values}
}

func (r rows) milliseconds(v []int64) proto.ColInput {
	values := r.int64(v)
	return proto.Alias(&values, "DateTime64(3, 'UTC')")
}

// text is a String column.
type text struct {
	t *record.Text
	rows
}

func (text) Type() proto.ColumnType { return proto.ColumnTypeString }

func (c text) EncodeColumn(b *proto.Buffer) { b.Buf = appendText(b.Buf, c.t, c.from, c.to) }

func (c text) WriteColumn(w *proto.Writer) { w.ChainBuffer(c.EncodeColumn) }

// appendText writes strings the way the native format has them: each after its
// length.
func appendText(dst []byte, t *record.Text, from, to int) []byte {
	if from == to {
		return dst
	}
	start := uint32(0)
	if from > 0 {
		start = t.Ends[from-1]
	}
	size := int(t.Ends[to-1] - start)
	dst = slices.Grow(dst, size+(to-from)*3) // lengths below 2 MiB take at most 3 bytes
	for _, end := range t.Ends[from:to] {
		dst = binary.AppendUvarint(dst, uint64(end-start))
		dst = append(dst, t.Buf[start:end]...)
		start = end
	}
	return dst
}

// symbol is a LowCardinality(String) column.
type symbol struct {
	s *record.Symbol
	rows
}

func (symbol) Type() proto.ColumnType {
	return proto.ColumnTypeLowCardinality.Sub(proto.ColumnTypeString)
}

// keysVersion and the flags of a LowCardinality column in the native format:
// each block carries its own dictionary.
const (
	keysVersion       = 1
	hasAdditionalKeys = 1 << 9
	needsUpdate       = 1 << 10
)

func (symbol) EncodeState(b *proto.Buffer) { b.PutInt64(keysVersion) }

func (c symbol) EncodeColumn(b *proto.Buffer) {
	c.encodeDictionary(b)
	c.keys().EncodeColumn(b)
}

func (c symbol) WriteColumn(w *proto.Writer) {
	w.ChainBuffer(c.encodeDictionary)
	c.keys().WriteColumn(w)
}

func (c symbol) encodeDictionary(b *proto.Buffer) {
	width := proto.KeyUInt8
	switch c.s.Width {
	case 2:
		width = proto.KeyUInt16
	case 4:
		width = proto.KeyUInt32
	}
	b.PutInt64(hasAdditionalKeys | needsUpdate | int64(width))
	values := &c.s.Values
	b.PutInt64(int64(values.Rows()))
	b.Buf = appendText(b.Buf, values, 0, values.Rows())
	b.PutInt64(int64(c.Rows()))
}

func (c symbol) keys() proto.ColInput {
	switch c.s.Width {
	case 2:
		return proto.ColUInt16(c.s.Keys16[c.from:c.to])
	case 4:
		return proto.ColUInt32(c.s.Keys32[c.from:c.to])
	}
	return proto.ColUInt8(c.s.Keys8[c.from:c.to])
}
