package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/flow"
	"sluice/pkg/load"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// filled is a database with what three sources have sent: two with records that
// are equal to the last byte, and one with records without identity.
func filled(t *testing.T) (db *warehouse.DB, addr string, all []sent, anonymously map[string]int64) {
	t.Helper()
	_, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := load.NewGenerator(load.GeneratorConfig{Seed: 9, Step: time.Millisecond, Envelope: load.FullEnvelope})
	var records [][]byte
	for range 3000 {
		r, _ := g.Next()
		records = append(records, bytes.Clone(r.JSON))
	}
	for i, source := range []string{"a", "b"} {
		insert(t, db, source, uint64(i+1), records)
		all = append(all, sent{source, records})
	}
	twin := fmt.Appendf(nil, `{"valueType":"VARIABLE","intent":"CREATED","timestamp":%d,"value":{"processInstanceKey":"0-1"}}`, time.Now().UnixMilli())
	insert(t, db, anonymousSource, 3, [][]byte{twin, twin, twin})
	addr, _, _ = strings.Cut(strings.TrimPrefix(url, "clickhouse://default@"), "/")
	return db, addr, all, map[string]int64{"0-1": 3}
}

// insert stores records as a message of a lane, without deduplication.
func insert(t *testing.T, db *warehouse.DB, source string, seq uint64, records [][]byte) {
	t.Helper()
	m := flow.Message{Seq: seq, Source: source, Incarnation: 1, Received: time.Now(), Body: fmt.Appendf(nil, "[%s]", bytes.Join(records, []byte(",")))}
	b := record.Block{Columns: new(record.Columns), Token: fmt.Sprint("test-", seq), StoredAt: time.Now().UnixMilli()}
	if err := b.Columns.Append(&m); err != nil {
		t.Fatal(err)
	}
	b.To = b.Columns.Rows()
	if err := db.Insert(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// sent is what a source has sent, all of it acknowledged.
type sent struct {
	source  string
	records [][]byte
}

// judged compares a database with what was sent, records without identity by how many
// each of their requests had.
func judged(t *testing.T, addr, database string, all []sent, anonymously map[string]int64, notes io.Writer) (Result, error) {
	stored, err := openTables(addr, database)
	if err != nil {
		t.Fatal(err)
	}
	defer stored.close()
	known := &truth{sources: map[string]posted{}, anonymous: &anonymous{requests: map[string]*request{}}}
	for _, of := range all {
		l := &logs{counts: map[count]int64{}}
		p := posted{counts: l.counts}
		for _, record := range of.records {
			var r load.Range
			_, err := fmt.Sscanf(string(record), `{"id":"%d-%d"`, &r.Partition, &r.First)
			if err := errors.Join(err, l.count(record)); err != nil {
				t.Fatal(err)
			}
			r.Last = r.First
			p.acked = append(p.acked, r)
		}
		p.sent = p.acked
		known.sources[of.source] = p
	}
	for mark, n := range anonymously {
		known.anonymous.requests[mark] = &request{records: n, acked: true}
	}
	return stored.judge(t.Context(), known, newJournal(notes))
}

// TestTheComparisonFindsWhatIsWrong breaks the tables in every way that must
// not pass for right, one after the other.
func TestTheComparisonFindsWhatIsWrong(t *testing.T) {
	db, addr, all, anonymously := filled(t)
	sql := func(statement string) {
		t.Helper()
		clickhousetest.Exec(t, clickhousetest.Shared(t), strings.ReplaceAll(statement, "{db}", db.Database()))
	}
	type wrong struct{ Lost, Doubled, Strangers, Above, Below int64 }
	const sync = " SETTINGS mutations_sync = 2"
	for _, tt := range []struct {
		name   string
		tamper func()
		want   wrong // with what was done before
		folds  bool  // a fold differs by now; flow.sources does once merges have removed rows that it has counted
		says   string
	}{
		{name: "nothing is wrong", tamper: func() {}},
		{name: "ten records are stored twice", says: "a: doubled: ", want: wrong{Doubled: 10, Above: 10}, tamper: func() {
			sql("SYSTEM STOP MERGES {db}.records")
			insert(t, db, "a", 4, all[0].records[100:110])
		}},
		{name: "and merges have left one row of each", folds: true, says: "counted ", want: wrong{Above: 10}, tamper: func() {
			sql("SYSTEM START MERGES {db}.records")
			sql("OPTIMIZE TABLE {db}.records FINAL")
		}},
		{name: "a record is not there", says: "b: lost: 2-", want: wrong{Lost: 1, Above: 11}, tamper: func() {
			sql("ALTER TABLE {db}.records DELETE WHERE source = 'b' AND value_type = 'PROCESS_INSTANCE_CREATION' AND position = (SELECT min(position) FROM {db}.records WHERE partition_id = 2 AND value_type = 'PROCESS_INSTANCE_CREATION') AND partition_id = 2" + sync)
		}},
		{name: "a record was never sent", folds: true, says: "a: never sent: 9-9", want: wrong{Lost: 1, Strangers: 1, Above: 11}, tamper: func() {
			sql("INSERT INTO {db}.records (source, own_id, ts, received_at, stored_at) SELECT 'a', '9-9', now64(), now64(), now64()")
		}},
		{name: "a record without identity is not there", says: "anonymous: lost: 1 of 3", want: wrong{Lost: 2, Strangers: 1, Above: 12}, tamper: func() {
			sql("ALTER TABLE {db}.records DELETE WHERE source = 'anonymous' AND identity LIKE '%.2'" + sync)
		}},
		{name: "two others are there", folds: true, says: "anonymous: doubled: 1 records too many", want: wrong{Lost: 1, Doubled: 1, Strangers: 1, Above: 12}, tamper: func() {
			sql("INSERT INTO {db}.records SELECT * REPLACE ('other' || identity AS identity) FROM {db}.records WHERE source = 'anonymous'")
		}},
		{name: "a counter is too high", folds: true, says: "counted ", want: wrong{Lost: 1, Doubled: 1, Strangers: 1, Above: 19}, tamper: func() {
			sql("INSERT INTO {db}.counts_1m SELECT * REPLACE (7 AS records) FROM {db}.counts_1m WHERE value_type = 'PROCESS_INSTANCE' LIMIT 1")
		}},
		{name: "counters miss two records", folds: true, says: "b {Minute", want: wrong{Lost: 1, Doubled: 1, Strangers: 1, Above: 19, Below: 2}, tamper: func() {
			sql("INSERT INTO {db}.counts_1m SELECT * REPLACE (-2 AS records) FROM {db}.counts_1m WHERE source = 'b' AND value_type = 'JOB' LIMIT 1")
		}},
		{name: "a fold has something else", says: "jobs: ", folds: true, want: wrong{Lost: 1, Doubled: 1, Strangers: 1, Above: 19, Below: 2}, tamper: func() {
			sql("INSERT INTO {db}.jobs SELECT * REPLACE (toInt64(77) AS key) FROM {db}.jobs LIMIT 1")
		}},
		{name: "a fold misses something", says: "process_instances: ", folds: true, want: wrong{Lost: 1, Doubled: 1, Strangers: 1, Above: 19, Below: 2}, tamper: func() {
			sql("ALTER TABLE {db}.process_instances DELETE WHERE process_instance_key = (SELECT max(process_instance_key) FROM {db}.process_instances)" + sync)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.tamper()
			var notes bytes.Buffer
			r, err := judged(t, addr, db.Database(), all, anonymously, &notes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, wrong{r.Lost, r.Doubled, r.Strangers, r.Above, r.Below}); diff != "" {
				t.Errorf("wrong (-want +got):\n%s", diff)
			}
			if r.Folds < 4 || r.Differ > 0 != tt.folds && !strings.Contains(tt.name, "not there") {
				t.Errorf("%d of %d folds differ", r.Differ, r.Folds)
			}
			r.Verified = true
			if clean := tt.says == ""; r.Clean() != clean || !strings.Contains(notes.String(), tt.says) {
				t.Errorf("clean is %v, want %v, and the journal should say %q:\n%s", r.Clean(), clean, tt.says, notes.String())
			}
		})
	}
}
