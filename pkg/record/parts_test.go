package record_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/s2"

	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
)

// noise is text that does not compress.
func noise(n int) string {
	random := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = ' ' + 3 + byte(random.IntN(57)) // neither quote nor backslash
	}
	return string(b)
}

// incompressible returns an array of records that do not compress, alone or
// together.
func incompressible(records, size int) string {
	b := []byte(noise(records * size))
	for i := range records {
		copy(b[i*size:], `{"id":"`)
		copy(b[(i+1)*size-3:], `"},`)
	}
	return "[" + string(b[:len(b)-1]) + "]"
}

// parse returns a parsed request that lives as long as the test.
func parse(t *testing.T, body string) *record.Request {
	t.Helper()
	r := record.NewRequest()
	t.Cleanup(r.Release)
	if err := r.Parse([]byte(body), record.FormAuto, record.Limits{RecordBytes: 32 << 20}, received); err != nil {
		t.Fatal(err)
	}
	return r
}

func parts(t *testing.T, r *record.Request, target int) []record.Part {
	t.Helper()
	parts, err := r.Parts(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// plain returns the JSON of a part.
func plain(t *testing.T, p record.Part) []byte {
	t.Helper()
	if p.Encoding == "" {
		return p.Body
	}
	b, err := s2.Decode(nil, p.Body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAnArrayThatFitsIsOnePartAsItIs(t *testing.T) {
	body := " " + string(recordtest.Realistic(200)) + "\n"
	got := parts(t, parse(t, body), record.DefaultPartBytes)
	if len(got) != 1 || got[0].Records != 200 || got[0].Encoding != record.EncodingS2 {
		t.Fatalf("got %d parts, the first of %d records in %q", len(got), got[0].Records, got[0].Encoding)
	}
	if string(plain(t, got[0])) != body {
		t.Error("the part is not the body")
	}
}

func TestRecordsOfOtherFormsBecomeAnArray(t *testing.T) {
	for _, body := range []string{`{"id":"a"}`, "{\"id\":\"a\"}\n", `{"records":[{"id":"a"}]}`} {
		got := parts(t, parse(t, body), record.DefaultPartBytes)
		if len(got) != 1 || string(plain(t, got[0])) != `[{"id":"a"}]` {
			t.Errorf("%s: got %d parts, the first %q", body, len(got), got[0].Body)
		}
	}
}

func TestPartsOfALargeRequestHoldItsRecordsInOrder(t *testing.T) {
	tests := []struct {
		name    string
		body    string
		target  int
		atLeast int
	}{
		{"records that compress well are split by their plain size", string(recordtest.Realistic(20_000)), record.DefaultPartBytes, 13},
		{"records that do not compress are split by their encoded size", incompressible(400, 9000), record.DefaultPartBytes, 2},
		{"a small target makes small parts", string(recordtest.Realistic(2000)), 4 << 10, 20},
		{"white space between records is not carried", "[{}" + strings.Repeat(" ", 8<<20) + ",{}]", record.DefaultPartBytes, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := parse(t, test.body)
			got := parts(t, r, test.target)
			if len(got) < test.atLeast {
				t.Errorf("got %d parts, want at least %d", len(got), test.atLeast)
			}
			i := 0
			for _, p := range got {
				if len(p.Body) > test.target && p.Records > 1 {
					t.Errorf("a part of %d records has %d bytes", p.Records, len(p.Body))
				}
				array := plain(t, p)
				if len(array) > 1<<20 {
					t.Errorf("a part has %d bytes before compression", len(array))
				}
				var records []json.RawMessage
				if err := json.Unmarshal(array, &records); err != nil {
					t.Fatal(err)
				}
				if len(records) != p.Records {
					t.Errorf("got %d records, the part says %d", len(records), p.Records)
				}
				for _, raw := range records {
					if !bytes.Equal(raw, r.Record(i)) {
						t.Fatalf("record %d is another one", i)
					}
					i++
				}
			}
			if i != r.Len() {
				t.Errorf("got %d records, want %d", i, r.Len())
			}
		})
	}
}

func TestTheSameBodyMakesTheSameParts(t *testing.T) {
	body := string(recordtest.Realistic(5000))
	first := parse(t, body)
	other := parse(t, strings.Replace(body, "EVENT", "OTHER", -1))
	parts(t, other, record.DefaultPartBytes) // a request that was used for something else
	if err := other.Parse([]byte(body), record.FormAuto, record.Limits{}, received); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parts(t, first, 100<<10), parts(t, other, 100<<10)); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

func TestAPartThatDoesNotCompressIsSentPlain(t *testing.T) {
	body := fmt.Sprintf(`[{"id":%q}]`, noise(1000))
	got := parts(t, parse(t, body), record.DefaultPartBytes)
	if len(got) != 1 || got[0].Encoding != "" || string(got[0].Body) != body {
		t.Errorf("got %d parts, the first in %q", len(got), got[0].Encoding)
	}
}

func TestARecordTooLargeForAMessageIsALimit(t *testing.T) {
	large := fmt.Sprintf(`{"id":%q}`, noise(16<<20))
	r := parse(t, "[{},"+large+"]")
	_, err := r.Parts(record.DefaultPartBytes, nil)
	var limit *record.LimitError
	if !errors.As(err, &limit) || limit.Code != record.CodeRecordTooLarge || limit.Index != 1 {
		t.Errorf("got %v, want record 1 to be too large", err)
	}
	compresses := parse(t, `[{},{"id":"`+strings.Repeat("compresses well ", 200_000)+`"}]`)
	for _, p := range parts(t, compresses, record.DefaultPartBytes) {
		if len(p.Body) > record.MaxPartBytes {
			t.Errorf("got a part of %d bytes", len(p.Body))
		}
	}
}
