package record_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"

	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// TestTheColumnsOfTheFormat: docs/format.md lists the columns of a body, by type, and the
// members of a form.
func TestTheColumnsOfTheFormat(t *testing.T) {
	page, err := os.ReadFile("../../docs/format.md")
	fatal.If(t, err)
	part := func(name string) string {
		_, after, _ := strings.Cut(string(page), "<!-- "+name+" -->\n")
		text, _, _ := strings.Cut(after, "\n<!-- end -->")
		return text
	}
	for of, columns := range record.BodyColumns() {
		if line := "\n| " + of + " | " + strings.Join(columns, ", ") + " |"; !strings.Contains(part("columns"), line) {
			t.Errorf("the page lacks%s", line)
		}
	}
	if got, want := part("members"), strings.Join(record.Members(), ", ")+"."; got != want {
		t.Errorf("the members are\n%s, want\n%s", got, want)
	}
}

// TestTheRecordsOfABrokerComeBack: records exported by a real broker are read from chunks as posted.
func TestTheRecordsOfABrokerComeBack(t *testing.T) {
	file, err := os.Open("../warehouse/testdata/camunda-8.6.0.ndjson.gz")
	fatal.If(t, err)
	defer file.Close()
	plain, err := gzip.NewReader(file)
	fatal.If(t, err)
	lines := bufio.NewScanner(plain)
	lines.Buffer(nil, 16<<20)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	r := parse(t, strings.Join(all, "\n"))
	i := 0
	for _, p := range chunks(t, r, 512<<10) {
		for _, raw := range records(t, p) {
			if !same(raw, all[i]) {
				t.Fatalf("record %d is\n%s, want\n%s", i, raw, all[i])
			}
			i++
		}
	}
	if i != len(all) || i < 10_000 {
		t.Errorf("%d records of %d", i, len(all))
	}
}

// TestABodyThatIsCorruptIsRefused as a whole, and earlier rows are unchanged.
func TestABodyThatIsCorruptIsRefused(t *testing.T) {
	// Two rows of kind 2, the type JOB in both, the times 0 and 2023.
	whole := []byte{2, 1, 2, 2, 6, 3, 'J', 'O', 'B', 0, 1, 1, 8, 0, 0x80, 0xa0, 0xab, 0xfe, 0xf9, 0x62}
	body := func(plain []byte) *flow.Message {
		m := message("")
		m.Body, m.Encoding, m.Records = s2.Encode(nil, plain), flow.EncodingColumns, 2
		return m
	}
	changed := func(at int, to byte) []byte {
		b := bytes.Clone(whole)
		b[at] = to
		return b
	}
	for name, plain := range map[string][]byte{
		"":        whole,
		"nothing": {},
		"other number of records than the entry's": whole,
		"more rows than bytes":                     changed(0, 100),
		"an unknown kind":                          changed(2, 4),
		"no kind":                                  changed(3, 0),
		"column 0":                                 changed(1, 0),
		"an unknown column":                        changed(12, 46),
		"columns out of order":                     changed(12, 5),
		"a text beyond the end":                    changed(5, 90),
		"an unknown value":                         changed(11, 2),
		"a time before 2000":                       changed(19, 0x02),
		"cut off in a number":                      whole[:len(whole)-1],
		"cut off in a column":                      whole[:11],
	} {
		t.Run(name, func(t *testing.T) {
			var c record.Columns
			appended(t, &c, message(`[{"id":"a","valueType":"JOB"}]`))
			before := rows(&c)
			m := body(plain)
			if strings.HasPrefix(name, "other") {
				m.Records = 3
			}
			bad, err := c.AppendGood(m)
			switch {
			case name == "" && (err != nil || c.Rows() != 3 || string(c.ValueType.Value(2)) != "JOB" || c.TS[2] != 1700000000000):
				t.Errorf("got %d rows and %v", c.Rows(), err)
			case name != "" && (err == nil || len(bad) > 0 || !reflect.DeepEqual(rows(&c), before)):
				t.Errorf("got %v, and rows %v", err, rows(&c))
			}
		})
	}
}
