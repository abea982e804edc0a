package warehouse

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/native"
)

// Subject is process instances of one engine to forget.
type Subject struct {
	Source string   `json:"source"`
	Keys   []string `json:"instances"` // processInstanceKey, sorted
}

// keysAtOnce bounds the keys in one statement.
const keysAtOnce = 1000

// chunks calls f with parts of the Subject that are small enough to list all keys in a statement.
func (s Subject) chunks(f func(Subject) error) error {
	for keys := range slices.Chunk(s.Keys, keysAtOnce) {
		if err := f(Subject{s.Source, keys}); err != nil {
			return err
		}
	}
	return nil
}

// SubjectsOf returns an instance and those that it called, whose variables are copies: of every
// engine with this key if source is empty.
func (db *DB) SubjectsOf(ctx context.Context, source, key string) ([]Subject, error) {
	return db.subjects(ctx, source, fmt.Sprintf(
		"SELECT source, process_instance_key FROM %[1]s.records WHERE process_instance_key = %[2]s GROUP BY ALL UNION DISTINCT SELECT source, process_instance_key FROM %[1]s.v_process_instances WHERE process_instance_key = %[2]s",
		db.name, quote(key)))
}

// SubjectsWith returns the instances in which a variable ever had a value, and those that they
// called. The value is JSON, or a text without quotes. It is kept out of ClickHouse's logs.
func (db *DB) SubjectsWith(ctx context.Context, source, name, value string) ([]Subject, error) {
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"log_queries": 0}))
	values := fmt.Sprintf("(%s, toJSONString(%s))", quote(value), quote(value))
	return db.subjects(ctx, source, fmt.Sprintf(
		`SELECT source, process_instance_key FROM %[1]s.records
		WHERE value_type = 'VARIABLE' AND JSONExtractString(extra, 'name') = %[2]s AND JSONExtractString(extra, 'value') IN %[3]s
			AND process_instance_key NOT IN ('', '-1', '0') GROUP BY ALL
		UNION DISTINCT SELECT source, process_instance_key FROM %[1]s.v_variables
		WHERE name = %[2]s AND (first_value IN %[3]s OR value IN %[3]s) AND process_instance_key NOT IN ('', '-1', '0')`, db.name, quote(name), values))
}

func (db *DB) subjects(ctx context.Context, source, query string) ([]Subject, error) {
	found := map[string][]string{}
	known := map[[2]string]bool{}
	add := func(rows driver.Rows) error {
		var of, key string
		err := rows.Scan(&of, &key)
		if id := [2]string{of, key}; (source == "" || source == of) && !known[id] {
			known[id] = true
			found[of] = append(found[of], key)
		}
		return err
	}
	if err := db.each(ctx, "look for the instances", query, nil, add); err != nil {
		return nil, err
	}
	var all []Subject
	for of := range found {
		for asked := 0; asked < len(found[of]); { // instances called by those found last
			callers := found[of][asked:min(len(found[of]), asked+keysAtOnce)]
			asked += len(callers)
			if err := db.each(ctx, "look for called instances", fmt.Sprintf(
				"SELECT source, process_instance_key FROM %s.v_process_instances WHERE source = %s AND parent_process_instance_key IN (%s)",
				db.name, quote(of), quotes(callers)), nil, add); err != nil {
				return nil, err
			}
		}
		slices.Sort(found[of])
		all = append(all, Subject{of, found[of]})
	}
	slices.SortFunc(all, func(a, b Subject) int { return strings.Compare(a.Source, b.Source) })
	return all, nil
}

func quotes(texts []string) string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = quote(text)
	}
	return strings.Join(all, ", ")
}

// LastOf returns the latest timestamp of the instances' records, ms since 1970.
func (db *DB) LastOf(ctx context.Context, s Subject) (last int64, err error) {
	return last, s.chunks(func(s Subject) error {
		var some int64
		err := db.row(ctx, "look for the last record of the instances", fmt.Sprintf("SELECT toUnixTimestamp64Milli(max(ts)) FROM %s.records WHERE %s", db.name, s.rows()), nil, &some)
		last = max(last, some)
		return err
	})
}

// Running returns the instances that have not ended.
func (db *DB) Running(ctx context.Context, s Subject) (keys []string, err error) {
	return keys, s.chunks(func(s Subject) error {
		return db.each(ctx, "look whether the instances have ended", fmt.Sprintf(
			"SELECT process_instance_key FROM %s.v_process_instances WHERE %s AND state = 'ACTIVE' ORDER BY 1",
			db.name, s.rows()), nil, func(rows driver.Rows) error {
			var key string
			err := rows.Scan(&key)
			keys = append(keys, key)
			return err
		})
	})
}

// rows is a condition for rows of the instances.
func (s Subject) rows() string {
	return fmt.Sprintf("source = %s AND process_instance_key IN (%s)", quote(s.Source), quotes(s.Keys))
}

// mentions is a condition for rows of the instances up to a time, and for rows without instance that
// name one: batches of jobs, messages, rejected commands. It agrees with record.Forgets: a key is a
// whole run of digits anywhere except in the member sequence, whose range keys share; a key that is
// not a number is any part of a text.
func (s Subject) mentions(before int64) string {
	var numbers []string
	named := []string{"0"}
	for _, key := range s.Keys {
		if strings.Trim(key, "0123456789") == "" {
			numbers = append(numbers, key)
		} else {
			named = append(named, fmt.Sprintf("position(%s, %s) > 0", native.Said, quote(key)))
		}
	}
	if len(numbers) > 0 {
		named = append(named, fmt.Sprintf("hasAny(extractAll(%s, '[0-9]+'), [%s])", native.Said, quotes(numbers)))
	}
	return fmt.Sprintf(`source = %s AND ts <= fromUnixTimestamp64Milli(%d, 'UTC') AND (process_instance_key IN (%s) OR process_instance_key IN ('', '-1', '0') AND (%s))`,
		quote(s.Source), before, quotes(s.Keys), strings.Join(named, " OR "))
}

const forgottenColumns = "receipt, source, identity, key, record_type, value_type, intent, ts, partition_id, position, received_at, stored_at, lane, incarnation, stream_seq, stream_idx"

// Note records the places in flow.records of the rows of a Subject that a receipt removes, except
// rows of messages yet to be stored: afterwards they may be removed. It is idempotent.
func (db *DB) Note(ctx context.Context, receipt string, s Subject, before int64, unsettled []Start) error {
	return s.chunks(func(s Subject) error {
		return db.noteForgotten(ctx, receipt, s.mentions(before)+" AND "+olderThan(unsettled))
	})
}

func (db *DB) noteForgotten(ctx context.Context, receipt, where string) error {
	_, columns, _ := strings.Cut(forgottenColumns, ", ")
	if err := db.storeEverywhere(ctx, fmt.Sprintf("INSERT INTO %[1]s.forgotten (%[2]s) SELECT %[3]s, %[4]s FROM %[1]s.records WHERE %[5]s",
		db.name, forgottenColumns, quote(receipt), columns, where)); err != nil {
		return storeError("record the places to forget", err)
	}
	return nil
}

// ForgottenPlaces are the places of an incarnation of a lane whose rows a receipt removed.
func (db *DB) ForgottenPlaces(ctx context.Context, lane int, incarnation uint64) (map[Place]bool, error) {
	places := map[Place]bool{}
	return places, db.each(ctx, "read which records are forgotten", fmt.Sprintf(
		"SELECT DISTINCT stream_seq, stream_idx FROM %s.forgotten WHERE lane = ? AND incarnation = ?", db.name),
		[]any{lane, incarnation}, func(rows driver.Rows) error {
			var p Place
			err := rows.Scan(&p.Seq, &p.Idx)
			places[p] = true
			return err
		})
}

// ForgottenLane counts the forgotten records of an incarnation of a lane.
type ForgottenLane struct {
	Lane        uint16 `json:"lane"`
	Incarnation uint64 `json:"incarnation"`
	Records     uint64 `json:"records"`
	Last        uint64 `json:"last"` // message with one of them
}

// Forgotten returns the effect of a receipt on flow.records: counts by lane, and the days of the
// records.
func (db *DB) Forgotten(ctx context.Context, receipt string) (lanes []ForgottenLane, days []string, err error) {
	err = db.each(ctx, "count forgotten records", fmt.Sprintf(
		"SELECT lane, incarnation, uniqExact(stream_seq, stream_idx), max(stream_seq) FROM %s.forgotten WHERE receipt = ? GROUP BY lane, incarnation ORDER BY lane, incarnation", db.name),
		[]any{receipt}, func(rows driver.Rows) error {
			var l ForgottenLane
			err := rows.Scan(&l.Lane, &l.Incarnation, &l.Records, &l.Last)
			lanes = append(lanes, l)
			return err
		})
	if err != nil {
		return nil, nil, err
	}
	return lanes, days, db.each(ctx, "find the days of forgotten records", fmt.Sprintf("SELECT DISTINCT toDate(ts) AS day FROM %s.forgotten WHERE receipt = ? ORDER BY day", db.name),
		[]any{receipt}, func(rows driver.Rows) error {
			var day time.Time
			err := rows.Scan(&day)
			days = append(days, day.Format(time.DateOnly))
			return err
		})
}

// ForgottenBefore counts the forgotten records of messages before a sequence of an incarnation of a
// lane, stored after the expiry line.
func (db *DB) ForgottenBefore(ctx context.Context, lane int, incarnation, before uint64, line string) (n uint64, err error) {
	return n, db.row(ctx, "count forgotten records", fmt.Sprintf(
		"SELECT uniqExact(stream_seq, stream_idx) FROM %s.forgotten WHERE lane = ? AND incarnation = ? AND stream_seq < ? AND %s", db.name, storedAfter(line)),
		[]any{lane, incarnation, before}, &n)
}

// RowsOf counts the rows of a Subject in every aggregate table.
func (db *DB) RowsOf(ctx context.Context, receipt string, s Subject) (map[string]uint64, error) {
	counts := map[string]uint64{}
	return counts, db.eachAggregate(ctx, receipt, s, func(table, of string) error {
		var rows uint64
		err := db.row(ctx, "count rows of "+table, fmt.Sprintf("SELECT count() FROM %s.%s WHERE %s", db.name, table, of), nil, &rows)
		counts[table] += rows
		return err
	})
}

// Remove removes a Subject from flow.records, as recorded for the receipt, and from every aggregate
// table. It rewrites only parts with such rows, and is idempotent.
func (db *DB) Remove(ctx context.Context, receipt string, s Subject) error {
	d := db.plain()
	err := db.eachAggregate(ctx, receipt, s, func(table, of string) error {
		var rows uint64
		if err := db.row(ctx, "count rows of "+table, fmt.Sprintf("SELECT count() FROM %s.%s WHERE %s", db.name, table, of), nil, &rows); err != nil || rows == 0 {
			return err
		}
		if err := db.everywhere(ctx, fmt.Sprintf("ALTER TABLE %s%s DELETE WHERE %s SETTINGS mutations_sync = 2, allow_nondeterministic_mutations = 1", d.Table(table), d.OnCluster(), of)); err != nil {
			return storeError("remove the instances from "+table, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var months []uint32
	err = db.each(ctx, "find the months of forgotten records", fmt.Sprintf("SELECT DISTINCT toYYYYMM(ts) AS month FROM %s.forgotten WHERE receipt = ? ORDER BY month", db.name),
		[]any{receipt}, func(rows driver.Rows) error {
			var month uint32
			err := rows.Scan(&month)
			months = append(months, month)
			return err
		})
	for _, month := range months {
		if err != nil {
			break
		}
		where := fmt.Sprintf("source = %[1]s AND toDate(ts) IN (SELECT toDate(ts) FROM %[2]s.forgotten WHERE receipt = %[3]s) AND (lane, incarnation, stream_seq, stream_idx) IN (SELECT lane, incarnation, stream_seq, stream_idx FROM %[2]s.forgotten WHERE receipt = %[3]s)",
			quote(s.Source), db.name, quote(receipt))
		var rows uint64
		if err = db.row(ctx, "count records", fmt.Sprintf("SELECT count() FROM %s.records WHERE toYYYYMM(ts) = %d AND %s", db.name, month, where), nil, &rows); err != nil || rows == 0 {
			continue
		}
		if err = db.everywhere(ctx, fmt.Sprintf("ALTER TABLE %s%s DELETE IN PARTITION %d WHERE %s SETTINGS mutations_sync = 2, allow_nondeterministic_mutations = 1", d.Table("records"), d.OnCluster(), month, where)); err != nil {
			err = storeError("remove the records of the instances", err)
		}
	}
	return err
}

// eachAggregate calls f with every aggregate table that has rows of instances, or of records without
// one, such as messages, and a condition for those of the Subject. The latter follow their records by
// value type and key.
func (db *DB) eachAggregate(ctx context.Context, receipt string, s Subject, f func(table, of string) error) error {
	all := map[string][]string{}
	err := db.each(ctx, "find tables of instances", `
		SELECT replaceRegexpOne(c.table, '_local$', ''), groupArray(c.name) FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
		WHERE c.database = ? AND t.engine LIKE '%AggregatingMergeTree' AND c.name IN ('process_instance_key', 'value_type', 'key') GROUP BY c.table ORDER BY c.table`,
		[]any{db.name}, func(rows driver.Rows) error {
			var table string
			var columns []string
			err := rows.Scan(&table, &columns)
			all[table] = columns
			return err
		})
	if err != nil {
		return err
	}
	for _, table := range slices.Sorted(maps.Keys(all)) {
		var none string // rows without instance
		if slices.Contains(all[table], "process_instance_key") {
			none = "process_instance_key IN ('', '-1', '0') AND "
			if err := s.chunks(func(s Subject) error { return f(table, s.rows()) }); err != nil {
				return err
			}
		}
		if slices.Contains(all[table], "value_type") && slices.Contains(all[table], "key") {
			of := fmt.Sprintf("source = %[1]s AND %[2]s(value_type, key) IN (SELECT value_type, key FROM %[3]s.forgotten WHERE receipt = %[4]s AND source = %[1]s)", quote(s.Source), none, db.name, quote(receipt))
			if err := f(table, of); err != nil {
				return err
			}
		}
	}
	return nil
}

// WriteReceipt stores a receipt; done is zero until it is complete.
func (db *DB) WriteReceipt(ctx context.Context, id string, begun, done time.Time, receipt string) error {
	if done.IsZero() {
		done = time.UnixMilli(0)
	}
	err := db.storeEverywhere(ctx, fmt.Sprintf("INSERT INTO %s.receipts (id, begun_at, done_at, changed, receipt) VALUES (%s, fromUnixTimestamp64Milli(%d, 'UTC'), fromUnixTimestamp64Milli(%d, 'UTC'), %d, %s)",
		db.name, quote(id), begun.UnixMilli(), done.UnixMilli(), time.Now().UnixNano(), quote(receipt)))
	if err != nil {
		return storeError("write the receipt", err)
	}
	return nil
}

// Receipts returns all receipts, oldest first.
func (db *DB) Receipts(ctx context.Context) (all []Receipt, err error) {
	return all, db.each(ctx, "read the receipts", fmt.Sprintf(
		"SELECT id, argMax(receipt, changed), max(done_at) > toDateTime64(0, 3, 'UTC') FROM %s.receipts GROUP BY id ORDER BY min(begun_at), id", db.name),
		nil, func(rows driver.Rows) error {
			var r Receipt
			err := rows.Scan(&r.ID, &r.Text, &r.Done)
			all = append(all, r)
			return err
		})
}

// Receipt is a stored receipt.
type Receipt struct {
	ID   string
	Text string // JSON
	Done bool
}

// RecordsOf counts the records that Note would record.
func (db *DB) RecordsOf(ctx context.Context, s Subject, before int64, unsettled []Start) (n uint64, err error) {
	return n, s.chunks(func(s Subject) error {
		var some uint64
		err := db.row(ctx, "count the records of the instances", fmt.Sprintf(
			"SELECT count() FROM %s.records WHERE %s AND %s", db.name, s.mentions(before), olderThan(unsettled)), nil, &some)
		n += some
		return err
	})
}
