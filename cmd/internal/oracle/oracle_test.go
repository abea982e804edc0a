package oracle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sluice/cmd/internal/oracle"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// event returns a record of partition 1.
func event(position int, valueType, intent, value string) string {
	return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":9,"timestamp":%d,"recordType":"EVENT","valueType":%q,"intent":%q,"value":{"bpmnProcessId":"p","processInstanceKey":7,%s}}`,
		position, 1763700000000+position, valueType, intent, value)
}

// row returns the row of an event in flow.records.
func row(position int, valueType, intent string) string {
	return fmt.Sprintf("1-%d\t1\t%[1]d\t2025-11-21 04:40:00.%03[1]d\t9\tEVENT\t%s\t%s\tp\t7\n", position, valueType, intent)
}

func read(t *testing.T, lines ...oracle.Line) *oracle.Oracle {
	t.Helper()
	var all bytes.Buffer
	encoder := json.NewEncoder(&all)
	for _, line := range append(lines, oracle.Line{Source: "another", Acked: true, Record: []byte(`{}`)}) {
		fatal.If(t, encoder.Encode(line))
	}
	all.WriteString(`{"source":"a","acked":true,"rec`) // the client was killed
	o := oracle.New("a")
	fatal.If(t, o.Read(&all))
	return o
}

func line(acked bool, record string) oracle.Line {
	return oracle.Line{Source: "a", Acked: acked, Record: []byte(record)}
}

// said returns the counts and the differences of a report.
func said(r oracle.Report) (all []string) {
	if !r.OK() {
		all = append(all, fmt.Sprintf("missing %d doubled %d strangers %d wrong %d", r.Missing, r.Doubled, r.Strangers, r.Wrong))
	}
	for _, d := range r.Differences {
		all = append(all, d.String())
	}
	return all
}

func TestRows(t *testing.T) {
	first, second := event(1, "JOB", "CREATED", `"retries":3`), event(2, "JOB", "FAILED", `"retries":2`)
	const nameless, note, other = `{"intent":"x"}`, `{"id":"note","value":{"name":"n","value":"1"}}`, `{"id":"note","value":{"value":"2","name":"n"}}`
	const namelessRow, noteRow = "h-0123456789abcdef0123456789abcdef\t0\t0\t1970-01-01 00:00:00.000\t0\t\t\tx\t\t\n", "note\t0\t0\t1970-01-01 00:00:00.000\t0\t\t\t\t\t\n"
	for _, tt := range []struct {
		name  string
		lines []oracle.Line
		rows  string
		want  []string
	}{
		{"all is well, whatever was sent again", []oracle.Line{line(true, first), line(true, first), line(false, first), line(true, second)}, row(1, "JOB", "CREATED") + row(2, "JOB", "FAILED"), nil},
		{"a row is missing", []oracle.Line{line(true, first), line(true, second)}, row(2, "JOB", "FAILED"),
			[]string{"missing 1 doubled 0 strangers 0 wrong 0", "records of a: id 1-1, partition_id 1, position 1, ts 2025-11-21 04:40:00.001, key 9, record_type EVENT, value_type JOB, intent CREATED, bpmn_process_id p, process_instance_key 7: 0 rows, want 1"}},
		{"a row is there twice", []oracle.Line{line(true, first)}, row(1, "JOB", "CREATED") + row(1, "JOB", "CREATED"),
			[]string{"missing 0 doubled 1 strangers 0 wrong 0", "records of a: id 1-1, partition_id 1, position 1, ts 2025-11-21 04:40:00.001, key 9, record_type EVENT, value_type JOB, intent CREATED, bpmn_process_id p, process_instance_key 7: 2 rows, want 1"}},
		{"a row was never sent", nil, row(3, "JOB", "CREATED"),
			[]string{"missing 0 doubled 0 strangers 1 wrong 0", "records of a: id 1-3, partition_id 1, position 3, ts 2025-11-21 04:40:00.003, key 9, record_type EVENT, value_type JOB, intent CREATED, bpmn_process_id p, process_instance_key 7: 1 rows, want 0"}},
		{"what was not acknowledged may be there or not", []oracle.Line{line(false, first), line(false, second)}, row(2, "JOB", "FAILED"), nil},
		{"and not twice", []oracle.Line{line(false, second)}, row(2, "JOB", "FAILED") + row(2, "JOB", "FAILED"),
			[]string{"missing 0 doubled 1 strangers 0 wrong 0", "records of a: id 1-2, partition_id 1, position 2, ts 2025-11-21 04:40:00.002, key 9, record_type EVENT, value_type JOB, intent FAILED, bpmn_process_id p, process_instance_key 7: 2 rows, want 1"}},
		{"records without identity are as many as were sent", []oracle.Line{line(true, nameless), line(true, nameless)}, namelessRow + namelessRow, nil},
		{"and no fewer", []oracle.Line{line(true, nameless), line(true, nameless)}, namelessRow,
			[]string{"missing 1 doubled 0 strangers 0 wrong 0", "records of a: partition_id 0, position 0, ts 1970-01-01 00:00:00.000, key 0, intent x: 1 rows, want 2"}},
		{"one id with one content is one record, and with two is two", []oracle.Line{line(true, note), line(true, note), line(true, other), line(false, other)}, noteRow + noteRow, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := read(t, tt.lines...).CompareRecords(strings.NewReader(tt.rows))
			fatal.If(t, err)
			expect.Equal(t, "result", tt.want, said(r))
		})
	}
	t.Run("expired records are not missing, and forgotten ones are not expected", func(t *testing.T) {
		o := oracle.New("a")
		o.Forgotten = map[string]bool{"7": true}
		fatal.If(t, o.ReadExpired(strings.NewReader(noteRow)))
		for _, record := range []string{first, note, nameless} {
			fatal.If(t, o.Add(line(true, record)))
		}
		r, err := o.CompareRecords(strings.NewReader(row(1, "JOB", "CREATED")))
		expect.Not(t, err != nil || r.Missing != 1 || r.Strangers != 1, "%+v, %v, want a stranger of the forgotten instance, and the nameless record missing", r, err)
		counters, err := o.CompareCounters(strings.NewReader("1970-01-01 00:00:00\t\t\tx\t\t0\t\t1\n"))
		expect.Not(t, err != nil || !counters.OK(), "%+v, %v, want the counter of what has expired gone", counters, err)
	})
	t.Run("a row that expired twice was duplicated", func(t *testing.T) {
		o := oracle.New("a")
		fatal.If(t, o.ReadExpired(strings.NewReader(noteRow+noteRow)))
		fatal.If(t, o.Add(line(true, note)))
		r, err := o.CompareRecords(strings.NewReader(""))
		expect.Not(t, err != nil || r.Doubled != 1 || r.Missing != 0, "%+v, %v, want one duplicated", r, err)
	})
	t.Run("a row with too few cells is an error", func(t *testing.T) {
		if _, err := read(t).CompareRecords(strings.NewReader("1\t2\n")); err == nil {
			t.Error("no error")
		}
	})
}

// TestCountersAndAggregates: they follow from the acknowledged records and the other
// records that have a row.
func TestCountersAndAggregates(t *testing.T) {
	stored := func() *oracle.Oracle {
		o := read(t, line(true, event(1, "JOB", "CREATED", `"retries":3,"worker":""`)), line(false, event(2, "JOB", "FAILED", `"retries":"2","worker":"w\t1"`)),
			line(false, event(3, "JOB", "COMPLETED", `"retries":2`)))
		if r, err := o.CompareRecords(strings.NewReader(row(1, "JOB", "CREATED") + row(2, "JOB", "FAILED"))); err != nil || !r.OK() {
			t.Fatalf("%+v, %v", r, err)
		}
		return o
	}
	const created, failed = "2025-11-21 04:40:00\tJOB\tEVENT\tCREATED\tp\t0\t\t", "2025-11-21 04:40:00\tJOB\tEVENT\tFAILED\tp\t0\t\t"
	const key = "counts_1m of a: minute 2025-11-21 04:40:00, value_type JOB, record_type EVENT, intent CREATED, bpmn_process_id p, version 0: records is "
	for name, tt := range map[string]struct {
		rows string
		want []string
	}{
		"the counters are right":      {created + "1\n" + failed + "1\n", nil},
		"a counter is doubled":        {created + "2\n" + failed + "1\n", []string{"missing 0 doubled 0 strangers 1 wrong 0", key + `"2", want "1"`}},
		"a counter misses its record": {failed + "1\n", []string{"missing 1 doubled 0 strangers 0 wrong 0", key + `"0", want "1"`}},
		"a counter of nothing":        {created + "1\n" + failed + "1\n2025-11-21 04:41:00\t\t\t\t\t0\t\t4\n", []string{"missing 0 doubled 0 strangers 4 wrong 0", `counts_1m of a: minute 2025-11-21 04:41:00, version 0: records is "4", want "0"`}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := stored().CompareCounters(strings.NewReader(tt.rows))
			fatal.If(t, err)
			expect.Equal(t, "result", tt.want, said(r))
		})
	}
	const job = "7\t9\t\tp\t\\N\t\t\\N\t\tFAILED\tw\\t1\t2\t2\t2025-11-21 04:40:00.001\t\\N\t\\N\t\\N\t\\N\t1\t2025-11-21 04:40:00.002\t\\N\t\\N\t1\t0\t0\t0\t0\n"
	for name, tt := range map[string]struct {
		rows string
		want []string
	}{
		"the aggregates are right":             {job, nil},
		"a column is wrong":                    {strings.Replace(job, "FAILED", "TIMED_OUT", 1), []string{"missing 0 doubled 0 strangers 0 wrong 1", `v_jobs of a: process_instance_key 7, key 9: state is "TIMED_OUT", want "FAILED"`}},
		"two columns are wrong, one is named":  {strings.Replace(job, "\t2\t2\t", "\t0\t1\t", 1), []string{"missing 0 doubled 0 strangers 0 wrong 1", `v_jobs of a: process_instance_key 7, key 9: retries is "0", want "2"`}},
		"a row is missing, another is strange": {strings.Replace(job, "\t9\t", "\t8\t", 1), []string{"missing 1 doubled 0 strangers 1 wrong 0", "v_jobs of a: process_instance_key 7, key 8: 1 rows, want 0", "v_jobs of a: process_instance_key 7, key 9: 0 rows, want 1"}},
		"a row is there twice":                 {job + job, []string{"missing 0 doubled 1 strangers 0 wrong 0", "v_jobs of a: process_instance_key 7, key 9: 2 rows, want 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, table := range stored().Aggregates() {
				rows := ""
				switch table.Name {
				case "v_jobs":
					rows = tt.rows
				case "v_sources":
					rows = "1\t2\t2\t2025-11-21 04:40:00.001\t2025-11-21 04:40:00.002\n"
				}
				r, err := table.Compare("a", strings.NewReader(rows))
				fatal.If(t, err)
				var want []string
				if table.Name == "v_jobs" {
					want = tt.want
				}
				expect.Equal(t, table.Name, want, said(r))
			}
		})
	}
}
