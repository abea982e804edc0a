package record_test

import (
	"slices"
	"strings"
	"testing"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestExcludedRecordsAreLeftOut: rules drop whole records. Indexes of problems and masked values are unchanged, in
// every form of a body.
func TestExcludedRecordsAreLeftOut(t *testing.T) {
	rules := []flow.Exclusion{
		{ValueType: "JOB_BATCH"},
		{ValueType: "VARIABLE", Variable: "tmp_*"},
		{Process: "internal-*", Intent: "ELEMENT_*"},
	}
	all := []string{
		`{"id":"1","valueType":"JOB","intent":"CREATED","value":{"bpmnProcessId":"order"}}`,
		`{"id":"2","valueType":"JOB_BATCH","intent":"ACTIVATED"}`,
		`{"id":"3","valueType":"VARIABLE","value":{"name":"tmp_1","value":"1"}}`,
		`{"id":"4","valueType":"VARIABLE","value":{"name":"password","value":"secret"}}`,
		`{"id":"5","valueType":"VARIABLE","value":{"name":"keep","value":"1"}}`,
		`{"id":"6","valueType":"JOB","value":{"name":"tmp_1"}}`, // no variable
		`{"id":"7","valueType":"PROCESS_INSTANCE","intent":"ELEMENT_ACTIVATED","value":{"bpmnProcessId":"internal-a"}}`,
		`{"id":"8","valueType":"PROCESS_INSTANCE","intent":"MIGRATED","value":{"bpmnProcessId":"internal-a"}}`,
		`{"valueType":"JOB_BATCH"}`, // without an id
	}
	want := []string{all[0], strings.Replace(all[3], "secret", "***", 1), all[4], all[5], all[7]}
	for form, body := range map[string]string{
		"array": "[" + strings.Join(all, ",") + "]", "lines": strings.Join(all, "\n"), "wrapped": `{"records":[` + strings.Join(all, " , ") + "]}",
	} {
		r := record.NewRequest()
		if err := r.Parse([]byte(body), record.FormAuto, record.Limits{Exclude: rules}); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		var got []string
		for i := range r.Len() {
			got = append(got, string(r.Record(i)))
		}
		if !slices.Equal(got, want) || !slices.Equal(r.ExcludedBy(), []int{2, 1, 1}) || !r.AllIDs() {
			t.Errorf("%s: left out by each rule %v, all have ids %v, kept\n%s", form, r.ExcludedBy(), r.AllIDs(), strings.Join(got, "\n"))
		}
		chunks, err := r.Cut(1<<19, 1, nil)
		if err != nil || len(chunks) != 1 || chunks[0].Records != len(want) {
			t.Fatalf("%s: %d chunks, %v", form, len(chunks), err)
		}
		if got := records(t, chunks[0]); !slices.EqualFunc(got, want, same) {
			t.Errorf("%s: the chunk holds %s", form, got)
		}
		r.Release()
	}

	r := record.NewRequest()
	defer r.Release()
	err := r.Parse([]byte("["+all[1]+`,{"valueType":5,"value":{"retries":{}}}]`), record.FormAuto, record.Limits{Exclude: rules})
	if problems, ok := err.(*record.ProblemsError); !ok || problems.Problems[0].Index != 1 {
		t.Errorf("a problem behind an excluded record: %v", err)
	}
	var spans []record.Span
	body := strings.Join(all, "\n")
	for i, at := 0, 0; i < len(all); i++ {
		spans = append(spans, record.Span{Start: at, End: at + len(all[i])})
		at += len(all[i]) + 1
	}
	refused, err := r.ParseEach([]byte(body), spans, record.Limits{Exclude: rules})
	if err != nil || len(refused) > 0 || r.Len() != len(want) || !slices.Equal(r.ExcludedBy(), []int{2, 1, 1}) {
		t.Errorf("of a bulk: %d records, left out %v, %d rejected, %v", r.Len(), r.ExcludedBy(), len(refused), err)
	}
}
