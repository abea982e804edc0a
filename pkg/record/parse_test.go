package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

func TestBodiesThatAreNotJSONAreRefusedWhereTheyBreak(t *testing.T) {
	tests := []struct {
		name, body string
		want       record.SyntaxError
	}{
		{"nothing", "", record.SyntaxError{Code: record.CodeEmptyBody}},
		{"white space", " \n\t", record.SyntaxError{Code: record.CodeEmptyBody, Offset: 3}},
		{"a comma too many", `[{"id":"a"},]`, record.SyntaxError{Code: record.CodeInvalidJSON, Offset: 12, Index: 1}},
		{"an end missing", `[{"id":"a"`, record.SyntaxError{Code: record.CodeInvalidJSON, Offset: 10}},
		{"something after the array", `[{}] {}`, record.SyntaxError{Code: record.CodeInvalidJSON, Offset: 5, Index: 1}},
		{"a control character in a string", "{\"id\":\"a\nb\"}", record.SyntaxError{Code: record.CodeInvalidJSON, Offset: 8}},
		{"bytes that are not UTF-8", "{\"id\":\"a\xff\"}", record.SyntaxError{Code: record.CodeInvalidUTF8, Offset: 6}},
		{"an encoded surrogate", "{\"id\":\"\xed\xa0\x80\"}", record.SyntaxError{Code: record.CodeInvalidUTF8, Offset: 6}},
		{"a byte order mark", "\xef\xbb\xbf{}", record.SyntaxError{Code: record.CodeInvalidJSON}},
		{"a broken record after a wrong one", `[{"key":true},{"key"}]`, record.SyntaxError{Code: record.CodeInvalidJSON, Offset: 20, Index: 1}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got *record.SyntaxError
			if err := new(record.Request).Parse([]byte(test.body), record.FormAuto, record.Limits{}); !errors.As(err, &got) {
				t.Fatalf("got %v, want a *SyntaxError", err)
			}
			test.want.Detail = got.Detail
			if diff := cmp.Diff(test.want, *got); diff != "" || got.Detail == "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBodiesBeyondALimitAreRefused(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1) }
	big := func(n int) string { return `{"id":"` + strings.Repeat("x", n-len(`{"id":""}`)) + `"}` }
	many := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("{},", n), ",") + "]" }
	lim := record.Limits{Records: 3, RecordBytes: 100, Depth: 5}
	tests := []struct {
		name, body string
		lim        record.Limits
		want       string
	}{
		{"as many records as allowed", many(3), lim, ""},
		{"one record more", many(4), lim, record.CodeTooManyRecords},
		{"one document more", strings.Repeat("{}\n", 4), lim, record.CodeTooManyRecords},
		{"one wrapped record more", `{"records":` + many(4) + `}`, lim, record.CodeTooManyRecords},
		{"a record as large as allowed", big(100), lim, ""},
		{"a record one byte larger", big(101), lim, record.CodeRecordTooLarge},
		{"a record as deep as allowed", nested(5), lim, ""},
		{"a record one deeper", nested(6), lim, record.CodeTooDeep},
		{"a record as deep as allowed in an array", "[" + nested(5) + "]", lim, ""},
		{"a record one deeper in an array", "[" + nested(6) + "]", lim, record.CodeTooDeep},
		{"a record as deep as allowed in a wrapper", `{"records":[` + nested(5) + `]}`, lim, ""},
		{"a record one deeper in a wrapper", `{"records":[` + nested(6) + `]}`, lim, record.CodeTooDeep},
		{"64 deep by default", nested(64), record.Limits{}, ""},
		{"65 deep by default", nested(65), record.Limits{}, record.CodeTooDeep},
		{"50 000 records by default", many(50_000), record.Limits{}, ""},
		{"50 001 records by default", many(50_001), record.Limits{}, record.CodeTooManyRecords},
		{"8 MiB by default", big(8 << 20), record.Limits{}, ""},
		{"a byte more than 8 MiB by default", big(8<<20 + 1), record.Limits{}, record.CodeRecordTooLarge},
		{"a depth that would exhaust the stack", nested(1_000_000), record.Limits{Depth: 2_000_000}, record.CodeTooDeep},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := new(record.Request).Parse([]byte(test.body), record.FormAuto, test.lim)
			var limit *record.LimitError
			if errors.As(err, &limit) {
				expect.Not(t, limit.Code != test.want || limit.Limit == 0 || limit.Detail == "", "got %+v, want %q", limit, test.want)
			} else if err != nil || test.want != "" {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestTheFirstHundredProblemsAreReported(t *testing.T) {
	body := "[" + strings.Repeat(`{"key":"x"},`, 249) + `{"key":"secret"}]`
	var problems *record.ProblemsError
	if err := new(record.Request).Parse([]byte(body), record.FormAuto, record.Limits{}); !errors.As(err, &problems) {
		t.Fatalf("got %v, want a *ProblemsError", err)
	}
	if len(problems.Problems) != 100 || problems.Total != 250 || problems.Problems[99].Index != 99 {
		t.Errorf("got %d of %d, want 100 of 250", len(problems.Problems), problems.Total)
	}
}

func TestParseReportsMissingMembers(t *testing.T) {
	r := record.NewRequest()
	defer r.Release()
	fatal.If(t, r.Parse([]byte(`[{"id":"a","timestamp":1763701200123,"x":1},{"id":7,"timestamp":5,"value":{"y":2}}]`), record.FormAuto, record.Limits{}))
	if !r.AllIDs() || r.BadTimestamps() != 1 || r.UnknownMembers() != 2 {
		t.Errorf("got %v %d %d, want all ids, 1 bad timestamp, 2 unknown members", r.AllIDs(), r.BadTimestamps(), r.UnknownMembers())
	}
	for _, body := range []string{`[{"id":"a"},{}]`, `[{"id":""}]`, `[{"id":null}]`} {
		if err := r.Parse([]byte(body), record.FormAuto, record.Limits{}); err != nil || r.AllIDs() {
			t.Errorf("%s: got error %v and all ids %v", body, err, r.AllIDs())
		}
	}
}

func TestParseDoesNotAllocate(t *testing.T) {
	body := recordtest.Realistic(100)
	r := record.NewRequest()
	defer r.Release()
	parse := func() {
		fatal.If(t, r.Parse(body, record.FormAuto, record.Limits{}))
	}
	if n := testing.AllocsPerRun(20, parse); n > 1 {
		t.Errorf("got %v allocations for a body, want at most 1", n)
	}
}

// TestOtherJSONIsNoRecord: requests and answers of search servers, and objects without known members, are rejected if
// the caller asks for it, with a pointer to a member that every record has.
func TestOtherJSONIsNoRecord(t *testing.T) {
	const missing = " " + record.CodeMissing
	for name, tt := range map[string]struct {
		body string
		want []string
	}{
		"an empty object":                {`{}`, []string{"#/valueType" + missing}},
		"among records":                  {`[{"id":"1-1"},{},{"valueType":"JOB"}]`, []string{"#/1/valueType" + missing}},
		"in a wrapper":                   {`{"records":[{}]}`, []string{"#/records/0/valueType" + missing}},
		"the answer to a search":         {`{"took":3,"hits":{"total":{"value":1},"hits":[{"_source":{"id":"1-1"}}]}}`, []string{"#/valueType" + missing}},
		"a hit of it":                    {`[{"_index":"zeebe-record","_id":"1-1","_source":{"valueType":"JOB"}}]`, []string{"#/0/valueType" + missing}},
		"action lines of a bulk request": {"{\"index\":{\"_id\":\"1-1\"}}\n{\"valueType\":\"JOB\"}\n{\"create\":{}}\n", []string{"#/0/valueType" + missing, "#/2/valueType" + missing}},
		"a line of a log":                {`{"timestamp":1763701200123,"message":"x"}`, []string{"#/valueType" + missing}},
		"an odd wrapper":                 {`{"records":5}`, []string{"#/valueType" + missing}},
		"members of the wrong type too":  {`{"timestamp":true}`, []string{"#/valueType" + missing, "#/timestamp " + record.CodeNotATime}},
		"a record of its value alone":    {`{"value":{}}`, nil},
		"a record of nulls":              {`{"valueType":null}`, nil},
		"a record by its position":       {`{"partitionId":1,"position":7}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			err := new(record.Request).Parse([]byte(tt.body), record.FormAuto, record.Limits{Shaped: true})
			var problems *record.ProblemsError
			if errors.As(err, &problems) {
				for _, p := range problems.Problems {
					got = append(got, p.Pointer+" "+p.Code)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			expect.Equal(t, "problems", tt.want, got)
			if err := new(record.Request).Parse([]byte(tt.body), record.FormAuto, record.Limits{}); name == "an empty object" && err != nil {
				t.Errorf("rejected without Shaped: %v", err)
			}
		})
	}
}

// spansOf are the lines of a body.
func spansOf(body []byte) (spans []record.Span) {
	at := 0
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		spans = append(spans, record.Span{Start: at, End: at + len(line)})
		at += len(line) + 1
	}
	return spans
}

// eachAlone is the expected result of ParseEach: every line is a request of its own.
func eachAlone(t testing.TB, body []byte, lim record.Limits, now time.Time) (kept []string, codes map[int]string) {
	codes = map[int]string{}
	for i, line := range bytes.Split(body, []byte{'\n'}) {
		r := record.NewRequest()
		err := r.Parse(bytes.Clone(line), record.FormNDJSON, lim)
		var syntax *record.SyntaxError
		var limit *record.LimitError
		var problems *record.ProblemsError
		switch {
		case err == nil && r.Len() == 1 && bytes.Contains(r.Record(0), []byte(`{`)):
			kept = append(kept, string(r.Record(0)))
		case errors.As(err, &syntax):
			codes[i] = syntax.Code
		case errors.As(err, &limit):
			codes[i] = limit.Code
		case errors.As(err, &problems):
			codes[i] = problems.Problems[0].Code
		case err != nil:
			t.Fatal(err)
		default:
			codes[i] = record.CodeInvalidJSON // several
		}
		r.Release()
	}
	return kept, codes
}

// FuzzParseEach: an invalid record does not affect the others.
func FuzzParseEach(f *testing.F) {
	good := `{"valueType":"JOB","intent":"CREATED","timestamp":1763700000000,"value":{"password":"swordfish","worker":"w"}}`
	for _, body := range []string{
		good + "\n" + good, good + "\n{\n" + good, good + good + "\n" + good, "\n" + good, good + "\n[1]\n\"x\"\n" + good,
		`{"valueType":"JOB","intent":[]}` + "\n" + good, `{"intent":"\ud800"}` + "\n" + good, " " + good + " \n\t\n" + good, "{}\n" + good,
		`{"intent":"X","password":"swordfish` + "\n" + good, `{"records":[` + good + `]}` + "\n" + good,
		`{"valueType":"JOB","value":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + "}\n" + good,
	} {
		f.Add(body)
	}
	lim := record.Limits{Shaped: true, RecordBytes: 4 << 10}
	now := time.UnixMilli(1763700000000)
	f.Fuzz(func(t *testing.T, text string) {
		body := []byte(text)
		kept, codes := eachAlone(t, body, lim, now)
		r := record.NewRequest()
		defer r.Release()
		refused, err := r.ParseEach(bytes.Clone(body), spansOf(body), lim)
		fatal.If(t, err)
		got, gotCodes := []string(nil), map[int]string{}
		for i := range r.Len() {
			got = append(got, string(r.Record(i)))
		}
		for _, r := range refused {
			gotCodes[r.Index] = r.Code
		}
		if strings.Contains(text, `"records"`) {
			return // a wrapper of records is not a record here; a request may be one
		}
		expect.Equal(t, fmt.Sprintf("kept of %q", text), kept, got)
		// Of a line with several errors any may be reported.
		expect.Equal(t, fmt.Sprintf("lines refused of %q", text), slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(gotCodes)))
	})
}

// TestSecretsOfWhatIsNoRecord: they are not kept either, as far as the text is JSON.
func TestSecretsOfWhatIsNoRecord(t *testing.T) {
	for body, want := range map[string]string{
		`{"message":"x","password":"swordfish"}`:           `{"message":"x","password":"***"}`,
		`{"password":"swordfish"}{"password":"swordfish"}`: `{"password":"***"}{"password":"***"}`,
		`{"intent":[],"password":"swordfish","x":1}`:       `{"intent":[],"password":"***","x":1}`,
		`{"password":"swordfish","x":`:                     `{"password":"***","x":`,
		`{"x":1,"password":"swordfis`:                      `{"x":1,"password":"***"`,
		`{"x":1}`:                                          `{"x":1}`,
	} {
		r := record.NewRequest()
		refused, err := r.ParseEach([]byte(body), []record.Span{{End: len(body)}}, record.Limits{Shaped: true})
		if err != nil || len(refused) != 1 || r.Len() != 0 {
			t.Fatalf("%s: %d refused, %d kept, %v, want it refused", body, len(refused), r.Len(), err)
		}
		if got := string(refused[0].Raw); got != want {
			t.Errorf("%s is kept as %s, want %s", body, got, want)
		}
		r.Release()
	}
}

// TestWhatIsRefusedHasNoPartInTheRequest: rejected records do not affect AllIDs and Identified.
func TestWhatIsRefusedHasNoPartInTheRequest(t *testing.T) {
	good, bad := `{"id":"a"}`, `{"key":true}`
	body := []byte(good + bad)
	r := record.NewRequest()
	defer r.Release()
	refused, err := r.ParseEach(body, []record.Span{{End: len(good)}, {Start: len(good), End: len(body)}}, record.Limits{})
	if err != nil || len(refused) != 1 || r.Len() != 1 || !r.AllIDs() || !r.Identified() {
		t.Errorf("%d refused, %d taken, %v: all ids %v, identified %v, want one each and both", len(refused), r.Len(), err, r.AllIDs(), r.Identified())
	}
}

// TestARequestIsOfAtMost24Months counts months of timestamps in any order.
func TestARequestIsOfAtMost24Months(t *testing.T) {
	of := func(at time.Time) string { return fmt.Sprintf(`{"valueType":"JOB","timestamp":%d}`, at.UnixMilli()) }
	var months []string // the first and the last ms of each
	for m := range 26 {
		begin := time.Date(2023, time.Month(12+m), 1, 0, 0, 0, 0, time.UTC)
		months = append(months, of(begin), of(begin.AddDate(0, 1, 0).Add(-time.Millisecond)))
	}
	odd := []string{`{"valueType":"JOB"}`, of(time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)), of(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)), `{"valueType":"JOB","timestamp":"2023-12-24"}`}
	array := func(list ...string) string { return "[" + strings.Join(list, ",") + "]" }
	backwards := slices.Clone(months[:48])
	slices.Reverse(backwards)
	r := record.NewRequest()
	defer r.Release()
	for name, tt := range map[string]struct {
		body string
		want []string // where a month is too many
	}{
		"24 months":               {array(months[:48]...), nil},
		"and backwards":           {array(backwards...), nil},
		"and what has no time":    {array(slices.Concat(months[:48], odd, months[:48])...), nil},
		"a 25th":                  {array(slices.Concat(months[:49], odd, months[:48])...), []string{"0 #/48/timestamp"}},
		"two more":                {array(months...), []string{"0 #/48/timestamp", "1 #/49/timestamp", "2 #/50/timestamp", "3 #/51/timestamp"}},
		"in an object":            {`{"records":` + array(months[:49]...) + `}`, []string{"0 #/records/48/timestamp"}},
		"one on each line":        {strings.Join(months[:49], "\n"), []string{"0 #/48/timestamp"}},
		"another request, one of": {months[50], nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := r.Parse([]byte(tt.body), record.FormAuto, record.Limits{})
			var problems *record.ProblemsError
			var got []string
			if errors.As(err, &problems) {
				for _, p := range problems.Problems {
					expect.Not(t, p.Code != record.CodeTooManyMonths || p.Detail == "", "got %+v", p)
					got = append(got, fmt.Sprint(p.Index-problems.Problems[0].Index, " ", p.Pointer))
				}
			} else if err != nil {
				t.Fatal(err)
			}
			expect.Equal(t, "result", tt.want, got)
			compareParse(t, []byte(tt.body), record.FormAuto, record.Limits{Records: 50_000, RecordBytes: 4 << 20, Depth: 64})
		})
	}
	// In a bulk, records of further months are rejected one by one; a record rejected for another reason takes no
	// month.
	bulk := strings.Join(slices.Concat([]string{`{"valueType":[],"timestamp":` + fmt.Sprint(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()) + `}`}, months[:50], months[:1]), "\n")
	refused, err := r.ParseEach([]byte(bulk), spansOf([]byte(bulk)), record.Limits{})
	if err != nil || len(refused) != 3 || r.Len() != 49 || refused[1].Index != 49 || refused[1].Code != record.CodeTooManyMonths || refused[2].Index != 50 {
		t.Errorf("%d kept, refused %+v, %v", r.Len(), refused, err)
	}
}
