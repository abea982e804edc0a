package warehouse_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkDropADay compares two ways to keep a day apart, on 2 million records of
// 60 days that came in day by day, four inserts each: partitions of months, as they
// are, and of days. It prints how long it takes until a day is gone, how many parts
// there are when merges have ended, and what a look-up by key and a question with
// FINAL take then.
func BenchmarkDropADay(b *testing.B) {
	db := open(b)
	const days, perInsert, inserts = 60, 8334, 4
	exec := func(sql string) { b.Helper(); query(b, db, sql) }
	took := func(sql string) float64 {
		b.Helper()
		least := time.Hour
		for range 5 {
			start := time.Now()
			exec(sql)
			least = min(least, time.Since(start))
		}
		return float64(least.Microseconds()) / 1000
	}
	for name, partition := range map[string]string{"months": "toYYYYMM(ts)", "days": "toDate(ts)"} {
		b.Run(name, func(b *testing.B) {
			table := "{db}.by_" + name
			create := query(b, db, "SELECT create_table_query FROM system.tables WHERE database = '{db}' AND name = 'records' FORMAT TSVRaw")
			create = strings.Replace(create, ".records", ".by_"+name, 1)
			create = strings.Replace(create, "PARTITION BY toYYYYMM(ts)", "PARTITION BY "+partition, 1)
			exec(create)
			for day := range days {
				for part := range inserts {
					exec(fmt.Sprintf(`INSERT INTO %s (source, key, record_type, value_type, intent, ts, partition_id, position, bpmn_process_id, process_instance_key, received_at, lane, incarnation, stream_seq, stream_idx, extra)
						SELECT 'engine', n, 'EVENT', arrayElement(['JOB', 'PROCESS_INSTANCE', 'VARIABLE'], n %% 3 + 1), 'CREATED', toDateTime64('2025-10-01 00:00:00', 3, 'UTC') + INTERVAL %d DAY + toIntervalMillisecond(number * 2500) AS t, 1, n,
							concat('process-', toString(n %% 20)), toString(intDiv(n, 40)), now64(3), 0, 1, intDiv(n, 500), n %% 500, concat('{"a":', toString(cityHash64(n)), '}')
						FROM (SELECT number, number + %d AS n FROM numbers(%d))`, table, day, (day*inserts+part)*perInsert, perInsert))
				}
			}
			parts := func() string {
				return query(b, db, "SELECT count() FROM system.parts WHERE active AND database = '{db}' AND table = 'by_"+name+"'")
			}
			for before := ""; before != parts(); time.Sleep(2 * time.Second) { // merges have ended
				before = parts()
			}
			var n float64
			fmt.Sscan(parts(), &n)
			b.ReportMetric(n, "parts")
			b.ReportMetric(took("SELECT count() FROM "+table+" WHERE key = 1234567"), "key-ms")
			b.ReportMetric(took("SELECT count(), uniq(process_instance_key) FROM "+table+" FINAL WHERE value_type = 'JOB'"), "final-ms")
			drop := "ALTER TABLE " + table + " DELETE IN PARTITION 202510 WHERE toDate(ts) = '2025-10-11' SETTINGS mutations_sync = 2"
			if name == "days" {
				drop = "ALTER TABLE " + table + " DROP PARTITION '2025-10-11'"
			} else {
				start := time.Now()
				exec("DELETE FROM " + table + " WHERE toDate(ts) = '2025-10-12' SETTINGS lightweight_deletes_sync = 2")
				b.ReportMetric(float64(time.Since(start).Milliseconds()), "masked-ms")
			}
			start := time.Now()
			exec(drop)
			b.ReportMetric(float64(time.Since(start).Milliseconds()), "gone-ms")
			b.ReportMetric(0, "ns/op")
			if left := query(b, db, "SELECT count() FROM "+table+" WHERE toDate(ts) = '2025-10-11'"); left != "0" {
				b.Errorf("%s rows are left", left)
			}
		})
	}
}
