package warehouse

import "fmt"

// Recount are the statements that count the records of a day again, for people
// to run while nothing is inserted. Records that were sent more than once then
// count once.
func (db *DB) Recount(day string) string {
	d := dialect{Database: db.name, Cluster: db.cfg.Cluster}
	return fmt.Sprintf(`  ALTER TABLE %[1]s%[2]s DELETE WHERE toDate(minute) = '%[3]s' SETTINGS mutations_sync = 2;
  INSERT INTO %[4]s.counts_1m SELECT r.source AS source, toStartOfMinute(ts) AS minute, tenant_id, value_type, record_type, intent, bpmn_process_id,
      ifNull(r.version, 0) AS version, count() AS records, toDateTime(max(r.received_at), 'UTC') AS received_at
    FROM %[4]s.records AS r FINAL WHERE toDate(ts) = '%[3]s'
    GROUP BY source, minute, tenant_id, value_type, record_type, intent, bpmn_process_id, version;`,
		d.Table("counts_1m"), d.OnCluster(), day, db.name)
}
