package warehouse

import (
	"context"
	"fmt"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
)

// Copy copies the rows of the live table that are older than the plan, or of other incarnations, which feeds
// the aggregate tables and counters. It goes month by month and records the start and end of each: a month
// that was begun and not finished is removed and copied again.
func (s *Shadow) Copy(ctx context.Context, plan []Start, progress func(done, total uint64)) error {
	older := olderThan(plan)
	months, counts, err := s.months(ctx, older)
	if err != nil {
		return err
	}
	begun, done := map[uint32]bool{}, map[uint32]bool{}
	err = s.each(ctx, "read the progress of the copy", fmt.Sprintf("SELECT month, done FROM %s.rebuild_months", s.name), nil, func(rows driver.Rows) error {
		var month uint32
		var is uint8
		err := rows.Scan(&month, &is)
		begun[month] = true
		done[month] = done[month] || is == 1
		return err
	})
	if err != nil {
		return err
	}
	var total, copied uint64
	for _, n := range counts {
		total += n
	}
	for _, month := range months {
		if !done[month] {
			if err := s.copyMonth(ctx, month, older, begun[month]); err != nil {
				return fmt.Errorf("copy the records of %d: %w", month, err)
			}
		}
		copied += counts[month]
		progress(copied, total)
	}
	return s.gone(ctx, older)
}

// gone adds rows to flow.sources of the shadow for rows that have expired or were forgotten: a lane halts if
// flow.sources counts fewer rows than the lane has stored. It is idempotent before the replay begins. Records
// are counted first, so that rows inserted meanwhile may count twice but are never missed.
func (s *Shadow) gone(ctx context.Context, older string) error {
	var replayed uint64
	if err := s.row(ctx, "check whether the replay has begun", fmt.Sprintf("SELECT count() FROM %s.rebuild", s.name), nil, &replayed); err != nil || replayed > 0 {
		return err
	}
	const key = "source, partition_id, day, lane, incarnation"
	there, d := s.name+".rebuild_there", s.plain()
	if err := s.everywhere(ctx, fmt.Sprintf("TRUNCATE TABLE %s%s", there, d.OnCluster())); err != nil {
		return fmt.Errorf("empty the table rebuild_there: %w", err)
	}
	inserting, err := s.storing(ctx, clickhouse.Settings{"insert_deduplicate": 0, "max_partitions_per_insert_block": 0})
	if err != nil {
		return err
	}
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO %s SELECT source, if(identity = '', partition_id, 0) AS p, toDate(ts) AS d, lane, incarnation, toInt64(count())
			FROM %s.records WHERE NOT (%s) GROUP BY source, p, d, lane, incarnation`, there, s.live.name, older),
		fmt.Sprintf(`INSERT INTO %[1]s.sources (%[4]s, first_position, last_position, first_ts, last_ts, received_at, last_seq, rows)
			SELECT %[4]s, min(a), max(b), min(c), max(d), max(e), max(f), toUInt64(sum(n)) FROM (
				SELECT %[4]s, first_position AS a, last_position AS b, first_ts AS c, last_ts AS d, received_at AS e, last_seq AS f, toInt64(rows) AS n FROM %[2]s.sources
				UNION ALL SELECT %[4]s, NULL, NULL, NULL, NULL, fromUnixTimestamp64Milli(0, 'UTC'), 0, -toInt64(rows) FROM %[1]s.sources
				UNION ALL SELECT %[4]s, NULL, NULL, NULL, NULL, fromUnixTimestamp64Milli(0, 'UTC'), 0, -n FROM %[3]s)
			GROUP BY %[4]s HAVING sum(n) > 0`, s.name, s.live.name, there, key),
	} {
		if err := s.exec(inserting, statement); err != nil {
			return storeError("count rows that are gone", err)
		}
	}
	return nil
}

// olderThan is a condition for rows before a plan's starts.
func olderThan(plan []Start) string {
	var newer []string
	for _, p := range plan {
		newer = append(newer, fmt.Sprintf("(lane = %d AND incarnation = %d AND stream_seq >= %d)", p.Lane, p.Incarnation, p.First))
	}
	return "NOT (" + strings.Join(append(newer, "0"), " OR ") + ")"
}

func (s *Shadow) months(ctx context.Context, older string) (months []uint32, counts map[uint32]uint64, err error) {
	counts = map[uint32]uint64{}
	return months, counts, s.each(ctx, "count older rows", fmt.Sprintf(
		"SELECT toYYYYMM(ts) AS month, count() FROM %s.records WHERE %s GROUP BY month ORDER BY month", s.live.name, older), nil, func(rows driver.Rows) error {
		var month uint32
		var n uint64
		err := rows.Scan(&month, &n)
		months, counts[month] = append(months, month), n
		return err
	})
}

// CopyExpired copies what cannot be recomputed, because records up to the expiry line may be gone: counters, and
// aggregates, which tolerate a record twice. It is idempotent.
func (s *Shadow) CopyExpired(ctx context.Context, line string) error {
	if line == "" {
		return nil
	}
	d := s.plain()
	if err := s.everywhere(ctx, fmt.Sprintf("ALTER TABLE %s%s DELETE WHERE stored_day <= %s SETTINGS mutations_sync = 2", d.Table("counts_1m"), d.OnCluster(), quote(line))); err != nil {
		return fmt.Errorf("remove the counters of days that may have expired: %w", err)
	}
	names, err := s.written(ctx)
	if err != nil {
		return err
	}
	inserting, err := s.storing(ctx, clickhouse.Settings{"insert_deduplicate": 0, "max_partitions_per_insert_block": 0})
	if err != nil {
		return err
	}
	for _, name := range names {
		name, where := strings.TrimSuffix(name, "_local"), ""
		switch name {
		case "records", "sources": // Copy has done these
			continue
		case "counts_1m":
			where = " WHERE stored_day <= " + quote(line)
		}
		columns, err := s.live.columns(ctx, name)
		if err != nil {
			return err
		}
		from := columns
		if name == "process_instances" { // the business key of an instance that has records may be another one by now
			from = strings.Replace(columns, "business_key", fmt.Sprintf("if((source, process_instance_key) GLOBAL IN (SELECT source, process_instance_key FROM %s.records), '', business_key)", s.live.name), 1)
		}
		if err := s.exec(inserting, fmt.Sprintf("INSERT INTO %s.%s (%s) SELECT %s FROM %s.%[2]s%[6]s", s.name, name, columns, from, s.live.name, where)); err != nil {
			return storeError("copy what may have expired to "+name, err)
		}
	}
	return nil
}

// columns are the columns of a table that an insert writes, with commas between.
func (db *DB) columns(ctx context.Context, table string) (list string, err error) {
	err = db.row(ctx, "read the columns of "+table, "SELECT arrayStringConcat(groupArray(name), ', ') FROM system.columns WHERE database = ? AND table = ? AND default_kind = ''", []any{db.name, table}, &list)
	return list, err
}

func (s *Shadow) copyMonth(ctx context.Context, month uint32, older string, begun bool) error {
	d := s.plain()
	if begun {
		// Aggregates tolerate a record twice; counters do not.
		for _, statement := range []string{
			fmt.Sprintf("ALTER TABLE %s%s DROP PARTITION %d", d.Table("records"), d.OnCluster(), month),
			fmt.Sprintf("ALTER TABLE %s%s DROP PARTITION %d", d.Table("counts_1m"), d.OnCluster(), month),
			fmt.Sprintf("ALTER TABLE %s%s DELETE WHERE toYYYYMM(day) = %d SETTINGS mutations_sync = 2", d.Table("sources"), d.OnCluster(), month),
		} {
			if err := s.everywhere(ctx, statement); err != nil {
				return err
			}
		}
	}
	if err := s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild_months (month, done) VALUES (?, 0)", s.name), month); err != nil {
		return err
	}
	list, err := s.live.columns(ctx, "records")
	if err != nil {
		return err
	}
	inserting, err := s.storing(ctx, clickhouse.Settings{"insert_deduplicate": 0, "optimize_on_insert": 0, "max_partitions_per_insert_block": 0})
	if err != nil {
		return err
	}
	if err := s.exec(inserting, fmt.Sprintf("INSERT INTO %[1]s.records (%[3]s) SELECT %[3]s FROM %[2]s.records WHERE toYYYYMM(ts) = %[4]d AND %[5]s",
		s.name, s.live.name, list, month, older)); err != nil {
		return err
	}
	// Copied. A crash here removes the month and copies it again.
	return s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild_months (month, done) VALUES (?, 1)", s.name), month)
}
