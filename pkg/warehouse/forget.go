package warehouse

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/native"
)

// Subject are process instances of one engine that are to be forgotten.
type Subject struct {
	Source string   `json:"source"`
	Keys   []string `json:"instances"` // processInstanceKey, sorted
}

// keysAtOnce bounds the keys in one statement.
const keysAtOnce = 1000

// chunks calls f with the Subject in pieces that are small enough for a statement to
// name every key.
func (s Subject) chunks(f func(Subject) error) error {
	for keys := range slices.Chunk(s.Keys, keysAtOnce) {
		if err := f(Subject{s.Source, keys}); err != nil {
			return err
		}
	}
	return nil
}

// SubjectsOf are an instance and those that it called, whose variables are
// copies: of every engine that has one of this key when source is empty.
func (db *DB) SubjectsOf(ctx context.Context, source, key string) ([]Subject, error) {
	return db.subjects(ctx, source, fmt.Sprintf(
		"SELECT source, process_instance_key FROM %[1]s.records WHERE process_instance_key = %[2]s GROUP BY ALL UNION DISTINCT SELECT source, process_instance_key FROM %[1]s.v_process_instances WHERE process_instance_key = %[2]s",
		db.name, quote(key)))
}

// SubjectsWith are the instances in which a variable ever had a value, and those
// that they called. The value is JSON, or a text without its quotes. It goes into
// no log of ClickHouse.
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
		for asked := 0; asked < len(found[of]); { // what was called by what was found last
			callers := found[of][asked:min(len(found[of]), asked+keysAtOnce)]
			asked += len(callers)
			if err := db.each(ctx, "look for called instances", fmt.Sprintf(
				"SELECT source, process_instance_key FROM %s.v_process_instances WHERE source = %s AND toString(parent_process_instance_key) IN (%s)",
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

// Running are those of the instances that have not ended.
func (db *DB) Running(ctx context.Context, s Subject) (keys []string, err error) {
	return keys, s.chunks(func(s Subject) error {
		return db.each(ctx, "look whether the instances have ended", fmt.Sprintf(
			"SELECT process_instance_key FROM %s.v_process_instances WHERE %s AND state IN ('ACTIVE', 'INCIDENT') ORDER BY 1",
			db.name, s.rows()), nil, func(rows driver.Rows) error {
			var key string
			err := rows.Scan(&key)
			keys = append(keys, key)
			return err
		})
	})
}

// rows is a condition for the rows of the instances.
func (s Subject) rows() string {
	return fmt.Sprintf("source = %s AND process_instance_key IN (%s)", quote(s.Source), quotes(s.Keys))
}

// mentions is a condition for these, and for rows of no instance that name one of
// them: batches of jobs, messages, commands that were refused. Numbers are looked
// for whole, also in columns that were members of extra before a migration, and not in
// the member sequence, which engines count in the same range as keys.
func (s Subject) mentions() string {
	keys := quotes(s.Keys)
	return fmt.Sprintf(`source = %s AND (process_instance_key IN (%s) OR process_instance_key IN ('', '-1', '0')
		AND (hasAny(extractAll(concat(replaceRegexpAll(extra, '"sequence":[0-9]+', ''), %s), '[0-9]+'), [%s]) OR hasAny(extractAll(variables, '[0-9]+'), [%s])))`, quote(s.Source), keys, native.Added, keys, keys)
}

const forgottenColumns = "receipt, source, identity, key, record_type, value_type, intent, ts, partition_id, position, received_at, lane, incarnation, stream_seq, stream_idx"

// Note writes down where the rows of a Subject stand in flow.records that go by a
// receipt, without rows of messages that are still to be stored. From then on their
// repeats are known by that. It may be repeated.
func (db *DB) Note(ctx context.Context, receipt string, s Subject, unsettled []Start) error {
	return s.chunks(func(s Subject) error {
		return db.noteForgotten(ctx, receipt, s.mentions()+" AND "+olderThan(unsettled))
	})
}

// NotePlaces does the same for some places of a life of a lane, and returns those
// that have a row.
func (db *DB) NotePlaces(ctx context.Context, receipt string, lane int, incarnation uint64, places []Place) (map[Place]bool, error) {
	found := map[Place]bool{}
	for some := range slices.Chunk(places, keysAtOnce) {
		var list []string
		for _, p := range some {
			list = append(list, fmt.Sprintf("(%d, %d)", p.Seq, p.Idx))
		}
		at := fmt.Sprintf("lane = %d AND incarnation = %d AND (stream_seq, stream_idx) IN (%s)", lane, incarnation, strings.Join(list, ", "))
		if err := db.noteForgotten(ctx, receipt, at); err != nil {
			return nil, err
		}
		if err := db.each(ctx, "read which records go", fmt.Sprintf("SELECT DISTINCT stream_seq, stream_idx FROM %s.forgotten WHERE %s", db.name, at), nil, addPlace(found)); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func addPlace(to map[Place]bool) func(driver.Rows) error {
	return func(rows driver.Rows) error {
		var p Place
		err := rows.Scan(&p.Seq, &p.Idx)
		to[p] = true
		return err
	}
}

func (db *DB) noteForgotten(ctx context.Context, receipt, where string) error {
	_, columns, _ := strings.Cut(forgottenColumns, ", ")
	if err := db.storeEverywhere(ctx, fmt.Sprintf("INSERT INTO %[1]s.forgotten (%[2]s) SELECT %[3]s, %[4]s FROM %[1]s.records WHERE %[5]s",
		db.name, forgottenColumns, quote(receipt), columns, where)); err != nil {
		return storeError("write down which records go", err)
	}
	return nil
}

// Noted are the places of a life of a lane, from a message on, whose rows go by a
// receipt.
func (db *DB) Noted(ctx context.Context, receipt string, lane int, incarnation, first uint64) (map[Place]bool, error) {
	places := map[Place]bool{}
	return places, db.each(ctx, "read which records go", fmt.Sprintf(
		"SELECT DISTINCT stream_seq, stream_idx FROM %s.forgotten WHERE receipt = ? AND lane = ? AND incarnation = ? AND stream_seq >= ?", db.name),
		[]any{receipt, lane, incarnation, first}, addPlace(places))
}

// ForgottenLane is how many records were forgotten of a life of a lane.
type ForgottenLane struct {
	Lane        uint16 `json:"lane"`
	Incarnation uint64 `json:"incarnation"`
	Records     uint64 `json:"records"`
	Last        uint64 `json:"last"` // message with one of them
}

// Forgotten is what a receipt takes of flow.records: how much of each lane, and
// the days of the records.
func (db *DB) Forgotten(ctx context.Context, receipt string) (lanes []ForgottenLane, days []string, err error) {
	err = db.each(ctx, "count what is forgotten", fmt.Sprintf(
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
	return lanes, days, db.each(ctx, "find the days of what is forgotten", fmt.Sprintf("SELECT DISTINCT toDate(ts) AS day FROM %s.forgotten WHERE receipt = ? ORDER BY day", db.name),
		[]any{receipt}, func(rows driver.Rows) error {
			var day time.Time
			err := rows.Scan(&day)
			days = append(days, day.Format(time.DateOnly))
			return err
		})
}

// ForgottenBefore counts the records that were forgotten of the messages before
// one of a life of a lane.
func (db *DB) ForgottenBefore(ctx context.Context, lane int, incarnation, before uint64) (n uint64, err error) {
	return n, db.row(ctx, "count what is forgotten", fmt.Sprintf(
		"SELECT uniqExact(stream_seq, stream_idx) FROM %s.forgotten WHERE lane = ? AND incarnation = ? AND stream_seq < ?", db.name),
		[]any{lane, incarnation, before}, &n)
}

// RowsOf counts what there is of a Subject in every fold.
func (db *DB) RowsOf(ctx context.Context, receipt string, s Subject) (map[string]uint64, error) {
	counts := map[string]uint64{}
	return counts, db.eachFold(ctx, receipt, s, func(fold, of string) error {
		var rows uint64
		err := db.row(ctx, "count rows of "+fold, fmt.Sprintf("SELECT count() FROM %s.%s WHERE %s", db.name, fold, of), nil, &rows)
		counts[fold] += rows
		return err
	})
}

// Remove removes a Subject from flow.records, as far as the receipt says, and from
// every fold. What is rewritten are the parts of the tables that hold such rows.
// It may be repeated.
func (db *DB) Remove(ctx context.Context, receipt string, s Subject) error {
	d := db.plain()
	err := db.eachFold(ctx, receipt, s, func(fold, of string) error {
		var rows uint64
		if err := db.row(ctx, "count rows of "+fold, fmt.Sprintf("SELECT count() FROM %s.%s WHERE %s", db.name, fold, of), nil, &rows); err != nil || rows == 0 {
			return err
		}
		if err := db.everywhere(ctx, fmt.Sprintf("ALTER TABLE %s%s DELETE WHERE %s SETTINGS mutations_sync = 2", d.Table(fold), d.OnCluster(), of)); err != nil {
			return storeError("remove the instances from "+fold, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var months []uint32
	err = db.each(ctx, "find the months of what is forgotten", fmt.Sprintf("SELECT DISTINCT toYYYYMM(ts) AS month FROM %s.forgotten WHERE receipt = ? ORDER BY month", db.name),
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

// eachFold calls f with every table that has rows of instances, but flow.records,
// and a condition for those of the Subject. Messages are of no instance: those go
// whose records do.
func (db *DB) eachFold(ctx context.Context, receipt string, s Subject, f func(fold, of string) error) error {
	var messages []string
	err := db.each(ctx, "find the messages of the instances", fmt.Sprintf("SELECT DISTINCT key FROM %s.forgotten WHERE receipt = ? AND source = ? AND value_type = 'MESSAGE'", db.name),
		[]any{receipt, s.Source}, func(rows driver.Rows) error {
			var key int64
			err := rows.Scan(&key)
			messages = append(messages, strconv.FormatInt(key, 10))
			return err
		})
	if err != nil {
		return err
	}
	var folds []string
	err = db.each(ctx, "look for tables of instances", `
		SELECT c.table FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
		WHERE c.database = ? AND c.name = 'process_instance_key' AND t.engine LIKE '%MergeTree' AND replaceRegexpOne(c.table, '_local$', '') != 'records' ORDER BY c.table`,
		[]any{db.name}, func(rows driver.Rows) error {
			var name string
			err := rows.Scan(&name)
			folds = append(folds, strings.TrimSuffix(name, "_local"))
			return err
		})
	if err != nil {
		return err
	}
	for _, fold := range folds {
		if err := s.chunks(func(s Subject) error { return f(fold, s.rows()) }); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(messages, keysAtOnce) {
		if err := f("waits", fmt.Sprintf("source = %s AND value_type = 'MESSAGE' AND key IN (%s)", quote(s.Source), strings.Join(some, ", "))); err != nil {
			return err
		}
	}
	return nil
}

// WriteReceipt keeps a receipt; done is zero as long as something may be left.
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

// Receipts are all receipts by their ids, as they were begun, the oldest first.
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

// Receipt is one as it is kept.
type Receipt struct {
	ID   string
	Text string // JSON
	Done bool
}

// RecordsOf counts the records that Note would note.
func (db *DB) RecordsOf(ctx context.Context, s Subject, unsettled []Start) (n uint64, err error) {
	return n, s.chunks(func(s Subject) error {
		var some uint64
		err := db.row(ctx, "count the records of the instances", fmt.Sprintf(
			"SELECT count() FROM %s.records WHERE %s AND %s", db.name, s.mentions(), olderThan(unsettled)), nil, &some)
		n += some
		return err
	})
}

// Retention is how long the rows of a table are kept after they came in.
type Retention struct {
	Table string
	Days  int // 0 for ever
}

// received are the tables whose rows say when they came in, with the column
// that does. Of folds a row is made of many that came in at different times:
// to remove some of these would leave half of a thing, such as an instance
// that never ended.
var received = []struct {
	table, column string
	whole         int // 1 when rows go with the whole part they are in, and nothing is rewritten
}{
	{"records", "toDateTime(received_at)", 1},
	{"counts_1m", "received_at", 1},
	{"changes", "toDateTime(changed_at)", 0}, // few, and in one part for ever
}

// leastDays is more than lanes keep what is stored, which verify compares with
// the rows; mostDays is what a time of ClickHouse can be added to.
const (
	leastDays = 2
	mostDays  = 10_000
)

// Retentions are those of the tables as they are now.
func (db *DB) Retentions(ctx context.Context) ([]Retention, error) {
	var all []Retention
	for _, t := range received {
		days, err := db.days(ctx, t.table)
		if err != nil {
			return nil, err
		}
		all = append(all, Retention{t.table, days})
	}
	return all, nil
}

var intervalDays = regexp.MustCompile(`\bTTL .*toIntervalDay\((\d+)\)`)

// days reads how long a table keeps its rows.
func (db *DB) days(ctx context.Context, table string) (int, error) {
	var engine string
	err := db.row(ctx, "read the retention of "+table, "SELECT engine_full FROM system.tables WHERE concat(database, '.', name) = ?", []any{db.local(table)}, &engine)
	if err != nil {
		return 0, err
	}
	m := intervalDays.FindStringSubmatch(engine)
	if m == nil {
		return 0, nil
	}
	return strconv.Atoi(m[1])
}

// local is the table that holds the rows on each server.
func (db *DB) local(table string) string {
	if table == "changes" { // on every server whole
		return db.name + "." + table
	}
	return db.plain().Table(table)
}

// Retain sets how long rows of a table are kept. To set it rewrites nothing: of
// what is there only the column with the time is read.
func (db *DB) Retain(ctx context.Context, r Retention) error {
	column, whole := "", 0
	for _, t := range received {
		if t.table == r.Table {
			column, whole = t.column, t.whole
		}
	}
	switch {
	case column == "":
		return fmt.Errorf("%s has no retention: its rows do not say when they came in", r.Table)
	case r.Days != 0 && (r.Days < leastDays || r.Days > mostDays):
		return fmt.Errorf("%s cannot keep rows for %d days: at least %d, since lanes and verify count on them so long, and at most %d", r.Table, r.Days, leastDays, mostDays)
	}
	now, err := db.days(ctx, r.Table)
	if err != nil || now == r.Days {
		return err
	}
	alter := fmt.Sprintf("ALTER TABLE %s%s ", db.local(r.Table), db.plain().OnCluster())
	if now > 0 && (r.Days == 0 || r.Days > now) {
		// What has expired until now does not come back: verify has to know. A
		// crash behind this leaves a note that is true.
		gone, err := db.expired(ctx, r.Table)
		if err != nil {
			return err
		}
		if until := time.Now().AddDate(0, 0, -now); until.After(gone) {
			if err := db.everywhere(ctx, alter+"MODIFY COMMENT "+quote(expiredBefore+until.UTC().Format(time.RFC3339))); err != nil {
				return fmt.Errorf("note what has expired of %s: %w", r.Table, err)
			}
		}
	}
	if r.Days == 0 {
		return db.everywhere(ctx, alter+"REMOVE TTL")
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY SETTING materialize_ttl_recalculate_only = 1, ttl_only_drop_parts = %d", alter, whole)); err != nil {
		return fmt.Errorf("prepare %s: %w", r.Table, err)
	}
	if err := db.everywhere(ctx, fmt.Sprintf("%sMODIFY TTL %s + INTERVAL %d DAY DELETE SETTINGS mutations_sync = 2", alter, column, r.Days)); err != nil {
		return fmt.Errorf("set the retention of %s: %w", r.Table, err)
	}
	return nil
}

// expiredBefore begins the comment of a table whose retention was made longer:
// of what came in before, rows may be gone.
const expiredBefore = "rows may have expired that came in before "

// expired is until when the rows of a table may have come in that expired under
// an earlier, shorter retention; zero when there was none.
func (db *DB) expired(ctx context.Context, table string) (time.Time, error) {
	var comment string
	err := db.row(ctx, "read what has expired of "+table, "SELECT comment FROM system.tables WHERE concat(database, '.', name) = ?", []any{db.local(table)}, &comment)
	if err != nil {
		return time.Time{}, err
	}
	text, is := strings.CutPrefix(comment, expiredBefore)
	if !is {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339, text)
}

// Kept is how long a row of records and what is counted of it are surely kept:
// a little less than their retention, since clocks differ.
func (db *DB) Kept(ctx context.Context) (time.Duration, error) {
	kept := time.Duration(math.MaxInt64)
	for _, table := range []string{"records", "counts_1m"} {
		days, err := db.days(ctx, table)
		if err != nil {
			return 0, err
		}
		if days > 0 {
			kept = min(kept, time.Duration(days)*24*time.Hour)
		}
		gone, err := db.expired(ctx, table)
		if err != nil {
			return 0, err
		}
		if !gone.IsZero() {
			kept = min(kept, time.Since(gone))
		}
	}
	return kept / 40 * 39, nil
}
