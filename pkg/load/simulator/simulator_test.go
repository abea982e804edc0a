package simulator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/load/simulator"
)

// envelope has the members of every record.
type envelope struct {
	ID         string `json:"id"`
	Partition  int64  `json:"partitionId"`
	Position   int64  `json:"position"`
	Source     int64  `json:"sourceRecordPosition"`
	Key        int64  `json:"key"`
	Timestamp  int64  `json:"timestamp"`
	RecordType string `json:"recordType"`
	ValueType  string `json:"valueType"`
	Intent     string `json:"intent"`
	Value      struct {
		ProcessInstanceKey int64  `json:"processInstanceKey"`
		BpmnElementType    string `json:"bpmnElementType"`
	} `json:"value"`
}

func decode(t *testing.T, r simulator.Record) envelope {
	t.Helper()
	var v envelope
	if err := json.Unmarshal(r.JSON, &v); err != nil {
		t.Fatalf("%v in %s", err, r.JSON)
	}
	return v
}

func TestTheSameConfigGivesTheSameBytes(t *testing.T) {
	write := func(seed uint64) []byte {
		var b []byte
		for r := range simulator.New(simulator.Config{Seed: seed, Instances: 50, Commands: true}).All() {
			b = append(append(b, r.JSON...), '\n')
		}
		return b
	}
	expect.Not(t, !bytes.Equal(write(1), write(1)), "two runs differ")
	expect.Not(t, bytes.Equal(write(1), write(2)), "two seeds do not")
}

// TestRecordsAreNumberedLikeThoseOfAnEngine checks positions, sources, keys and times,
// with and without commands.
func TestRecordsAreNumberedLikeThoseOfAnEngine(t *testing.T) {
	deployed := map[string]bool{"PROCESS": true, "DECISION": true, "DECISION_REQUIREMENTS": true} // with the keys of partition 1
	for _, commands := range []bool{false, true} {
		last := map[int64]envelope{}
		written := map[int64]map[int64]bool{1: {}, 2: {}, 3: {}, 4: {}}
		var now int64
		for r := range simulator.New(simulator.Config{Seed: 3, Instances: 100, Partitions: 4, Commands: commands}).All() {
			v := decode(t, r)
			if got := (envelope{ID: v.ID, Partition: r.Partition, Position: r.Position, Timestamp: r.Timestamp, RecordType: r.RecordType,
				ValueType: r.ValueType, Intent: r.Intent, Source: v.Source, Key: v.Key, Value: v.Value}); got != v {
				t.Fatalf("the record is %+v, its JSON %+v", got, v)
			}
			if v.ID != fmt.Sprintf("%d-%d", v.Partition, v.Position) {
				t.Fatalf("id of %s", r.JSON)
			}
			p := last[v.Partition]
			switch {
			case v.Position <= p.Position || commands && v.Position != p.Position+1:
				t.Fatalf("position %d after %d", v.Position, p.Position)
			case v.Source >= v.Position || v.RecordType == "EVENT" && v.Source < 1:
				t.Fatalf("source of %s", r.JSON)
			case commands && v.Source > 0 && !written[v.Partition][v.Source]:
				t.Fatalf("no record at the source of %s", r.JSON)
			case v.Timestamp < now:
				t.Fatalf("time of %s, after %d", r.JSON, now)
			case v.Key != -1 && !deployed[v.ValueType] && v.Key>>51 != v.Partition:
				t.Fatalf("key of another partition: %s", r.JSON)
			case !commands && v.RecordType != "EVENT":
				t.Fatalf("not an event: %s", r.JSON)
			}
			last[v.Partition], now = v, v.Timestamp
			written[v.Partition][v.Position] = true
		}
	}
}

// TestEverythingHappens looks for each step of the engine.
func TestEverythingHappens(t *testing.T) {
	seen := map[string]int{}
	for r := range simulator.New(simulator.Config{Seed: 4, Instances: 1000, Commands: true}).All() {
		seen[r.RecordType+" "+r.ValueType+" "+r.Intent]++
		v := decode(t, r)
		seen[v.Value.BpmnElementType]++
	}
	for valueType, intents := range map[string]string{
		"PROCESS":                      "CREATED",
		"DEPLOYMENT":                   "CREATED",
		"DECISION":                     "CREATED",
		"DECISION_REQUIREMENTS":        "CREATED",
		"DECISION_EVALUATION":          "EVALUATED FAILED",
		"PROCESS_INSTANCE_CREATION":    "CREATED",
		"PROCESS_INSTANCE":             "ELEMENT_ACTIVATING ELEMENT_ACTIVATED ELEMENT_COMPLETING ELEMENT_COMPLETED ELEMENT_TERMINATING ELEMENT_TERMINATED ELEMENT_MIGRATED SEQUENCE_FLOW_TAKEN",
		"PROCESS_INSTANCE_BATCH":       "ACTIVATED TERMINATED",
		"PROCESS_INSTANCE_MIGRATION":   "MIGRATED",
		"JOB":                          "CREATED COMPLETED FAILED TIMED_OUT ERROR_THROWN CANCELED RETRIES_UPDATED TIMEOUT_UPDATED RECURRED_AFTER_BACKOFF MIGRATED",
		"JOB_BATCH":                    "ACTIVATED",
		"INCIDENT":                     "CREATED RESOLVED MIGRATED",
		"VARIABLE":                     "CREATED UPDATED MIGRATED",
		"VARIABLE_DOCUMENT":            "UPDATED",
		"USER_TASK":                    "CREATING CREATED ASSIGNING CLAIMING ASSIGNED COMPLETING COMPLETED CANCELING CANCELED MIGRATED",
		"TIMER":                        "CREATED TRIGGERED CANCELED",
		"PROCESS_EVENT":                "TRIGGERING TRIGGERED",
		"MESSAGE":                      "PUBLISHED EXPIRED",
		"MESSAGE_SUBSCRIPTION":         "CREATED CORRELATING CORRELATED DELETED",
		"PROCESS_MESSAGE_SUBSCRIPTION": "CREATING CREATED CORRELATED DELETING DELETED",
	} {
		for intent := range strings.FieldsSeq(intents) {
			expect.Not(t, seen["EVENT "+valueType+" "+intent] == 0, "no %s %s", valueType, intent)
		}
	}
	for _, elementType := range []string{"PROCESS", "START_EVENT", "SERVICE_TASK", "USER_TASK", "BUSINESS_RULE_TASK", "INTERMEDIATE_CATCH_EVENT", "EXCLUSIVE_GATEWAY",
		"PARALLEL_GATEWAY", "SUB_PROCESS", "CALL_ACTIVITY", "MULTI_INSTANCE_BODY", "BOUNDARY_EVENT", "END_EVENT", "SEQUENCE_FLOW"} {
		expect.Not(t, seen[elementType] == 0, "no %s", elementType)
	}
	expect.Not(t, seen["COMMAND PROCESS_INSTANCE ACTIVATE_ELEMENT"] == 0 || seen["COMMAND_REJECTION JOB COMPLETE"] == 0, "no commands, or no rejections")
}

// TestAnEngineThatRunsOnTakesBoundedMemory runs without Truth.
func TestAnEngineThatRunsOnTakesBoundedMemory(t *testing.T) {
	e := simulator.New(simulator.Config{Seed: 6, Every: time.Millisecond, UnderWay: 200})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	play := func(n int) {
		for range n {
			if _, more := e.Next(); !more {
				t.Fatal("the engine stopped")
			}
		}
	}
	play(150_000)
	before := heap()
	play(450_000)
	if after := heap(); after > before+4<<20 {
		t.Errorf("%d KiB after 150 000 records, %d KiB after 600 000", before>>10, after>>10)
	}
}
