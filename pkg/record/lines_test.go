package record_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/record"
)

// spansOf are the lines of a body.
func spansOf(body []byte) (spans []record.Span) {
	at := 0
	for line := range bytes.SplitSeq(body, []byte{'\n'}) {
		spans = append(spans, record.Span{Start: at, End: at + len(line)})
		at += len(line) + 1
	}
	return spans
}

// eachAlone is what ParseEach should say: every line is a request of its own.
func eachAlone(t testing.TB, body []byte, lim record.Limits, now time.Time) (kept []string, codes map[int]string) {
	codes = map[int]string{}
	for i, line := range bytes.Split(body, []byte{'\n'}) {
		r := record.NewRequest()
		err := r.Parse(bytes.Clone(line), record.FormNDJSON, lim, now)
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

// FuzzParseEach: one that is no record harms none of the others.
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
		refused, err := r.ParseEach(bytes.Clone(body), spansOf(body), lim, now)
		if err != nil {
			t.Fatal(err)
		}
		got, gotCodes := []string(nil), map[int]string{}
		for i := range r.Len() {
			got = append(got, string(r.Record(i)))
		}
		for _, r := range refused {
			gotCodes[r.Index] = r.Code
		}
		if strings.Contains(text, `"records"`) {
			return // what wraps records is none here; a request may be that
		}
		if diff := cmp.Diff(kept, got); diff != "" {
			t.Errorf("kept of %q (-want +got):\n%s", text, diff)
		}
		// Of a line with several things wrong either may be told.
		if diff := cmp.Diff(slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(gotCodes))); diff != "" {
			t.Errorf("lines refused of %q (-want +got):\n%s", text, diff)
		}
	})
}

// TestSecretsOfWhatIsNoRecord are not kept either, as far as it is JSON.
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
		refused, err := r.ParseEach([]byte(body), []record.Span{{End: len(body)}}, record.Limits{Shaped: true}, time.Now())
		if err != nil || len(refused) != 1 || r.Len() != 0 {
			t.Fatalf("%s: %d refused, %d kept, %v, want it refused", body, len(refused), r.Len(), err)
		}
		if got := string(refused[0].Raw); got != want {
			t.Errorf("%s is kept as %s, want %s", body, got, want)
		}
		r.Release()
	}
}

// TestWhatIsRefusedHasNoPartInTheRequest: not either in whether all of it has an
// identity.
func TestWhatIsRefusedHasNoPartInTheRequest(t *testing.T) {
	good, bad := `{"id":"a"}`, `{"key":true}`
	body := []byte(good + bad)
	r := record.NewRequest()
	defer r.Release()
	refused, err := r.ParseEach(body, []record.Span{{End: len(good)}, {Start: len(good), End: len(body)}}, record.Limits{}, received)
	if err != nil || len(refused) != 1 || r.Len() != 1 || !r.AllIDs() || !r.Identified() {
		t.Errorf("%d refused, %d taken, %v: all ids %v, identified %v, want one each and both", len(refused), r.Len(), err, r.AllIDs(), r.Identified())
	}
}
