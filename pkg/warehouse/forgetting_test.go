package warehouse_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// TestNothingIsLeftOfAForgottenInstance removes an instance with those that it called, and
// searches every table for its keys; all others stay unchanged.
func TestNothingIsLeftOfAForgottenInstance(t *testing.T) {
	t.Parallel()
	db := open(t)
	truth := new(simulator.Truth)
	start := time.Date(2025, 11, 21, 5, 0, 0, 0, time.UTC)
	e := simulator.New(simulator.Config{Seed: 9, Start: start, Every: 20 * time.Second, Instances: 60, Commands: true, Truth: truth})
	var all []sent
	for r, more := e.NextBy(start.Add(2 * time.Hour)); more; r, more = e.NextBy(start.Add(2 * time.Hour)) {
		all = append(all, sent{"cluster-a", r.Position, r.Timestamp, string(r.JSON)}, sent{"cluster-b", r.Position, r.Timestamp, string(r.JSON)})
	}
	store(t, db, 1, all, 4000)
	var caller, called *simulator.Instance
	for _, i := range truth.Instances {
		if i.ParentInstance > 0 && i.CompletedAt > 0 {
			called = i
		}
	}
	for _, i := range truth.Instances {
		if called != nil && i.Key == called.ParentInstance {
			caller = i
		}
	}
	fatal.When(t, caller == nil, "no instance has called another one")
	key := strconv.FormatInt(caller.Key, 10)
	subjects, err := db.SubjectsOf(t.Context(), "cluster-a", key)
	want := []warehouse.Subject{{Source: "cluster-a", Keys: []string{key, strconv.FormatInt(called.Key, 10)}}}
	slices.Sort(want[0].Keys)
	if diff := cmp.Diff(want, subjects); err != nil || diff != "" {
		t.Fatalf("%v, -want +got:\n%s", err, diff)
	}
	s := subjects[0]
	until, err := db.LastOf(t.Context(), s)
	fatal.When(t, err != nil || until < called.CompletedAt, "the last record is of %d, %v", until, err)
	until += 1000 // records outside the instance that name it
	others := func() string {
		return query(t, db, fmt.Sprintf("SELECT source, count(), sum(cityHash64(*)) FROM {db}.v_element_instances WHERE NOT (source = 'cluster-a' AND process_instance_key IN ('%s')) GROUP BY source ORDER BY source", strings.Join(s.Keys, "', '")))
	}
	before := others()
	rows := query(t, db, "SELECT count() FROM {db}.records")
	if n, err := db.RecordsOf(t.Context(), s, until, []warehouse.Start{{Lane: 0, First: 1}}); err != nil || n != 0 {
		t.Errorf("%d rows of messages that are not settled count, %v", n, err)
	}
	for range 2 { // as after a crash
		fatal.If(t, db.Note(t.Context(), "r1", s, until, nil))
	}
	lanes, days, err := db.Forgotten(t.Context(), "r1")
	fatal.When(t, err != nil || len(lanes) != 1 || lanes[0].Records < 50 || !slices.Equal(days, []string{"2025-11-21"}), "%+v of %v, %v", lanes, days, err)
	removed, err := db.RowsOf(t.Context(), "r1", s)
	fatal.If(t, err)
	for _, table := range []string{"process_instances", "element_instances", "jobs", "variables"} {
		expect.Not(t, removed[table] == 0, "nothing goes of %s: %v", table, removed)
	}
	for range 2 {
		fatal.If(t, db.Remove(t.Context(), "r1", s))
	}
	for _, table := range strings.Fields(query(t, db, "SELECT name FROM system.tables WHERE database = '{db}' AND engine LIKE '%MergeTree' AND name NOT IN ('sources', 'schema', 'counts_1m', 'changes', 'process_definitions', 'forgotten', 'receipts', 'history')")) {
		for _, k := range s.Keys {
			// A sequence may equal the key without naming it.
			n := query(t, db, fmt.Sprintf(`SELECT countIf(source = 'cluster-a'), countIf(source = 'cluster-b') > 0 FROM {db}.%s
				WHERE has(extractAll(replaceRegexpAll(toString(tuple(*)), '"sequence\\\\*":[0-9]+', ''), '[0-9]+'), '%s')`, table, k))
			expect.Not(t, !strings.HasPrefix(n, "0\t"), "%s rows of %s name %s", n, table, k)
		}
	}
	expect.Equal(t, "elements of others", before, others())
	expect.Equal(t, "rows with those that went, before", rows, query(t, db, fmt.Sprintf("SELECT count() + %d FROM {db}.records", lanes[0].Records)))
	left, err := db.RowsOf(t.Context(), "r1", s)
	for table, n := range left {
		expect.Not(t, n > 0 || err != nil, "%d rows are left of %s, %v", n, table, err)
	}
	if n, err := db.RecordsOf(t.Context(), s, until, nil); err != nil || n != 0 {
		t.Errorf("a second look finds %d records, %v", n, err)
	}
	if n, err := db.ForgottenBefore(t.Context(), 0, lanes[0].Incarnation, lanes[0].Last, ""); err != nil || n == 0 || n >= lanes[0].Records {
		t.Errorf("%d of %d are before the last message, %v", n, lanes[0].Records, err)
	}
}

// TestRuleAndTableAgree: of records outside any instance, exactly those that record.Forgets
// selects are removed, wherever a record names the instance.
func TestRuleAndTableAgree(t *testing.T) {
	t.Parallel()
	db := open(t)
	const before = 1_763_701_202_251
	var records []string
	for _, member := range []string{
		`"key":2251`, `"key":22510`, `"key":12251`, `"position":2251,"partitionId":1`, `"position":5,"partitionId":1,"sourceRecordPosition":2251`,
		`"position":2251,"partitionId":1,"sourceRecordPosition":2250`, `"position":4502,"partitionId":1,"sourceRecordPosition":2251`, `"id":"job-2251"`, `"id":"1-5","position":5,"partitionId":1`,
		`"recordVersion":2251`, `"brokerVersion":"8.2251.0"`, `"rejectionReason":"no job 2251, sorry"`, `"rejectionReason":"no job x2251y"`, `"operationReference":2251`,
		`"timestamp":2251`, `"timestamp":1763701202251`, `"timestamp":1763701202252,"key":2251`, `"intent":"A2251"`, `"valueType":"2251"`, `"recordType":"_2251_"`,
		`"other":2251`, `"other":{"sequence":2251}`, `"sequence":2251`, `"sequence":2251,"other":2251`, `"other":[1,2251.5]`, `"other":"order-x"`, `"other":"my order-x now"`, `"other":"order-y"`,
		`"rejectionReason":"order-x"`, `"authorizations":{"a":["2251"]}`,
	} {
		records = append(records, `{"rejectionType":"NONE",`+member+`}`)
	}
	for _, member := range []string{
		`"parentProcessInstanceKey":2251`, `"parentElementInstanceKey":2251`, `"rootProcessInstanceKey":2251`, `"elementInstanceKey":2251`, `"flowScopeKey":2251`, `"scopeKey":2251`, `"jobKey":2251`,
		`"processDefinitionKey":2251`, `"version":2251`, `"businessId":"2251"`, `"businessId":"2251x"`, `"elementId":"2251"`, `"errorMessage":"of 2251."`, `"errorCode":"2251"`, `"type":"t2251"`, `"worker":"w-2251"`,
		`"retries":2251`, `"deadline":2251`, `"variables":{"a":2251}`, `"variables":{"a":"2251"}`, `"variables":{"a":22511}`, `"customHeaders":{"h":"2251"}`, `"tenantId":"t2251"`, `"bpmnProcessId":"p-2251"`,
		`"jobs":[{"processInstanceKey":2251}]`, `"jobs":[{"processInstanceKey":-2251}]`, `"processInstanceKey":2251`, `"processInstanceKey":5,"jobKey":2251`, `"processInstanceKey":-1,"jobKey":2251`, `"processInstanceKey":"order-x"`,
		`"processInstanceKey":"0","name":"2251"`, `"variables":{"a":"order-x"}`, `"sequence":2251`,
	} {
		records = append(records, `{"timestamp":1763701200000,"value":{`+member+`}}`)
	}
	c := new(record.Columns)
	m := flow.Message{Seq: 1, Topic: "flow.0.record", Received: received, Source: "a", Incarnation: 1, Body: []byte("[" + strings.Join(records, ",") + "]")}
	fatal.If(t, c.Append(&m))
	fatal.If(t, db.Insert(t.Context(), record.Block{Columns: c, To: c.Rows(), Token: "FLOW_0@1:1-1:0", StoredAt: storedAt}))
	keys := []string{"2251", "order-x"}
	rule := record.NewForgets([]flow.Forget{{Before: before, Subjects: []flow.ForgetSubject{{Source: "a", Keys: keys}}}})
	want := map[string]bool{}
	for _, row := range rule.Rows(&m, c, 0) {
		want[records[c.StreamIdx[row]]] = true
	}
	fatal.If(t, db.Note(t.Context(), "r1", warehouse.Subject{Source: "a", Keys: keys}, before, nil))
	places, err := db.ForgottenPlaces(t.Context(), 0, 1)
	fatal.If(t, err)
	got := map[string]bool{}
	for p := range places {
		got[records[p.Idx]] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 40 || len(got) == len(records) {
		t.Errorf("%d of %d rows go (-rule +table):\n%s", len(got), len(records), diff)
	}
}
