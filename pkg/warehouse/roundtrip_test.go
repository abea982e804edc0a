package warehouse_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/load"
	"sluice/pkg/record"
	"sluice/pkg/record/recordtest"
	"sluice/pkg/warehouse"
)

// stored reads the message's rows by index, in JSON.
func stored(t *testing.T, db *warehouse.DB, seq uint64) []map[string]any {
	t.Helper()
	text := query(t, db, fmt.Sprintf("SELECT *, id, source_record_position FROM {db}.records WHERE stream_seq = %d ORDER BY stream_idx FORMAT JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 1", seq))
	var rows []map[string]any
	for line := range strings.Lines(text) {
		d := json.NewDecoder(strings.NewReader(line))
		d.UseNumber()
		var row map[string]any
		fatal.If(t, d.Decode(&row))
		rows = append(rows, row)
	}
	return rows
}

func compareStored(t *testing.T, db *warehouse.DB, seq uint64, posted [][]byte) {
	t.Helper()
	rows := stored(t, db, seq)
	fatal.When(t, len(rows) != len(posted), "%d rows of %d records", len(rows), len(posted))
	for i, raw := range posted {
		if wrong := recordtest.Compare(raw, rows[i]); wrong != nil {
			t.Errorf("record %d is not what was posted: %v\n%s", i, wrong, raw)
		}
	}
}

func TestWhatAQueryGivesBackIsWhatWasPosted(t *testing.T) {
	t.Parallel()
	db := open(t)
	var samples [][]byte
	for _, raw := range recordtest.Samples() {
		if len(recordtest.Check(raw)) == 0 { // the api rejects the others
			samples = append(samples, raw)
		}
	}
	fatal.When(t, len(samples) < 8, "only %d samples pass", len(samples))
	var generated [][]byte
	g := load.NewGenerator(load.GeneratorConfig{Seed: 1, Start: received.Add(-time.Hour)})
	for range 1000 {
		r, _ := g.Next()
		generated = append(generated, bytes.Clone(r.JSON))
	}
	for i, posted := range [][][]byte{samples, generated} {
		seq := uint64(i + 1)
		var texts []string
		for _, raw := range posted {
			texts = append(texts, string(raw))
		}
		fatal.If(t, db.Insert(t.Context(), block(t, 3, seq, texts...)))
		compareStored(t, db, seq, posted)
	}
	want := fmt.Sprintf("3\t1\t%d\n3\t2\t1000", len(samples))
	expect.Equal(t, "lane, message, rows", want, query(t, db, "SELECT lane, stream_seq, count() FROM {db}.records WHERE received_at = '2025-11-21 05:00:00' GROUP BY ALL ORDER BY ALL"))
}

// TestWideDictionaries covers every width of the keys of a LowCardinality column, and parts of a
// block.
func TestWideDictionaries(t *testing.T) {
	db := open(t)
	for i, n := range []int{255, 256, 300, 70_000} {
		records := make([]string, n)
		for j := range records {
			records[j] = fmt.Sprintf(`{"id":"%d-%d","value":{"worker":"w%d","elementId":"e%d"}}`, i, j, j, j%7)
		}
		b := block(t, 0, uint64(i+1), records...)
		half := n / 2
		for _, piece := range []record.Block{{To: half, Token: fmt.Sprint("a", n)}, {From: half, To: n, Token: fmt.Sprint("b", n)}} {
			b.From, b.To, b.Token = piece.From, piece.To, piece.Token
			fatal.If(t, db.Insert(t.Context(), b))
		}
		got := query(t, db, fmt.Sprintf("SELECT count(), uniqExact(worker), countIf(worker != 'w' || splitByChar('-', id)[2]) FROM {db}.records WHERE stream_seq = %d", i+1))
		if want := fmt.Sprintf("%d\t%d\t0", n, n); got != want {
			t.Errorf("%d symbols: rows, workers, wrong ones: got %s, want %s", n, got, want)
		}
	}
}

// TestRecordsOfNoInstanceNameOneByAColumn: keys are searched in columns as well as in extra.
func TestRecordsOfNoInstanceNameOneByAColumn(t *testing.T) {
	t.Parallel()
	db := open(t)
	const one = `{"id":"%[1]s","valueType":"JOB_BATCH","timestamp":1763701200123,"value":{"x":1.10,"rootProcessInstanceKey":%[2]s}}`
	insert(t, db, block(t, 0, 2, fmt.Sprintf(one, "a", "2251799813685290"), fmt.Sprintf(one, "b", `"2251799813685290"`), fmt.Sprintf(one, "c", "-1"), fmt.Sprintf(one, "d", "{}"), `{"id":"e","value":{"y":1}}`))
	if got := query(t, db, "SELECT count(), countIf(root_process_instance_key = '2251799813685290'), countIf(position(extra, 'root') > 0) FROM {db}.v_records"); got != "5\t2\t1" {
		t.Errorf("records, those of the root, and those whose root is not a number: got %s", got)
	}
	for key, want := range map[string]uint64{"2251799813685290": 2, "2251799813685291": 0} {
		if n, err := db.RecordsOf(t.Context(), warehouse.Subject{Keys: []string{key}}, time.Now().UnixMilli(), nil); err != nil || n != want {
			t.Errorf("%d records of no instance name %s, %v, want %d", n, key, err, want)
		}
	}
}
