package benchtest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/benchtest"
)

const output = `goos: linux
pkg: sluice/pkg/record
BenchmarkParts/records=500  200  216000 ns/op  1529.07 MB/s  433.4 cpu-ns/record  81.09 encoded-B/record  12 B/op  3 allocs/op
BenchmarkParts/records=500  200  215622 ns/op  1529.07 MB/s  431.2 cpu-ns/record  81.09 encoded-B/record  70 B/op  2 allocs/op
BenchmarkAppend/records=1  200  960.7 ns/op  0 B/op  0 allocs/op
PASS
ok  	sluice/pkg/record	3.904s
`

var figures = map[string]benchtest.Figures{
	"BenchmarkParts/records=500": {"B/op": 12, "allocs/op": 2, "encoded-B/record": 81.09},
	"BenchmarkAppend/records=1":  {"B/op": 0, "allocs/op": 0},
}

func TestOfSeveralRunsTheLeastCounts(t *testing.T) {
	if diff := cmp.Diff(figures, benchtest.Parse([]byte(output))); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
}

func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	written := benchtest.Format("sluice/pkg/record", figures)
	const want = `pkg: sluice/pkg/record
BenchmarkAppend/records=1 1 0 B/op 0 allocs/op
BenchmarkParts/records=500 1 12 B/op 2 allocs/op 81.09 encoded-B/record
`
	if diff := cmp.Diff(want, string(written)); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	if diff := cmp.Diff(figures, benchtest.Parse(written)); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		kept, now map[string]benchtest.Figures
		want      []string
	}{
		"the same": {
			kept: figures, now: figures,
		},
		"less of everything": {
			kept: one(900, 20, 81), now: one(800, 19, 80),
		},
		"one allocation where there were none": {
			kept: one(0, 0, 0), now: one(8, 1, 0),
			want: []string{"BenchmarkX: 1 allocs/op, the baseline is 0 and at most 0 is let through"},
		},
		"one allocation more than a few": {
			kept: one(900, 20, 81), now: one(900, 21, 81),
			want: []string{"BenchmarkX: 21 allocs/op, the baseline is 20 and at most 20.4 is let through"},
		},
		"a fiftieth more than many allocations": {
			kept: one(900, 100, 81), now: one(900, 102, 81),
		},
		"bytes within a twentieth": {
			kept: one(1000, 20, 80), now: one(1066, 20, 84),
		},
		"bytes beyond it": {
			kept: one(1000, 20, 80), now: one(1067, 20, 84.1),
			want: []string{
				"BenchmarkX: 1067 B/op, the baseline is 1000 and at most 1066 is let through",
				"BenchmarkX: 84.1 encoded-B/record, the baseline is 80 and at most 84 is let through",
			},
		},
		"no baseline yet": {
			now:  one(0, 0, 0),
			want: []string{"BenchmarkX is not in testdata/baseline.txt"},
		},
		"a benchmark that is gone": {
			kept: one(0, 0, 0),
			want: []string{"BenchmarkX is in testdata/baseline.txt, but did not run"},
		},
		"a figure that is gone": {
			kept: one(0, 0, 50), now: map[string]benchtest.Figures{"BenchmarkX": {"B/op": 0, "allocs/op": 0}},
			want: []string{"BenchmarkX tells no encoded-B/record any more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, benchtest.Compare(c.kept, c.now, 256)); diff != "" {
				t.Error("(-want +got):\n" + diff)
			}
		})
	}
}

func one(bytes, allocations, encoded float64) map[string]benchtest.Figures {
	return map[string]benchtest.Figures{"BenchmarkX": {"B/op": bytes, "allocs/op": allocations, "encoded-B/record": encoded}}
}
