package warehouse_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// handmade writes records of one engine at consecutive positions; times are ms after 2025-11-21
// 04:00:00.
type handmade struct {
	records []string
}

func (m *handmade) event(at int64, valueType, intent string, key int64, value string, args ...any) {
	position := len(m.records) + 1
	m.records = append(m.records, fmt.Sprintf(`{"partitionId":1,"position":%d,"timestamp":%d,"key":%d,"recordType":"EVENT","valueType":"%s","intent":"%s","value":{%s}}`,
		position, 1763697600000+at, key, valueType, intent, fmt.Sprintf(value, args...)))
}

// element writes records of an element of process p, version 1.
func (m *handmade) element(at, instance, parent, key int64, id, kind string, scope int64, intents ...string) {
	for _, intent := range intents {
		m.event(at, "PROCESS_INSTANCE", intent, key, `"bpmnProcessId":"p","version":1,"processDefinitionKey":3,"processInstanceKey":%d,"parentProcessInstanceKey":%d,"parentElementInstanceKey":-1,"elementId":"%s","bpmnElementType":"%s","flowScopeKey":%d`,
			instance, parent, id, kind, scope)
	}
}

// instance writes the start of an instance, and its end if any.
func (m *handmade) instance(begun, ended, key, parent int64) {
	m.element(begun, key, parent, key, "p", "PROCESS", -1, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")
	if ended > 0 {
		m.element(ended, key, parent, key, "p", "PROCESS", -1, "ELEMENT_COMPLETING", "ELEMENT_COMPLETED")
	}
}

const second, hour = int64(1000), int64(3_600_000)

// parallel is an instance whose branches A, A2 and B, B2 join, all in one millisecond. The
// engine's order is one step of each branch in turn.
func parallel() []string {
	m := &handmade{}
	flows := [][3]string{{"f0", "start", "fork"}, {"f1", "fork", "A"}, {"f2", "fork", "B"}, {"f3", "A", "A2"}, {"f4", "B", "B2"}, {"f5", "A2", "join"}, {"f6", "B2", "join"}, {"f7", "join", "end"}}
	xml := `<bpmn:process id="p"><bpmn:boundaryEvent attachedToRef="A" id="late"/>`
	for _, f := range flows {
		xml += fmt.Sprintf(`<bpmn:sequenceFlow id="%s" sourceRef="%s" targetRef="%s" />`, f[0], f[1], f[2])
	}
	m.event(0, "PROCESS", "CREATED", 3, `"bpmnProcessId":"p","version":1,"processDefinitionKey":3,"resource":"%s"`, base64.StdEncoding.EncodeToString([]byte(xml)))
	key := int64(100)
	keys := map[string]int64{}
	enter := func(ids ...string) {
		for _, id := range ids {
			key++
			keys[id] = key
			kind := map[string]string{"fork": "PARALLEL_GATEWAY", "join": "PARALLEL_GATEWAY", "end": "END_EVENT"}[id]
			m.element(second, 7, -1, key, id, kind, 7, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")
		}
	}
	leave := func(id string, taken ...string) {
		m.element(second, 7, -1, keys[id], id, "MANUAL_TASK", 7, "ELEMENT_COMPLETING", "ELEMENT_COMPLETED")
		for _, f := range taken {
			key++
			m.element(second, 7, -1, key, f, "SEQUENCE_FLOW", 7, "SEQUENCE_FLOW_TAKEN")
		}
	}
	m.instance(second, 0, 7, -1)
	enter("start")
	leave("start", "f0")
	enter("fork")
	leave("fork", "f1", "f2")
	enter("A", "B")
	leave("A", "f3")
	leave("B", "f4")
	enter("A2", "B2")
	leave("A2", "f5")
	leave("B2", "f6")
	enter("join")
	leave("join", "f7")
	enter("end")
	leave("end")
	m.element(second, 7, -1, 7, "p", "PROCESS", -1, "ELEMENT_COMPLETING", "ELEMENT_COMPLETED")
	return m.records
}

// TestQuestionsOfMadeRecords uses records with an obvious truth.
func TestQuestionsOfMadeRecords(t *testing.T) {
	t.Parallel()
	durations := &handmade{}
	durations.instance(0, 2*second, 7, -1)
	durations.instance(0, 60*second, 8, -1)

	calls := &handmade{} // 7 calls 8, which calls 9, with a user task and an open incident; 10 calls 11, which is completed
	calls.instance(0, 9*second, 7, -1)
	calls.instance(0, 9*second, 8, 7)
	calls.instance(0, 9*second, 9, 8)
	calls.element(0, 9, 8, 20, "ask", "USER_TASK", 9, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED", "ELEMENT_COMPLETED")
	calls.instance(0, 9*second, 10, -1)
	calls.instance(0, 9*second, 11, 10)
	calls.instance(0, 0, 12, -1)
	calls.instance(0, 0, 13, 12)
	calls.event(0, "INCIDENT", "CREATED", 30, `"processInstanceKey":13,"bpmnProcessId":"p","errorType":"X"`)

	halves := &handmade{} // 7 takes 10 s, and waits from 1 s to 4 s for 8, and from 2 s to 6 s for 9
	halves.instance(0, 10*second, 7, -1)
	halves.instance(second, 4*second, 8, 7)
	halves.instance(2*second, 6*second, 9, 7)

	heat := &handmade{}
	heat.element(0, 7, -1, 20, "done", "SERVICE_TASK", 7, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")
	heat.element(5*second, 7, -1, 20, "done", "SERVICE_TASK", 7, "ELEMENT_COMPLETED")
	heat.element(0, 7, -1, 21, "cut off", "SERVICE_TASK", 7, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")
	heat.element(60*second, 7, -1, 21, "cut off", "SERVICE_TASK", 7, "ELEMENT_TERMINATED")
	heat.element(0, 7, -1, 22, "for hours", "SERVICE_TASK", 7, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")

	tasks := &handmade{}
	for i, at := range []int64{0, 4 * second} { // one is assigned on creation
		tasks.event(0, "USER_TASK", "CREATED", int64(20+i), `"processInstanceKey":7,"bpmnProcessId":"p","assignee":"%s"`, []string{"zoe", ""}[i])
		if at > 0 {
			tasks.event(at, "USER_TASK", "ASSIGNED", int64(20+i), `"processInstanceKey":7,"bpmnProcessId":"p","assignee":"zoe"`)
		}
	}
	hours := &handmade{}
	hours.instance(0, 3*hour, 7, -1)

	loop := &handmade{} // A is entered twice, B three times as turns of a body, and C once
	for i, e := range []string{"A", "B", "A", "B", "B", "C"} {
		scope := map[string]int64{"A": 7, "B": 50, "C": 7}[e]
		loop.element(int64(i)*second, 7, -1, int64(20+i), e, "SERVICE_TASK", scope, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")
		loop.element(int64(i+3)*second, 7, -1, int64(20+i), e, "SERVICE_TASK", scope, "ELEMENT_COMPLETED")
	}
	loop.element(0, 7, -1, 50, "B", "MULTI_INSTANCE_BODY", 7, "ELEMENT_ACTIVATING", "ELEMENT_ACTIVATED")

	people := &handmade{} // zoe, then ann twice; 8 is completed by one alone, without a name
	for i, who := range []string{"zoe", "ann", "ann", "bob", ""} {
		instance := map[bool]int{true: 8}[i > 2]
		people.event(0, "USER_TASK", "CREATED", int64(20+i), `"processInstanceKey":%d,"bpmnProcessId":"p","assignee":"%s"`, max(7, instance), who)
		people.event(int64(i*i)*second, "USER_TASK", "COMPLETED", int64(20+i), `"processInstanceKey":%d,"bpmnProcessId":"p"`, max(7, instance))
	}

	db := open(t)
	var all []sent
	cases := []struct {
		question string
		params   map[string]string
		records  []string
		want     []string
	}{
		{"durations", nil, durations.records, []string{"p		1		2	31000	31000	54199.99999999999	57100	59420	60000"}},
		{"directly_follows", nil, parallel(), []string{
			"p	A		A2		1	1	0	0", "p	A2		join		1	1	0	0", "p	B		B2		1	1	0	0", "p	B2		join		1	1	0	0",
			"p	fork		A		1	1	0	0", "p	fork		B		1	1	0	0", "p	join		end		1	1	0	0", "p	start		fork		1	1	0	0",
		}},
		{"automation_rate", map[string]string{"tree": "1"}, calls.records, []string{"p		1	5	2	0.4"}},
		{"automation_rate", map[string]string{"tree": "0"}, nil, []string{"p		1	5	4	0.8"}},
		{"stuck", map[string]string{"quiet": "60"}, nil, []string{
			"p		1	12		2025-11-21 04:00:00.000	2025-11-21 04:00:00.000	7200000	0	1",
			"p		1	13		2025-11-21 04:00:00.000	2025-11-21 04:00:00.000	7200000	1	0",
		}},
		{"heatmap", nil, heat.records, []string{
			"p	for hours		SERVICE_TASK	1	1	0	0	7200000	7200000	7200000",
			"p	cut off		SERVICE_TASK	1	0	1	0	60000	60000	60000",
			"p	done		SERVICE_TASK	1	0	0	0	5000	5000	5000",
		}},
		{"targets", map[string]string{"targets": `{"done":5,"for hours":3,"cut off":9}`}, nil, []string{"p		done		SERVICE_TASK	5	1	1	0	0	1	5000	5000", "p		for hours		SERVICE_TASK	3	1	0	1	0	0	7200000	7200000"}},
		{"targets", map[string]string{"targets": `{"done":4,"for hours":7200}`}, nil, []string{"p		done		SERVICE_TASK	4	1	0	1	0	0	5000	5000", "p		for hours		SERVICE_TASK	7200	1	0	0	1	\\N	7200000	7200000"}},
		{"rework", nil, loop.records, []string{"p	A		SERVICE_TASK	1	1	1	2	1	2	3000"}},
		{"handover", nil, people.records, []string{"p		ann	ann	1	1	3000	3000", "p		zoe	ann	1	1	1000	1000"}},
		{"user_tasks", nil, tasks.records, []string{"zoe	[]	2	0	2	2000	3800	\\N	\\N"}},
		{"throughput", map[string]string{"to": "2025-11-21T08:30:00+01:00", "zone": "Europe/Berlin"}, hours.records, []string{
			"p		1	2025-11-21 05:00:00	1	0	0", "p		1	2025-11-21 06:00:00	0	0	0", "p		1	2025-11-21 07:00:00	0	0	0", "p		1	2025-11-21 08:00:00	0	1	0",
		}},
		{"work_in_progress", map[string]string{"from": "2025-11-21T05:30:00Z", "to": "2025-11-21T07:30:00Z", "zone": "UTC"}, nil, []string{"p		2025-11-21 05:00:00	0	0	1", "p		2025-11-21 06:00:00	0	0	1", "p		2025-11-21 07:00:00	0	1	0"}},
		{"period_comparison", map[string]string{"from": "2025-11-21T05:00:00Z", "to": "2025-11-21T06:00:00Z"}, nil, []string{"p		0	1	0	1	0	0	\\N	10800000	\\N	10800000	\\N	\\N	0"}},
		{"durations", map[string]string{"tree": "0"}, halves.records, []string{"p		1		3	4000	4000	4800	4900	4980	5000"}},
	}
	for i := range cases {
		for j, r := range cases[i].records {
			all = append(all, sent{source: strconv.Itoa(i), position: int64(j), json: r})
		}
	}
	store(t, db, 1, shuffled(again(all)), 40)
	questions, err := warehouse.Questions()
	fatal.If(t, err)
	source := 0
	for i, c := range cases {
		if len(c.records) > 0 {
			source = i
		}
		q := questions[slices.IndexFunc(questions, func(q warehouse.Question) bool { return q.Name == c.question })]
		params := map[string]string{"process": "p", "from": "2025-11-21T04:00:00Z", "to": "2025-11-21T05:00:00Z", "now": "2025-11-21T06:00:00Z"}
		maps.Copy(params, c.params)
		var got []string
		for line := range strings.Lines(query(t, db, strings.ReplaceAll(q.With(params), "flow.", "{db}."))) {
			if of, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); of == strconv.Itoa(source) {
				got = append(got, rest)
			}
		}
		expect.Equal(t, c.question, c.want, got)
	}
}
