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

// TestMemoryDoesNotGrow exports many instances, and compares the live heap after the
// first megabyte that was read with the one at the end.
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
	for _, statement := range []string{
		`INSERT INTO {db}.process_instances (source, process_instance_key, bpmn_process_id, processes, version, state, started_at, completed_at)
		SELECT 'engine', toString(1000000 + number * 10), 'order', ['order'], 1, 3, toDateTime64('2026-01-01', 3, 'UTC') + number, toDateTime64('2026-01-02', 3, 'UTC') + number FROM numbers(10000)`,
		`INSERT INTO {db}.element_instances (source, process_instance_key, key, bpmn_process_id, element_id, bpmn_element_type, flow_scope_key, state, activated_at, completed_at)
		SELECT 'engine', toString(1000000 + intDiv(number, 6) * 10), 1000000 + intDiv(number, 6) * 10 + 1 + number % 6, 'order', concat('step_', toString(number % 6)), 'SERVICE_TASK',
			1000000 + intDiv(number, 6) * 10, 3, toDateTime64('2026-01-01', 3, 'UTC') + intDiv(number, 6), toDateTime64('2026-01-02', 3, 'UTC') + intDiv(number, 6) FROM numbers(60000)`,
	} {
		clickhousetest.Exec(t, clickhousetest.Shared(t), strings.ReplaceAll(statement, "{db}", name))
	}
	for format, file := range map[string]string{"xes": "log.xes", "ocel": "log.json", "csv": "log.csv"} {
		t.Run(format, func(t *testing.T) {
			var alive []uint64
			var read, looked int64
			err := export.Run(t.Context(), export.Config{
				ClickHouse: clickhousetest.Shared(t).HTTP() + "/" + name, Format: format, File: filepath.Join(t.TempDir(), file),
				Progress: func(bytes int64) {
					if read += bytes; read < looked+1<<20 {
						return
					}
					looked = read
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					alive = append(alive, m.HeapAlloc)
				},
			})
			if err != nil || len(alive) < 5 {
				t.Fatalf("%d bytes read, looked %d times: %v", read, len(alive), err)
			}
			const spare = 2 << 20 // a buffer more or less; the log is several times as much
			if first, last := alive[0], alive[len(alive)-1]; last > first+spare {
				t.Errorf("%d bytes are alive after %d bytes were read, %d were after the first", last, read, first)
			}
		})
	}
}
