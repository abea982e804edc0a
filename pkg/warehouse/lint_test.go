package warehouse_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

// TestLintFindsNothingInAnEngineAtWork checks the simulated engines, whose valid records are
// shuffled, late and repeated.
func TestLintFindsNothingInAnEngineAtWork(t *testing.T) {
	w := simulated(t)
	found, err := w.db.Lint(t.Context())
	fatal.If(t, err)
	for _, f := range found {
		t.Errorf("%s of %s: %d, %s", f.Check, f.Source, f.Count, f.Example)
	}
}

// TestLintFindsWhatIsWrong also requires the same of the view.
func TestLintFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := wrong(t)
	found, err := db.Lint(t.Context())
	fatal.If(t, err)
	var got, said []string
	for _, f := range found {
		if f.Do == "" || f.SQL == "" {
			t.Errorf("%s does not say what to do, or how it was found", f.Check)
		}
		got = append(got, fmt.Sprintf("%s of %s: %d, %s", f.Check, f.Source, f.Count, f.Example))
		said = append(said, fmt.Sprintf("%s\t%s\t%s\t%d\t%s\t%s", f.Source, f.Check, f.Asks, f.Count, f.Example, f.Do))
	}
	want := []string{
		"position_gaps of position_gaps: 5, partition 1 lacks 2 positions, partition 2 lacks 3 positions",
		"no_start of no_instance: 1, instance 7",
		"no_start of no_start: 1, instance 7",
		"no_instance of no_instance: 1, element instance 8 of instance 7",
		"rounded_keys of rounded_keys: 25, key 9007199254741090",
		"bad_timestamps of bad_timestamps: 1, record a with the timestamp 1763700000",
		"after_end of after_end: 1, instance 7",
		"doubled_ids of doubled_ids: 1, id a",
	}
	expect.Equal(t, "findings", want, got)
	slices.Sort(said)
	if diff := cmp.Diff(strings.Join(said, "\n"), query(t, db, "SELECT source, check_name, finding, findings, example, what_to_do FROM {db}.v_lint ORDER BY source, check_name")); diff != "" {
		t.Errorf("the view (-lint +view):\n%s", diff)
	}
}

// wrong is a database with an engine for each fault, named after the check that finds it, and the
// few that result from it.
func wrong(t *testing.T) *warehouse.DB {
	t.Helper()
	const at, later = 1763700000000, 1763700009000
	element := func(position, key, ms int, intent, kind, instance string) string {
		return fmt.Sprintf(`{"partitionId":1,"position":%d,"key":%d,"timestamp":%d,"recordType":"EVENT","valueType":"PROCESS_INSTANCE","intent":%q,"value":{"processInstanceKey":%q,"bpmnElementType":%q}}`,
			position, key, ms, intent, instance, kind)
	}
	var all []sent
	send := func(source string, records ...string) {
		for _, r := range records {
			all = append(all, sent{source: source, json: r})
		}
	}
	command := `{"partitionId":%d,"position":%d,"timestamp":1763700000000,"recordType":"COMMAND","valueType":"JOB","intent":"COMPLETE","value":{}}`
	send("position_gaps", fmt.Sprintf(command, 1, 1), fmt.Sprintf(command, 1, 2), fmt.Sprintf(command, 1, 5), fmt.Sprintf(command, 2, 1), fmt.Sprintf(command, 2, 5), fmt.Sprintf(command, 3, 1))
	send("no_start", element(1, 7, at, "ELEMENT_COMPLETED", "PROCESS", "7"))
	send("no_instance", element(1, 8, at, "ELEMENT_ACTIVATED", "USER_TASK", "7"))
	for i := range 25 {
		send("rounded_keys", fmt.Sprintf(`{"partitionId":4,"position":%d,"key":%d,"timestamp":1763700000000,"recordType":"EVENT","valueType":"DEPLOYMENT","intent":"CREATED","value":{}}`, i+1, 9007199254740994+4*i))
	}
	send("bad_timestamps", `{"id":"a","key":1,"timestamp":1763700000,"recordType":"EVENT","valueType":"DEPLOYMENT","intent":"CREATED","value":{}}`)
	send("after_end", element(1, 7, at, "ELEMENT_ACTIVATED", "PROCESS", "7"), element(2, 7, at, "ELEMENT_COMPLETED", "PROCESS", "7"), element(3, 8, later, "ELEMENT_ACTIVATED", "USER_TASK", "7"))
	send("doubled_ids", fmt.Sprintf(`{"id":"a","key":1,"timestamp":%d,"recordType":"EVENT","valueType":"DEPLOYMENT","intent":"CREATED","value":{}}`, at),
		fmt.Sprintf(`{"id":"a","key":2,"timestamp":%d,"recordType":"EVENT","valueType":"DEPLOYMENT","intent":"CREATED","value":{}}`, at))
	db := open(t)
	store(t, db, 1, again(all), 1000)
	return db
}
