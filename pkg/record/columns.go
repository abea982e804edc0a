package record

import (
	"time"

	"sluice/pkg/flow"
)

// Columns is a block of decoded records, one typed column per column of flow.records, all
// of equal length. The zero value is ready; Reset keeps the memory for the next block.
// Not for concurrent use.
//
// Its tags define the columns: "column" is the name in flow.records, "member" the record
// member that the column holds unchanged ("value." for members of value). All but those
// from the message are in its body (body.go), and so are those with the tag "body". All
// readers and writers follow from the tags. docs/contributing.md adds one.
type Columns struct {
	Source LowCardinality `from:"message" column:"source"` // the engine of the records

	// The deduplication key: identity.go.
	Kind     []uint8      `body:"kind"`       // flow.ByPosition, flow.ByContent or flow.ByPlace
	OwnID    StringColumn `column:"own_id"`   // the id; empty if derived from partition and position
	Identity StringColumn `column:"identity"` // empty, a content hash, or a place

	Key        []int64        `column:"key"` // 0 when missing
	RecordType LowCardinality `column:"record_type" member:"recordType"`
	ValueType  LowCardinality `column:"value_type" member:"valueType"`
	Intent     LowCardinality `column:"intent" member:"intent"`

	TS                 []int64   `column:"ts" unit:"ms"` // since 1970; 0 when missing or absurd
	PartitionID        []int64   `column:"partition_id"`
	Position           []int64   `column:"position"`
	SourceRecordOffset NullInt64 `column:"source_record_offset"` // sourceRecordPosition - position, modulo 2^64

	RecordVersion      NullInt64      `column:"record_version" member:"recordVersion"`
	BrokerVersion      LowCardinality `column:"broker_version" member:"brokerVersion"`
	RejectionType      LowCardinality `column:"rejection_type" member:"rejectionType"`
	RejectionReason    StringColumn   `column:"rejection_reason" member:"rejectionReason"`
	OperationReference NullInt64      `column:"operation_reference" member:"operationReference"`

	TenantID                 LowCardinality `column:"tenant_id" member:"value.tenantId"`
	BpmnProcessID            LowCardinality `column:"bpmn_process_id" member:"value.bpmnProcessId"`
	ProcessDefinitionKey     NullInt64      `column:"process_definition_key" member:"value.processDefinitionKey"`
	Version                  NullInt64      `column:"version"` // of the process, a member with two names
	ProcessInstanceKey       StringColumn   `column:"process_instance_key" member:"value.processInstanceKey"`
	ParentProcessInstanceKey NullInt64      `column:"parent_process_instance_key" member:"value.parentProcessInstanceKey"`
	ParentElementInstanceKey NullInt64      `column:"parent_element_instance_key" member:"value.parentElementInstanceKey"`
	RootProcessInstanceKey   NullInt64      `column:"root_process_instance_key" member:"value.rootProcessInstanceKey"`
	BusinessKey              StringColumn   `column:"business_key" member:"value.businessId"`
	ElementID                LowCardinality `column:"element_id"` // a member with two names
	ElementInstanceKey       NullInt64      `column:"element_instance_key" member:"value.elementInstanceKey"`
	FlowScopeKey             NullInt64      `column:"flow_scope_key" member:"value.flowScopeKey"`
	ScopeKey                 NullInt64      `column:"scope_key" member:"value.scopeKey"`
	BpmnElementType          LowCardinality `column:"bpmn_element_type" member:"value.bpmnElementType"`
	BpmnEventType            LowCardinality `column:"bpmn_event_type" member:"value.bpmnEventType"`
	JobType                  LowCardinality `column:"job_type" member:"value.type"`
	JobKind                  LowCardinality `column:"job_kind" member:"value.jobKind"`
	JobKey                   NullInt64      `column:"job_key" member:"value.jobKey"`
	Worker                   LowCardinality `column:"worker" member:"value.worker"`
	Retries                  NullInt64      `column:"retries" member:"value.retries"`
	Deadline                 NullInt64      `column:"deadline"` // ms since 1970
	ErrorType                LowCardinality `column:"error_type" member:"value.errorType"`
	ErrorCode                LowCardinality `column:"error_code" member:"value.errorCode"`
	ErrorMessage             StringColumn   `column:"error_message" member:"value.errorMessage"`

	Variables     StringColumn   `column:"variables"`      // JSON, {} when missing
	CustomHeaders LowCardinality `column:"custom_headers"` // JSON, {} when missing
	Extra         StringColumn   `column:"extra"`          // JSON object of all other members, or empty

	ReceivedAt  []int64  `from:"message" column:"received_at" unit:"ms"` // since 1970
	Lane        []uint16 `from:"message" column:"lane"`
	Incarnation []uint64 `from:"message" column:"incarnation"` // of the lane
	StreamSeq   []uint64 `from:"message" column:"stream_seq"`
	StreamIdx   []uint32 `from:"message" column:"stream_idx"`

	// The shape of the posted JSON: rebuild.go. Empty in rows read for the warehouse.
	Form  LowCardinality `body:"form"`  // sets of fields
	Whole StringColumn   `body:"whole"` // the record as posted, if its row cannot reproduce it

	reader reader // of the message being appended; kept for its memory
	source []byte // of the message being appended

	remap  []uint32     // keys of a dictionary being joined or written
	hashes StringColumn // identities of rows, some of them identified by place

	room  int      // rows allocated in symbols and numbers during append
	bound *Columns // the owner of the columns in found; differs after a move
	found found
}

func (c *Columns) Rows() int { return len(c.StreamSeq) }

// perRow is the bytes of a row in fixed-width columns.
const perRow = 1 /* kind */ + 8 /* key */ + 8 /* ts */ + 8 + 8 /* partition, position */ + 8 /* received */ + 8 + 4 + 2 + 8 /* place */

func (c *Columns) Bytes() int {
	n := perRow * c.Rows()
	for _, t := range c.texts() {
		n += t.bytes()
	}
	for _, s := range c.symbols() {
		n += s.bytes()
	}
	for _, v := range c.numbers() {
		n += v.bytes()
	}
	return n
}

// Held returns the allocated memory, which Reset keeps.
func (c *Columns) Held() int {
	n := perRow*cap(c.StreamSeq) + cap(c.reader.plain)
	for _, t := range c.texts() {
		n += t.held()
	}
	for _, s := range c.symbols() {
		n += s.held()
	}
	for _, v := range c.numbers() {
		n += v.held()
	}
	return n
}

func (c *Columns) Reset() {
	for _, s := range c.symbols() {
		s.reset()
	}
	c.shorten(0)
}

// mark is a row count to truncate to, with the dictionary sizes at that time.
type mark struct {
	rows   int
	values [maxColumns]int
}

func (c *Columns) mark() mark {
	if c.RecordType.slots == nil {
		c.Reset()
	}
	m := mark{rows: c.Rows()}
	for i, s := range c.symbols() {
		m.values[i] = s.Values.Rows()
	}
	return m
}

// truncate removes all rows appended since m.
func (c *Columns) truncate(m mark) {
	for i, s := range c.symbols() {
		s.truncate(m.rows, max(m.values[i], 1))
	}
	c.shorten(m.rows)
}

// shorten keeps the first rows of all columns but symbols.
func (c *Columns) shorten(rows int) {
	c.room = rows
	for _, t := range c.texts() {
		t.truncate(rows)
	}
	for _, n := range c.numbers() {
		n.truncate(rows)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position, &c.ReceivedAt} {
		*n = (*n)[:rows]
	}
	c.StreamSeq = c.StreamSeq[:rows]
	c.StreamIdx = c.StreamIdx[:rows]
	c.Lane = c.Lane[:rows]
	c.Incarnation = c.Incarnation[:rows]
	c.Kind = c.Kind[:rows]
}

// Block is the rows of one INSERT, under one token.
type Block struct {
	Columns  *Columns // not kept after the call returns
	From, To int      // its rows, To exclusive
	Token    string   // the same for the same rows
	StoredAt int64    // start of their retention, ms since 1970

	Timeout time.Duration // of the attempt; 0: the warehouse's default
}

// Drop removes runs of rows, in order and not adjacent. The dictionaries keep values that
// no row uses.
func (c *Columns) Drop(runs []flow.Run) {
	if len(runs) == 0 {
		return
	}
	for _, t := range c.texts() {
		t.drop(runs)
	}
	for _, s := range c.symbols() {
		switch s.Width {
		case 2:
			s.Keys16 = drop(s.Keys16, runs)
		case 4:
			s.Keys32 = drop(s.Keys32, runs)
		default:
			s.Keys8 = drop(s.Keys8, runs)
		}
	}
	for _, n := range c.numbers() {
		n.drop(runs)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position, &c.ReceivedAt} {
		*n = drop(*n, runs)
	}
	c.Kind = drop(c.Kind, runs)
	c.Lane, c.Incarnation = drop(c.Lane, runs), drop(c.Incarnation, runs)
	c.StreamIdx, c.StreamSeq = drop(c.StreamIdx, runs), drop(c.StreamSeq, runs)
	c.room = c.Rows()
}

func drop[T any](rows []T, runs []flow.Run) []T {
	end := runs[0].From
	for i, r := range runs {
		next := len(rows)
		if i+1 < len(runs) {
			next = runs[i+1].From
		}
		end += copy(rows[end:], rows[r.To:next])
	}
	return rows[:end]
}

// Months returns the months of the rows from to to-1, with the number of rows of each.
func (c *Columns) Months(from, to int) map[int]uint64 {
	months := map[int]uint64{}
	day, month, n := int64(-1), 0, uint64(0)
	for _, ms := range c.TS[from:to] {
		if d := flow.Day(ms); d != day {
			if n > 0 {
				months[month] += n
			}
			day, month, n = d, flow.Month(ms), 0
		}
		n++
	}
	if n > 0 {
		months[month] += n
	}
	return months
}

// Arrange reorders the rows: row i becomes the old row order[i].
func (c *Columns) Arrange(order []int) {
	for _, t := range c.texts() {
		t.arrange(order)
	}
	for _, s := range c.symbols() {
		switch s.Width {
		case 2:
			arrange(s.Keys16, order)
		case 4:
			arrange(s.Keys32, order)
		default:
			arrange(s.Keys8, order)
		}
	}
	for _, n := range c.numbers() {
		n.arrange(order)
	}
	for _, n := range []*[]int64{&c.Key, &c.TS, &c.PartitionID, &c.Position, &c.ReceivedAt} {
		arrange(*n, order)
	}
	arrange(c.Kind, order)
	arrange(c.Lane, order)
	arrange(c.Incarnation, order)
	arrange(c.StreamSeq, order)
	arrange(c.StreamIdx, order)
}

func arrange[T any](rows []T, order []int) {
	before := append([]T(nil), rows...)
	for i, from := range order {
		rows[i] = before[from]
	}
}
