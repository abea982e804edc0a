package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/deployment"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// filled is a database with the records of three sources, and their ledgers: two sources
// have byte-identical records, one has records without identity.
func filled(t *testing.T) (db *warehouse.DB, ledgers []*ledger, records [][]byte) {
	t.Helper()
	_, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	fatal.If(t, db.Migrate(t.Context()))
	g := load.NewGenerator(load.GeneratorConfig{Seed: 9, Step: time.Millisecond, Envelope: load.FullEnvelope})
	for range 3000 {
		r, _ := g.Next()
		records = append(records, bytes.Clone(r.JSON))
	}
	twin := fmt.Appendf(nil, `{"valueType":"VARIABLE","intent":"CREATED","timestamp":%d,"value":{"processInstanceKey":"0-1"}}`, time.Now().UnixMilli())
	dir := t.TempDir()
	for i, of := range []struct {
		source  string
		records [][]byte
	}{{"a", records}, {"b", records}, {anonymousSource, [][]byte{twin, twin, twin}}} {
		insert(t, db, of.source, uint64(i+1), of.records)
		l, err := newLedger(dir, of.source)
		fatal.If(t, err)
		t.Cleanup(l.close)
		fatal.If(t, l.note(fmt.Appendf(nil, "[%s]", bytes.Join(of.records, []byte(","))), true))
		ledgers = append(ledgers, l)
	}
	return db, ledgers, records
}

// insert stores records as a message of a lane, without deduplication.
func insert(t *testing.T, db *warehouse.DB, source string, seq uint64, records [][]byte) {
	t.Helper()
	m := flow.Message{Seq: seq, Source: source, Incarnation: 1, Received: time.Now(), Body: fmt.Appendf(nil, "[%s]", bytes.Join(records, []byte(",")))}
	b := record.Block{Columns: new(record.Columns), Token: fmt.Sprint("test-", seq), StoredAt: time.Now().UnixMilli()}
	fatal.If(t, b.Columns.Append(&m))
	b.To = b.Columns.Rows()
	fatal.If(t, db.Insert(t.Context(), b))
}

// TestTheComparisonFindsWhatIsWrong breaks the tables in every way that the comparison must
// find: it counts each fault and names it.
func TestTheComparisonFindsWhatIsWrong(t *testing.T) {
	db, ledgers, records := filled(t)
	engine := clickhousetest.Shared(t)
	stored := tables{database: db.Database(), ask: func(ctx context.Context, sql string) (io.ReadCloser, error) {
		return deployment.Stream(ctx, engine.HTTP()+"/", sql)
	}}
	sql := func(statement string) {
		t.Helper()
		clickhousetest.Exec(t, engine, strings.ReplaceAll(statement, "{db}", db.Database()))
	}
	type wrong struct{ Lost, Doubled, Strangers, Above, Below, Differ int64 }
	const sync = " SETTINGS mutations_sync = 2"
	type tampering struct {
		says   string // named
		tamper func()
	}
	for _, tt := range []struct {
		name   string
		tamper []tampering
		want   wrong // cumulative over the steps so far
	}{
		{name: "nothing is wrong"},
		{name: "ten records are stored twice", want: wrong{Doubled: 10, Above: 10, Differ: 1}, tamper: []tampering{{"records of a: id ", func() {
			sql("SYSTEM STOP MERGES {db}.records")
			insert(t, db, "a", 4, records[100:110])
		}}}},
		{name: "merges have left one row of each, records are not there, and others were never sent", want: wrong{Lost: 2, Strangers: 2, Above: 12, Differ: 1}, tamper: []tampering{
			{"v_sources of a: partition_id ", func() {
				sql("SYSTEM START MERGES {db}.records")
				sql("OPTIMIZE TABLE {db}.records FINAL")
			}},
			{"value_type PROCESS_INSTANCE_CREATION, intent CREATED", func() {
				sql("ALTER TABLE {db}.records DELETE WHERE source = 'b' AND value_type = 'PROCESS_INSTANCE_CREATION' AND position = (SELECT min(position) FROM {db}.records WHERE partition_id = 2 AND value_type = 'PROCESS_INSTANCE_CREATION') AND partition_id = 2" + sync)
			}},
			{"records of a: id 9-9, partition_id 0", func() {
				sql("INSERT INTO {db}.records (source, own_id, ts, received_at, stored_at) SELECT 'a', '9-9', now64(), now64(), now64()")
			}},
			{"records of stranger: id 9-9", func() {
				sql("INSERT INTO {db}.records (source, own_id, ts, received_at, stored_at) SELECT 'stranger', '9-9', now64(), now64(), now64()")
			}},
			{"2 rows, want 3", func() {
				sql("ALTER TABLE {db}.records DELETE WHERE source = 'anonymous' AND identity LIKE '%.2'" + sync)
			}},
		}},
		{name: "a record without identity is doubled, counters and aggregates are wrong", want: wrong{Lost: 1, Doubled: 1, Strangers: 2, Above: 21, Below: 2, Differ: 4}, tamper: []tampering{
			{"4 rows, want 3", func() {
				sql("INSERT INTO {db}.records SELECT * REPLACE ('other' || identity AS identity) FROM {db}.records WHERE source = 'anonymous'")
			}},
			{"value_type PROCESS_INSTANCE, ", func() {
				sql("INSERT INTO {db}.counts_1m SELECT * REPLACE (7 AS records) FROM {db}.counts_1m WHERE source = 'b' AND value_type = 'PROCESS_INSTANCE' LIMIT 1")
			}},
			{"value_type JOB, ", func() {
				sql("INSERT INTO {db}.counts_1m SELECT * REPLACE (-2 AS records) FROM {db}.counts_1m WHERE source = 'b' AND value_type = 'JOB' LIMIT 1")
			}},
			{"key 77: 1 rows, want 0", func() {
				sql("INSERT INTO {db}.jobs SELECT * REPLACE (toInt64(77) AS key) FROM {db}.jobs WHERE source = 'b' LIMIT 1")
			}},
			{"v_process_instances of a: process_instance_key ", func() {
				sql("ALTER TABLE {db}.process_instances DELETE WHERE process_instance_key = (SELECT max(process_instance_key) FROM {db}.process_instances)" + sync)
			}},
			{`: first_value is "~zebra", want "`, func() {
				sql("INSERT INTO {db}.variables SELECT * REPLACE ('~zebra' AS created) FROM {db}.variables WHERE source = 'b' AND created != '' LIMIT 1")
			}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, step := range tt.tamper {
				step.tamper()
			}
			f, err := stored.judge(t.Context(), ledgers)
			fatal.If(t, err)
			expect.Equal(t, "wrong", tt.want, wrong{f.Lost, f.Doubled, f.Strangers, f.Above, f.Below, int64(f.Differ)})
			if f.Views < 10 || f.Acked != 6003 {
				t.Errorf("%d records and %d views are compared", f.Acked, f.Views)
			}
			named := strings.Join(f.Named, "\n")
			expect.Not(t, f.Clean() != (len(tt.tamper) == 0), "clean is %v", f.Clean())
			for _, step := range tt.tamper {
				expect.Not(t, !strings.Contains(named, step.says), "%q should be named:\n%s", step.says, named)
			}
		})
	}
}
