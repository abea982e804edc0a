package oracle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
)

// record is a posted workflow record, decoded as the API documents.
type record struct {
	ID          text   `json:"id"`
	PartitionID number `json:"partitionId"`
	Position    number `json:"position"`
	Key         number `json:"key"`
	Timestamp   moment `json:"timestamp"`
	RecordType  text   `json:"recordType"`
	ValueType   text   `json:"valueType"`
	Intent      text   `json:"intent"`
	Value       value  `json:"value"`

	source   string
	known    identity
	ts       int64  // ms since 1970; 0 if not between 2000 and 2099
	version  number // of the process: processDefinitionVersion, or version
	element  string // elementId, or targetElementId
	position int64  // its own, or that in its id
}

// value has the members of a record's value that are columns of tables.
type value struct {
	TenantID                 text            `json:"tenantId"`
	BpmnProcessID            text            `json:"bpmnProcessId"`
	Version                  number          `json:"version"`
	ProcessDefinitionVersion number          `json:"processDefinitionVersion"`
	ProcessDefinitionKey     number          `json:"processDefinitionKey"`
	ProcessInstanceKey       text            `json:"processInstanceKey"`
	ParentProcessInstanceKey number          `json:"parentProcessInstanceKey"`
	ParentElementInstanceKey number          `json:"parentElementInstanceKey"`
	BusinessID               text            `json:"businessId"`
	ElementID                text            `json:"elementId"`
	TargetElementID          text            `json:"targetElementId"`
	ElementInstanceKey       number          `json:"elementInstanceKey"`
	FlowScopeKey             number          `json:"flowScopeKey"`
	ScopeKey                 number          `json:"scopeKey"`
	BpmnElementType          text            `json:"bpmnElementType"`
	Type                     text            `json:"type"`
	JobKey                   number          `json:"jobKey"`
	Worker                   text            `json:"worker"`
	Retries                  number          `json:"retries"`
	Deadline                 moment          `json:"deadline"`
	ErrorType                text            `json:"errorType"`
	ErrorMessage             text            `json:"errorMessage"`
	Name                     text            `json:"name"`
	Value                    text            `json:"value"`
	MessageName              text            `json:"messageName"`
	CorrelationKey           text            `json:"correlationKey"`
	Interrupting             json.RawMessage `json:"interrupting"`
	DueDate                  json.RawMessage `json:"dueDate"` // a timer's in ms, a user task's a text
	SignalName               text            `json:"signalName"`
	CatchEventID             text            `json:"catchEventId"`
	CatchEventInstanceKey    number          `json:"catchEventInstanceKey"`
	Assignee                 text            `json:"assignee"`
	CandidateGroupsList      json.RawMessage `json:"candidateGroupsList"`
	DecisionID               text            `json:"decisionId"`
	DecisionName             text            `json:"decisionName"`
	DecisionVersion          number          `json:"decisionVersion"`
	DecisionKey              number          `json:"decisionKey"`
	DecisionRequirementsID   text            `json:"decisionRequirementsId"`
	DecisionOutput           text            `json:"decisionOutput"`
	FailedDecisionID         text            `json:"failedDecisionId"`
	EvaluationFailureMessage text            `json:"evaluationFailureMessage"`
	ResourceName             text            `json:"resourceName"`
	Resource                 text            `json:"resource"`
	JobKeys                  json.RawMessage `json:"jobKeys"`
	Jobs                     json.RawMessage `json:"jobs"`
}

// identity is the kind of a record's identity (docs/identity.md).
type identity int

const (
	byPosition identity = iota // partition and position
	byContent                  // id and content
	byRequest                  // neither: its request and index
)

// Timestamps outside these bounds count as missing.
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	end      = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
)

func parse(source string, raw []byte) (*record, error) {
	r := &record{source: source}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("oracle: parse a posted record: %w", err)
	}
	if t := r.Timestamp.n; r.Timestamp.known && earliest <= t && t < end {
		r.ts = t
	}
	r.version = r.Value.ProcessDefinitionVersion
	if !r.version.known {
		r.version = r.Value.Version
	}
	r.element = cmp.Or(string(r.Value.ElementID), string(r.Value.TargetElementID))
	switch {
	case r.PartitionID.n >= 1 && r.PartitionID.n <= 8191 && r.Position.n >= 1 && r.ts > 0:
		r.known = byPosition
	case r.ID != "":
		r.known = byContent
	default:
		r.known = byRequest
	}
	r.fromID()
	return r, nil
}

// fromID derives a missing partition and position from an id such as 1-7554, or a missing
// id from them.
func (r *record) fromID() {
	first, second, _ := strings.Cut(string(r.ID), "-")
	partition, err := strconv.ParseInt(first, 10, 64)
	position, failed := strconv.ParseInt(second, 10, 64)
	if err == nil && failed == nil && partition >= 0 && position >= 0 {
		if !r.PartitionID.known {
			r.PartitionID.n = partition
		}
		if !r.Position.known {
			r.Position.n = position
		}
	}
	r.position = r.Position.n
	if r.ID == "" && r.known == byPosition {
		r.ID = text(fmt.Sprintf("%d-%d", r.PartitionID.n, r.Position.n))
	}
}

func (r *record) is(valueType string, intents ...string) bool {
	if string(r.ValueType) != valueType {
		return false
	}
	for _, intent := range intents {
		if string(r.Intent) == intent {
			return true
		}
	}
	return len(intents) == 0
}

// ofStart reports whether the record is of a start event's timer, which has no instance.
func (r *record) ofStart() bool {
	return r.is("TIMER") && r.Value.ElementInstanceKey == number{-1, true}
}

// at returns the time of the record, if it has one.
func (r *record) at() number { return number{r.ts, r.ts > 0} }

// text is a string member. A number is kept as written; other values are empty.
type text string

func (t *text) UnmarshalJSON(b []byte) error {
	switch c := b[0]; {
	case c == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*t = text(s)
	case c == '-' || '0' <= c && c <= '9':
		*t = text(b)
	default:
		*t = ""
	}
	return nil
}

// number is an integer member, or one in a string. Other values are unknown.
type number struct {
	n     int64
	known bool
}

func (n *number) UnmarshalJSON(b []byte) error {
	*n = number{}
	plain := string(bytes.Trim(b, `"`))
	if i, err := strconv.ParseInt(plain, 10, 64); err == nil {
		*n = number{i, true}
		return nil
	}
	if b[0] == '"' || len(b) > 40 {
		return nil
	}
	if exact, ok := new(big.Rat).SetString(plain); ok && exact.IsInt() && exact.Num().IsInt64() { // 5.0 and 1e3
		*n = number{exact.Num().Int64(), true}
	}
	return nil
}

// setMin and most keep the lesser and the greater number, and ignore unknown ones.
func (n *number) setMin(o number) {
	if o.known && (!n.known || o.n < n.n) {
		*n = o
	}
}

func (n *number) setMax(o number) {
	if o.known && (!n.known || o.n > n.n) {
		*n = o
	}
}

// moment is a time member: ms since 1970, or ISO 8601.
type moment struct{ number }

func (m *moment) UnmarshalJSON(b []byte) error {
	if err := m.number.UnmarshalJSON(b); err != nil || m.known || b[0] != '"' {
		return err
	}
	m.number = date(string(bytes.Trim(b, `"`)))
	return nil
}

// date parses ISO 8601, as UTC without an offset.
func date(s string) number {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return number{t.UnixMilli(), true}
		}
	}
	return number{}
}
