package oracle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
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

// TestTheViewsAgreeWithTheOracle stores what simulated engines and odd clients send, as
// the ingester decodes it, and compares every row of every view with what the oracle makes
// of the same bytes.
func TestTheViewsAgreeWithTheOracle(t *testing.T) {
	_, url := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: url}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	fatal.If(t, err)
	t.Cleanup(func() { db.Close() })
	fatal.If(t, db.Migrate(t.Context()))
	known := map[string]bool{"v_element_names": true} // compared where definitions are
	for _, ofRows := range []string{"v_records", "v_event_log", "v_lint", "v_message_starts", "v_escalations", "v_modifications", "v_migrations", "v_errors"} {
		known[ofRows] = true // and not of aggregates
	}
	for _, table := range oracle.New("").Aggregates() {
		known[table.Name] = true
	}
	for name := range strings.FieldsSeq(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT name FROM system.tables WHERE database = '"+db.Database()+"' AND engine = 'View'")) {
		if !known[name] {
			t.Errorf("the oracle does not have the view %s", name)
		}
	}
	seq := uint64(0)
	for source, records := range map[string][][]byte{
		"simulated":      simulated(simulator.Config{Seed: 3, Instances: 60, Commands: true, Tenants: []string{"<default>", "acme"}}),
		"without ids":    simulated(simulator.Config{Seed: 4, Instances: 20, NoIDs: true}),
		"a load":         generated(load.MixedEnvelopes),
		"odd clients":    lines(t, "../../../pkg/record/recordtest/testdata/records.ndjson"),
		"no identity":    {[]byte(`{"intent":"nameless"}`), []byte(`{"intent":"nameless"}`)},
		"other'\\source": {[]byte(`{"id":"x","key":"12","timestamp":"2025-11-21T05:00:00+01:00","recordType":"EVENT","valueType":"JOB","intent":"FAILED","value":{"retries":2.0,"errorMessage":"a\tb'c\\d\n","processInstanceKey":7}}`)},
	} {
		t.Run(source, func(t *testing.T) {
			o := oracle.New(source)
			for _, raw := range records {
				fatal.If(t, o.Add(oracle.Line{Source: source, Acked: true, Record: raw}))
			}
			seq++
			insert(t, db, source, seq, records)
			for _, r := range compared(t, db.Database(), source, o) {
				for _, d := range r.Differences {
					t.Errorf("%v", d)
				}
			}
			if o.Acked() != int64(len(records)) {
				t.Errorf("%d records are acknowledged, want %d", o.Acked(), len(records))
			}
		})
	}
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

// lines are the records of a sample.
func lines(t *testing.T, name string) (records [][]byte) {
	t.Helper()
	whole, err := os.ReadFile(name)
	fatal.If(t, err)
	for line := range bytes.Lines(whole) {
		if line = bytes.TrimSpace(line); json.Valid(line) {
			records = append(records, line)
		}
	}
	return records
}

// insert stores records as a message of a lane.
func insert(t *testing.T, db *warehouse.DB, source string, seq uint64, records [][]byte) {
	t.Helper()
	m := flow.Message{Seq: seq, Source: source, Incarnation: 1, Received: time.Now(), Body: fmt.Appendf(nil, "[%s]", bytes.Join(records, []byte(",")))}
	b := record.Block{Columns: new(record.Columns), Token: fmt.Sprint("test-", seq), StoredAt: time.Now().UnixMilli()}
	fatal.If(t, b.Columns.Append(&m))
	b.To = b.Columns.Rows()
	fatal.If(t, db.Insert(t.Context(), b))
}

// compared compares all tables of a source.
func compared(t *testing.T, database, source string, o *oracle.Oracle) (reports []oracle.Report) {
	t.Helper()
	read := func(query string) io.Reader {
		t.Helper()
		res, err := http.Post(clickhousetest.Shared(t).HTTP()+"/", "text/plain", strings.NewReader(query))
		fatal.If(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v\n%s", query, res.Status, err, body)
		}
		return bytes.NewReader(body)
	}
	note := func(r oracle.Report, err error) {
		t.Helper()
		fatal.If(t, err)
		reports = append(reports, r)
	}
	note(o.CompareRecords(read(o.Records().Query(database, source))))
	note(o.CompareCounters(read(o.CountersQuery(database))))
	for _, table := range o.Aggregates() {
		note(table.Compare(source, read(table.Query(database, source))))
	}
	return reports
}
