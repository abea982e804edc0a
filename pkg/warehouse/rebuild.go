package warehouse

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/native"
)

// Shadow is a second database with the same schema, into which the history of the lanes is inserted
// block by block. Each block is claimed in a table of the shadow before it is inserted, so that an
// interrupted rebuild retries it under its token.
type Shadow struct {
	*DB
	live *DB
}

// Shadow returns a database beside this one, over its connections: only this one must be closed.
func (db *DB) Shadow(name string) (*Shadow, error) {
	if !identifier.MatchString(name) {
		return nil, fmt.Errorf("%q is not a plain database name", name)
	}
	if name == db.name {
		return nil, fmt.Errorf("database %s is in use: choose another for the rebuild", name)
	}
	// The same connections: every statement names its database.
	shadow := &DB{cfg: db.cfg, name: name, log: db.log, metrics: db.metrics, queries: db.queries, inserts: db.inserts, servers: db.servers}
	shadow.attempts.Store(time.Now().UnixNano())
	return &Shadow{DB: shadow, live: db}, nil
}

func (s *Shadow) Live() *DB { return s.live }

// Prepare creates the schema, with the retention of the live tables. It fails if the database is used for
// anything else.
func (s *Shadow) Prepare(ctx context.Context) error {
	is, err := s.live.applied(ctx)
	if err != nil {
		return err
	}
	s.cfg.BusinessKey = is.objects[businessRow]
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	kept, err := s.live.Retentions(ctx)
	if err != nil {
		return err
	}
	for _, r := range kept {
		if err := s.Retain(ctx, r); err != nil {
			return err
		}
	}
	d, err := s.server(ctx)
	if err != nil {
		return err
	}
	for name, columns := range map[string]string{
		"rebuild_plan":   "(lane UInt16, incarnation UInt64, first UInt64) ORDER BY lane",
		"rebuild_there":  "(source String, partition_id Int64, day Date, lane UInt16, incarnation UInt64, n Int64) ORDER BY lane",
		"rebuild_months": "(month UInt32, done UInt8) ORDER BY (month, done)",
		"rebuild":        "(lane UInt16, first UInt64, last UInt64, token String, dropped String, claimed_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')) ORDER BY (lane, first)",
	} {
		columns, order, _ := strings.Cut(columns, " ORDER BY ")
		if err := s.everywhere(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s%s %s ENGINE = %s ORDER BY %s SETTINGS %s",
			s.name, name, d.OnCluster(), columns, d.EngineEverywhere("MergeTree", name), order, d.Durable())); err != nil {
			return fmt.Errorf("create table %s: %w", name, err)
		}
	}
	var plan, rows uint64
	err = s.row(ctx, "look into the shadow", fmt.Sprintf("SELECT (SELECT count() FROM %[1]s.rebuild_plan), (SELECT count() FROM %[1]s.records)", s.name), nil, &plan, &rows)
	if err == nil && plan == 0 && rows > 0 {
		err = fmt.Errorf("database %s has records of other origin than a rebuild: choose another", s.name)
	}
	if err != nil {
		return err
	}
	return s.forgotten(ctx, plan == 0)
}

// forgotten copies the forgotten records into a fresh shadow. An older shadow may hold records that were
// forgotten since.
func (s *Shadow) forgotten(ctx context.Context, fresh bool) error {
	live, err := s.live.Receipts(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(live, func(r Receipt) bool { return !r.Done }); i >= 0 {
		return fmt.Errorf("receipt %s is not complete: run sluice forget first", live[i].ID)
	}
	if !fresh {
		known, err := s.Receipts(ctx)
		if err == nil && len(known) < len(live) {
			err = fmt.Errorf("records were forgotten since the rebuild into %s began, and may be in it: drop that database and start over", s.name)
		}
		return err
	}
	if len(live) == 0 {
		return nil
	}
	for _, statement := range []string{
		fmt.Sprintf("INSERT INTO %[1]s.forgotten (%[3]s) SELECT %[3]s FROM %[2]s.forgotten", s.name, s.live.name, forgottenColumns),
		fmt.Sprintf("INSERT INTO %[1]s.receipts (id, begun_at, done_at, changed, receipt) SELECT id, begun_at, done_at, changed, receipt FROM %[2]s.receipts", s.name, s.live.name),
	} {
		if err := s.storeEverywhere(ctx, statement); err != nil {
			return storeError("copy the forgotten records to the shadow", err)
		}
	}
	return nil
}

// Start is where the rebuild of a lane begins: older rows are copied.
type Start struct {
	Lane        int
	Incarnation uint64
	First       uint64 // message
}

// Plan returns the starts of the lanes as recorded by Begin; none before.
func (s *Shadow) Plan(ctx context.Context) (plan []Start, err error) {
	return plan, s.each(ctx, "read the plan of the rebuild", fmt.Sprintf("SELECT lane, incarnation, first FROM %s.rebuild_plan ORDER BY lane", s.name), nil,
		func(rows driver.Rows) error {
			var lane uint16
			var start Start
			err := rows.Scan(&lane, &start.Incarnation, &start.First)
			start.Lane = int(lane)
			plan = append(plan, start)
			return err
		})
}

// Begin records the starts of the lanes.
func (s *Shadow) Begin(ctx context.Context, plan []Start) error {
	var values []string
	for _, start := range plan {
		values = append(values, fmt.Sprintf("(%d, %d, %d)", start.Lane, start.Incarnation, start.First))
	}
	return s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild_plan (lane, incarnation, first) VALUES %s", s.name, strings.Join(values, ", ")))
}

// note records the progress of the rebuild.
func (s *Shadow) note(ctx context.Context, statement string, args ...any) error {
	if err := s.storeEverywhere(ctx, statement, args...); err != nil {
		return storeError("record the progress of the rebuild", err)
	}
	return nil
}

// Claim is a block of the shadow, inserted under one token.
type Claim struct {
	First, Last uint64
	Token       string
	Dropped     string // deduplicated rows (flow.FormatRuns)
}

// Claims returns the first and the last claimed block of a lane: where the rebuild began, and the one in
// doubt. Both are zero if none.
func (s *Shadow) Claims(ctx context.Context, lane int) (first, last Claim, err error) {
	err = s.each(ctx, "read the claims of the rebuild", fmt.Sprintf(
		"SELECT min(first), max(first), argMax(last, first), argMax(token, first), argMax(dropped, first) FROM %s.rebuild WHERE lane = ? HAVING count() > 0", s.name), []any{lane},
		func(rows driver.Rows) error {
			return rows.Scan(&first.First, &last.First, &last.Last, &last.Token, &last.Dropped)
		})
	return first, last, err
}

// Claim records a block before it is inserted, with its dropped rows.
func (s *Shadow) Claim(ctx context.Context, lane int, c Claim) error {
	return s.note(ctx, fmt.Sprintf("INSERT INTO %s.rebuild (lane, first, last, token, dropped) VALUES (?, ?, ?, ?, ?)", s.name),
		lane, c.First, c.Last, c.Token, c.Dropped)
}

// Side is the rows of one of two tables, of messages of a lane received within a minute.
type Side struct {
	Rows   uint64
	Digest uint64 // sum over all columns
}

// Diff is a minute in which the tables differ.
type Diff struct {
	Minute        time.Time
	Live, Rebuilt Side
}

// Diffs compares the rows of the messages from first to last of a lane, stored after the expiry line, by
// minute of arrival and over all columns. It returns the rows of either table and the differing minutes.
func (s *Shadow) Diffs(ctx context.Context, lane int, incarnation, first, last uint64, line string) (live, rebuilt uint64, differ []Diff, err error) {
	side := `SELECT toStartOfMinute(received_at) AS minute, count() AS n, sum(` + (&native.Digest{Deep: true}).SQL() + `) AS digest, '%s' AS side
		FROM %s.records WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? AND ` + storedAfter(line) + ` GROUP BY minute`
	query := `SELECT minute, sumIf(n, side = 'live'), sumIf(digest, side = 'live'), sumIf(n, side = 'rebuilt'), sumIf(digest, side = 'rebuilt')
		FROM (` + fmt.Sprintf(side, "live", s.live.name) + " UNION ALL " + fmt.Sprintf(side, "rebuilt", s.name) + `) GROUP BY minute ORDER BY minute`
	err = s.each(ctx, "compare the tables", query, []any{lane, incarnation, first, last, lane, incarnation, first, last}, func(rows driver.Rows) error {
		var c Diff
		if err := rows.Scan(&c.Minute, &c.Live.Rows, &c.Live.Digest, &c.Rebuilt.Rows, &c.Rebuilt.Digest); err != nil {
			return err
		}
		live += c.Live.Rows
		rebuilt += c.Rebuilt.Rows
		if c.Live != c.Rebuilt {
			c.Minute = c.Minute.UTC()
			differ = append(differ, c)
		}
		return nil
	})
	return live, rebuilt, differ, err
}

// Only returns at most limit rows of one minute, stored after the expiry line, that one table has and the
// other has nowhere: not even from another message, by which ReplacingMergeTree may have replaced it.
// Those of rebuilt are missing in the live table; those of live are surplus.
func (s *Shadow) Only(ctx context.Context, lane int, incarnation, first, last uint64, line string, minute time.Time, limit int) (live, rebuilt []Row, err error) {
	if live, err = s.only(ctx, s.live.name, s.name, lane, incarnation, first, last, line, minute, limit); err != nil {
		return nil, nil, err
	}
	rebuilt, err = s.only(ctx, s.name, s.live.name, lane, incarnation, first, last, line, minute, limit)
	return live, rebuilt, err
}

func (s *Shadow) only(ctx context.Context, here, there string, lane int, incarnation, first, last uint64, line string, minute time.Time, limit int) ([]Row, error) {
	where := "lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? AND received_at >= ? AND received_at < ? AND " + storedAfter(line)
	args := []any{lane, incarnation, first, last, minute, minute.Add(time.Minute)}
	var all []Row
	err := s.each(ctx, "list the differences", fmt.Sprintf(
		`SELECT stream_seq, stream_idx, id FROM %[1]s.records WHERE %[3]s AND (%[4]s) NOT IN
		(SELECT %[4]s FROM %[2]s.records WHERE toDate(ts) IN (SELECT DISTINCT toDate(ts) FROM %[1]s.records WHERE %[3]s) AND %[5]s)
		ORDER BY stream_seq, stream_idx LIMIT ?`, here, there, where, native.Content, storedAfter(line)),
		append(append(append([]any{}, args...), args...), limit), func(rows driver.Rows) error {
			var r Row
			err := rows.Scan(&r.Seq, &r.Idx, &r.ID)
			all = append(all, r)
			return err
		})
	return all, err
}

// Doubles counts the rows of one minute that share their place with another row.
func (db *DB) Doubles(ctx context.Context, lane int, incarnation, first, last uint64, minute time.Time) (uint64, error) {
	var n uint64
	err := db.row(ctx, "find duplicate rows", fmt.Sprintf(
		`SELECT toUInt64(count() - uniqExact(stream_seq, stream_idx)) FROM %s.records
		WHERE lane = ? AND incarnation = ? AND stream_seq BETWEEN ? AND ? AND received_at >= ? AND received_at < ?`, db.name),
		[]any{lane, incarnation, first, last, minute, minute.Add(time.Minute)}, &n)
	return n, err
}

// Swap returns the statements that exchange the rebuilt tables for the live ones, for operators to run while
// no ingester does.
func (s *Shadow) Swap(ctx context.Context) ([]string, error) {
	names, err := s.written(ctx)
	var statements []string
	for _, name := range names {
		statements = append(statements, fmt.Sprintf("EXCHANGE TABLES %s.%s AND %s.%s%s", s.live.name, name, s.name, name, s.plain().OnCluster()))
	}
	return statements, err
}

// written are the tables that an insert of records writes, records first.
func (s *Shadow) written(ctx context.Context) ([]string, error) {
	tables, err := s.tables(ctx)
	if err != nil {
		return nil, err
	}
	records := s.plain().Table("records")
	names := []string{records}
	for _, name := range tables[records].feeds {
		if view := tables[name]; view != nil && view.targets != "" {
			names = append(names, view.targets)
		}
	}
	slices.Sort(names[1:])
	names = slices.Compact(names)
	for i, name := range names {
		_, names[i], _ = strings.Cut(name, ".")
	}
	return names, nil
}
