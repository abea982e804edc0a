package export_test

import (
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/export"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/warehouse"
)

// TestMemoryDoesNotGrow exports many instances, and looks at what is alive in
// memory after each of the first batches and after each of the last.
func TestMemoryDoesNotGrow(t *testing.T) {
	name, address := clickhousetest.FreshDatabase(t)
	db, err := warehouse.Open(warehouse.Config{URL: address}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const instances = 5000
	for _, statement := range []string{
		`INSERT INTO {db}.instances (source, process_instance_key, bpmn_process_id, processes, version, state, started_at, completed_at)
		SELECT 'engine', toString(1000000 + number * 10), 'order', ['order'], 1, 3, toDateTime64('2026-01-01', 3, 'UTC') + number, toDateTime64('2026-01-02', 3, 'UTC') + number FROM numbers(5000)`,
		`INSERT INTO {db}.element_instances (source, process_instance_key, key, bpmn_process_id, element_id, bpmn_element_type, flow_scope_key, state, activated_at, completed_at)
		SELECT 'engine', toString(1000000 + intDiv(number, 6) * 10), 1000000 + intDiv(number, 6) * 10 + 1 + number % 6, 'order', concat('step_', toString(number % 6)), 'SERVICE_TASK',
			1000000 + intDiv(number, 6) * 10, 3, toDateTime64('2026-01-01', 3, 'UTC') + intDiv(number, 6), toDateTime64('2026-01-02', 3, 'UTC') + intDiv(number, 6) FROM numbers(30000)`,
	} {
		clickhousetest.Exec(t, clickhousetest.Shared(t), strings.ReplaceAll(statement, "{db}", name))
	}
	for _, c := range []struct{ format, file string }{{"xes", "log.xes"}, {"ocel", "log.json"}, {"ocel", "log.sqlite"}} {
		t.Run(c.file, func(t *testing.T) {
			var alive []uint64
			r, err := export.Run(t.Context(), db, export.Config{Format: c.format, File: filepath.Join(t.TempDir(), c.file), Progress: func(uint64, uint64) {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				alive = append(alive, m.HeapAlloc)
			}})
			if err != nil || r.Instances != instances || len(alive) < 10 {
				t.Fatalf("%+v in %d batches: %v", r, len(alive), err)
			}
			t.Logf("%d batches, alive after the third %d KiB, after the last %d KiB", len(alive), alive[2]>>10, alive[len(alive)-1]>>10)
			const most = 4 << 20 // a batch more or less, and what other tests do
			if first, last := alive[2], alive[len(alive)-1]; last > first+most {
				t.Errorf("%d bytes are alive after %d instances, %d were after the first", last, r.Instances, first)
			}
		})
	}
}
