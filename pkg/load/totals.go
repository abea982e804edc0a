package load

import (
	"encoding/json"
	"fmt"
	"strings"
)

// valueType is what a record is about.
type valueType int

const (
	valueElement valueType = iota
	valueCreation
	valueJob
	valueJobBatch
	valueIncident
	valueVariable
	valueTimer
	valueMessage
	valueSubscription
	valueUserTask
	valueTypes // how many there are
)

func (t valueType) String() string {
	return [valueTypes]string{
		"PROCESS_INSTANCE", "PROCESS_INSTANCE_CREATION", "JOB", "JOB_BATCH", "INCIDENT", "VARIABLE",
		"TIMER", "MESSAGE", "PROCESS_MESSAGE_SUBSCRIPTION", "USER_TASK",
	}[t]
}

// Totals is what a number of records add up to. Every id is unique in its
// source, so Records is also the number of different ids of all sources.
type Totals struct {
	Records     int64
	Bytes       int64 // of JSON, brackets and commas between records left out
	KeySum      int64 // wraps, as sum(key) of ClickHouse does
	PositionSum int64 // wraps
	MinPosition int64 // 0 when there are no records
	MaxPosition int64
	types       [valueTypes]int64
}

// ValueTypes counts the records by valueType; those that did not occur are left
// out.
func (t Totals) ValueTypes() map[string]int64 {
	counts := make(map[string]int64)
	for i, n := range t.types {
		if n > 0 {
			counts[valueType(i).String()] = n
		}
	}
	return counts
}

func (t *Totals) count(v valueType, key, position int64, bytes int) {
	if t.Records == 0 {
		t.MinPosition, t.MaxPosition = position, position
	}
	t.Records++
	t.Bytes += int64(bytes)
	t.KeySum += key
	t.PositionSum += position
	t.MinPosition = min(t.MinPosition, position)
	t.MaxPosition = max(t.MaxPosition, position)
	t.types[v]++
}

func (t *Totals) add(o Totals) {
	if o.Records == 0 {
		return
	}
	if t.Records == 0 {
		*t = o
		return
	}
	t.Records += o.Records
	t.Bytes += o.Bytes
	t.KeySum += o.KeySum
	t.PositionSum += o.PositionSum
	t.MinPosition = min(t.MinPosition, o.MinPosition)
	t.MaxPosition = max(t.MaxPosition, o.MaxPosition)
	for i, n := range o.types {
		t.types[i] += n
	}
}

// Query is the SQL whose one row is Records, Records again, KeySum and
// PositionSum when exactly these records are stored.
func (t Totals) Query() string {
	return fmt.Sprintf("SELECT count(), uniqExact(source, id), sum(key), sum(position) FROM flow.records WHERE position BETWEEN %d AND %d", t.MinPosition, t.MaxPosition)
}

// Row is what Query gives in the format TabSeparated.
func (t Totals) Row() string {
	return strings.Join(strings.Fields(fmt.Sprint(t.Records, t.Records, t.KeySum, t.PositionSum)), "\t")
}

// MarshalJSON adds the counts by valueType.
func (t Totals) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Records     int64            `json:"records"`
		Bytes       int64            `json:"bytes"`
		KeySum      int64            `json:"key_sum"`
		PositionSum int64            `json:"position_sum"`
		MinPosition int64            `json:"min_position"`
		MaxPosition int64            `json:"max_position"`
		ValueTypes  map[string]int64 `json:"value_types"`
	}{t.Records, t.Bytes, t.KeySum, t.PositionSum, t.MinPosition, t.MaxPosition, t.ValueTypes()})
}
