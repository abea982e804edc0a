package endtoend

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice/pkg/record/recordtest"
)

// TestRecordsAreTakenAsTheyAreMeant posts to one `sluice up`, one thing after the
// other, so that each can count what it has left in flow.records.
func TestRecordsAreTakenAsTheyAreMeant(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.up()
	for _, part := range []struct {
		name string
		test func(*testing.T, *stack)
	}{
		{"requests in every form", requestsInEveryForm}, // the first: it lists all that is stored
		{"every form of a body", everyFormOfABody},
		{"samples come back as they were posted", samplesComeBackAsTheyWerePosted},
		{"every treatment of a value", everyTreatmentOfAValue},
		{"a refused batch leaves nothing", aRefusedBatchLeavesNothing},
		{"every refusal of a record", everyRefusalOfARecord},
		{"large records arrive whole", largeRecordsArriveWhole},
	} {
		t.Run(part.name, func(t *testing.T) {
			one := *s
			one.t = t
			part.test(t, &one)
		})
	}
}

// counted is how many records are stored.
func (s *stack) counted() int {
	s.t.Helper()
	answer, err := s.query("SELECT count() FROM flow.records")
	if err != nil {
		s.t.Fatal(err)
	}
	n, err := strconv.Atoi(answer)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// leavesOne posts a good record and wants it to be the only one since there were so
// many.
func (s *stack) leavesOne(id string, before int) {
	s.t.Helper()
	if err := wantOK(s.post(fmt.Appendf(nil, `{"id":%q}`, id))); err != nil {
		s.t.Fatalf("a good record after bad ones: %v", err)
	}
	s.eventuallyQuery(10*time.Second, "SELECT countIf(id = '"+id+"'), count() FROM flow.records", fmt.Sprintf("1\t%d", before+1))
}

// samplesComeBackAsTheyWerePosted posts records of many shapes, odd ones included,
// and compares what ClickHouse gives back field for field.
func samplesComeBackAsTheyWerePosted(t *testing.T, s *stack) {
	for _, sample := range recordtest.Samples() {
		if err := wantOK(s.post(sample)); err != nil {
			t.Fatal(err)
		}
	}
	for i, sample := range recordtest.Samples() {
		t.Run(fmt.Sprintf("sample %d", i+1), func(t *testing.T) {
			var id struct{ ID string }
			if err := json.Unmarshal(sample, &id); err != nil {
				t.Fatal(err)
			}
			if wrong := recordtest.Compare(sample, s.row(t, id.ID)); wrong != nil {
				t.Errorf("queried differs from posted: %v", wrong)
			}
		})
	}
}

// row waits for the record and returns it as a person would read it.
func (s *stack) row(t *testing.T, id string) map[string]any {
	t.Helper()
	sql := fmt.Sprintf("SELECT * FROM flow.v_records WHERE id = '%s' FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 1", id)
	var row map[string]any
	eventually(t, 10*time.Second, func() error {
		answer, err := s.query(sql)
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(strings.NewReader(answer))
		decoder.UseNumber()
		return decoder.Decode(&row)
	})
	return row
}

// everyFormOfABody posts the same two records in every form.
func everyFormOfABody(t *testing.T, s *stack) {
	pair := func(form string) (a, b string) {
		return fmt.Sprintf(`{"id":"%s-1","key":9007199254740993,"valueType":"JOB","value":{"processInstanceKey":"9007199254740995"}}`, form),
			fmt.Sprintf(`{"id":"%s-2","key":"9007199254740993","valueType":"JOB","value":{"processInstanceKey":9007199254740995}}`, form)
	}
	a, b := pair("array")
	bodies := []string{"[" + a + "," + b + "]"}
	a, b = pair("lines")
	bodies = append(bodies, a+"\n"+b+"\n")
	a, b = pair("wrapped")
	bodies = append(bodies, `{"records":[`+a+","+b+`]}`)
	a, b = pair("single")
	bodies = append(bodies, a, b)
	for _, body := range bodies {
		res, answer := s.post([]byte(body))
		if err := wantOK(res, answer); err != nil {
			t.Errorf("%.20s…: %v", body, err)
		}
	}
	s.eventuallyQuery(10*time.Second,
		"SELECT count(), uniqExact(id), countIf(key = 9007199254740993 AND process_instance_key = '9007199254740995') FROM flow.records WHERE match(id, '^(array|lines|wrapped|single)-')", "8\t8\t8")
}

// aRefusedBatchLeavesNothing: one bad record refuses the whole request, names the
// record and the field, and stores none of it.
func aRefusedBatchLeavesNothing(t *testing.T, s *stack) {
	before := s.counted()
	for _, tt := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"a field has the wrong type", `[{"id":"1-1"},{"id":"1-2","key":"secret-looking"}]`, 422, `"pointer":"#/1/key"`},
		{"the JSON ends early", `[{"id":"1-1"},`, 400, `"status":400`},
		{"the body is empty", ``, 400, `"status":400`},
		{"a record is no object", `[{"id":"1-1"},7]`, 422, `"pointer":"#/1"`},
		{"the body is too large", `[{"id":"` + strings.Repeat("x", 17<<20) + `"}]`, 413, `"status":413`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := s.post([]byte(tt.body))
			if res.StatusCode != tt.status || !strings.Contains(body, tt.want) || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("answered %s (%s) %s, want %d as a problem with %s", res.Status, res.Header.Get("Content-Type"), body, tt.status, tt.want)
			}
			if strings.Contains(body, "secret-looking") {
				t.Errorf("the answer repeats a value: %s", body)
			}
		})
	}
	s.leavesOne("2-1", before)
}
