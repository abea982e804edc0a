package oracle_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/oracle"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/load"
	"sluice/pkg/load/simulator"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// TestTheViewsAgreeWithTheOracle stores records of simulated engines, a Camunda 8.6.0 broker
// and odd clients, in several orders. It compares every row of every view with the oracle's,
// before merges and after them.
func TestTheViewsAgreeWithTheOracle(t *testing.T) {
	_, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url, BusinessKey: businessKey}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	fatal.If(t, db.Migrate(t.Context()))
	known := map[string]bool{"v_element_names": true} // compared in v_process_definitions
	for _, ofRows := range []string{"v_records", "v_event_log", "v_lint", "v_message_starts", "v_escalations", "v_modifications", "v_migrations", "v_errors"} {
		known[ofRows] = true // views of rows, not of aggregates
	}
	for _, table := range oracle.New("").Aggregates() {
		known[table.Name] = true
	}
	for name := range strings.FieldsSeq(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT name FROM system.tables WHERE database = '"+db.Database()+"' AND engine = 'View'")) {
		if !known[name] {
			t.Errorf("the oracle lacks the view %s", name)
		}
	}
	ofAll := func(do string) {
		for name := range strings.FieldsSeq(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT name FROM system.tables WHERE database = '"+db.Database()+"' AND engine LIKE '%MergeTree'")) {
			clickhousetest.Exec(t, clickhousetest.Shared(t), fmt.Sprintf(do, db.Database()+"."+name))
		}
	}
	ofAll("SYSTEM STOP MERGES %s")
	seq, oracles := uint64(0), map[string]*oracle.Oracle{}
	tenants := []string{"<default>", "acme"}
	for source, c := range map[string]struct {
		records [][]byte
		arrive  func([][]byte) [][]byte // default: in order, once
		block   int                     // records, default all
	}{
		"simulated":      {records: simulated(simulator.Config{Seed: 3, Instances: 60, Commands: true, Tenants: tenants})},
		"without ids":    {records: simulated(simulator.Config{Seed: 4, Instances: 20, NoIDs: true})},
		"backwards":      {simulated(simulator.Config{Seed: 11, Instances: 120, Commands: true, Tenants: tenants}), backwards, 15_000},
		"shuffled":       {simulated(simulator.Config{Seed: 12, Instances: 120, Commands: true, Tenants: tenants}), func(all [][]byte) [][]byte { return shuffled(again(all)) }, 8_000},
		"late":           {simulated(simulator.Config{Seed: 13, Instances: 6, Commands: true, Tenants: tenants}), func(all [][]byte) [][]byte { return late(again(all)) }, 300},
		"a broker":       {lines(t, "../../../pkg/warehouse/testdata/camunda-8.6.0.ndjson.gz"), func(all [][]byte) [][]byte { return shuffled(again(all)) }, 5_000},
		"a load":         {records: generated(load.MixedEnvelopes)},
		"odd clients":    {records: lines(t, "../../../pkg/record/recordtest/testdata/records.ndjson")},
		"no identity":    {records: [][]byte{[]byte(`{"intent":"nameless"}`), []byte(`{"intent":"nameless"}`)}},
		"other'\\source": {records: [][]byte{[]byte(`{"id":"x","key":"12","timestamp":"2025-11-21T05:00:00+01:00","recordType":"EVENT","valueType":"JOB","intent":"FAILED","value":{"retries":2.0,"errorMessage":"a\tb'c\\d\n","processInstanceKey":7}}`)}},
	} {
		t.Run(source, func(t *testing.T) {
			o := oracle.New(source)
			o.BusinessKey = businessKey
			oracles[source] = o
			for _, raw := range c.records {
				fatal.If(t, o.Add(oracle.Line{Source: source, Acked: true, Record: raw}))
			}
			sent := c.records
			if c.arrive != nil {
				sent = c.arrive(sent)
			}
			for block := range slices.Chunk(sent, cmp.Or(c.block, len(sent))) {
				seq++
				insert(t, db, source, seq, block)
			}
			compare(t, db.Database(), source, o, len(sent) == len(c.records))
			if o.Acked() != int64(len(c.records)) {
				t.Errorf("%d records are acknowledged, want %d", o.Acked(), len(c.records))
			}
		})
	}
	ofAll("SYSTEM START MERGES %s")
	ofAll("OPTIMIZE TABLE %s FINAL")
	for source, o := range oracles {
		t.Run(source+", merged", func(t *testing.T) { compare(t, db.Database(), source, o, false) })
	}
}

func backwards(all [][]byte) [][]byte {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

func shuffled(all [][]byte) [][]byte {
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// again sends a third of the records twice.
func again(all [][]byte) [][]byte { return append(slices.Clone(all), all[len(all)/3:2*len(all)/3]...) }

// late sends every seventh record last.
func late(all [][]byte) (sent [][]byte) {
	var last [][]byte
	for i, r := range all {
		if i%7 == 3 {
			last = append(last, r)
		} else {
			sent = append(sent, r)
		}
	}
	return append(sent, last...)
}

func simulated(cfg simulator.Config) (records [][]byte) {
	for r := range simulator.New(cfg).All() {
		records = append(records, bytes.Clone(r.JSON))
	}
	return records
}

func generated(e load.Envelope) (records [][]byte) {
	g := load.NewGenerator(load.GeneratorConfig{Seed: 9, Envelope: e})
	for range 3000 {
		r, _ := g.Next()
		records = append(records, bytes.Clone(r.JSON))
	}
	return records
}

// businessKey names a variable of simulated instances, of any JSON type.
const businessKey = "note"

func lines(t *testing.T, name string) (records [][]byte) {
	t.Helper()
	whole, err := os.ReadFile(name)
	fatal.If(t, err)
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(whole))
		fatal.If(t, err)
		whole, err = io.ReadAll(z)
		fatal.If(t, err)
	}
	for line := range bytes.Lines(whole) {
		if line = bytes.TrimSpace(line); json.Valid(line) {
			records = append(records, line)
		}
	}
	return records
}

func insert(t *testing.T, db *warehouse.DB, source string, seq uint64, records [][]byte) {
	t.Helper()
	m := flow.Message{Seq: seq, Source: source, Incarnation: 1, Received: time.Now(), Body: fmt.Appendf(nil, "[%s]", bytes.Join(records, []byte(",")))}
	b := record.Block{Columns: new(record.Columns), Token: fmt.Sprint("test-", seq), StoredAt: time.Now().UnixMilli()}
	fatal.If(t, b.Columns.Append(&m))
	b.To = b.Columns.Rows()
	fatal.If(t, db.Insert(t.Context(), b))
}

// compare compares all aggregates of a source; if every record was inserted once, also rows
// and counters.
func compare(t *testing.T, database, source string, o *oracle.Oracle, once bool) {
	t.Helper()
	read := func(query string) io.Reader {
		t.Helper()
		return strings.NewReader(clickhousetest.Exec(t, clickhousetest.Shared(t), query))
	}
	note := func(r oracle.Report, err error) {
		t.Helper()
		fatal.If(t, err)
		for _, d := range r.Differences {
			t.Errorf("%v", d)
		}
	}
	if once {
		note(o.CompareRecords(read(o.Records().Query(database, source))))
		note(o.CompareCounters(read(o.CountersQuery(database))))
	}
	for _, table := range o.Aggregates() {
		if once || table.Name != "v_sources" { // v_sources counts records
			note(table.Compare(source, read(table.Query(database, source))))
		}
	}
}
