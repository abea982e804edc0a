package warehouse

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/schema"
)

// History is the retention of ended call trees in the aggregate tables. A tree is an instance and
// all instances called below it; it has ended when all of them have.
type History struct {
	Days    int       // after the UTC day of its last record; 0: unlimited
	Line    time.Time // trees that ended before it are removed or being removed
	Done    time.Time // trees that ended before it are removed
	changed time.Time // when the line was last set, by that program's clock
}

// instances is the name of the aggregate tables in Retention.
const instances = "instances"

func (db *DB) History(ctx context.Context) (h History, err error) {
	return h, db.each(ctx, "read how long history is kept", fmt.Sprintf("SELECT name, argMax(value, changed), max(changed) FROM %s.history GROUP BY name", db.name), nil,
		func(rows driver.Rows) error {
			var name string
			var value int64
			var changed uint64
			err := rows.Scan(&name, &value, &changed)
			switch name {
			case "keep":
				h.Days = int(value)
			case "line":
				h.Line, h.changed = time.UnixMilli(value), time.Unix(0, int64(changed))
			case "done":
				h.Done = time.UnixMilli(value)
			}
			return err
		})
}

func (db *DB) setHistory(ctx context.Context, name string, value int64) error {
	err := db.storeEverywhere(ctx, fmt.Sprintf("INSERT INTO %s.history (name, value, changed) VALUES (%s, %d, %d)", db.name, quote(name), value, time.Now().UnixNano()))
	if err != nil {
		return storeError("write how long history is kept", err)
	}
	return nil
}

// historyParts bounds write amplification: each removal rewrites the parts with removed trees,
// at most this many times per retention.
const historyParts = 64

var (
	treesAtOnce  = 10_000          // per step, called instances not counted
	anotherWorks = 5 * time.Minute // since the line was set; a step takes less
)

// due returns the new line and whether to move it. It moves by whole days: trees are removed late
// by a day, or a sixty-fourth of the retention.
func (h History) due(clock time.Time) (time.Time, bool) {
	line := clock.UTC().Truncate(24*time.Hour).AddDate(0, 0, -h.Days)
	return line, h.Days > 0 && line.Sub(h.Done) >= max(time.Duration(h.Days)*24*time.Hour/historyParts, 24*time.Hour)
}

// ExpireHistory moves the line, removes the trees that ended before it in steps, and returns the
// number of removed instances. It does nothing if no step is due or another program runs it. It
// may be interrupted and run while records are inserted: a later call finds the remaining trees.
func (db *DB) ExpireHistory(ctx context.Context) (left uint64, err error) {
	h, err := db.History(ctx)
	if err != nil || h.Days == 0 {
		return 0, err
	}
	clock, err := db.Clock(ctx)
	if err != nil {
		return 0, err
	}
	line, is := h.due(clock)
	if !is || line.Equal(h.Line) && time.Since(h.changed) < anotherWorks {
		return 0, nil
	}
	// The line comes first: a late record of a removed tree is never shown as running.
	if err := db.setHistory(ctx, "line", line.UnixMilli()); err != nil {
		return 0, err
	}
	var sources []string
	if err := db.row(ctx, "list the sources of instances", fmt.Sprintf("SELECT groupUniqArray(toString(source)) FROM %s.process_instances", db.name), nil, &sources); err != nil {
		return 0, err
	}
	for _, source := range sources {
		s := sweep{DB: db, source: source, line: line}
		for more := true; more; {
			begun := time.Now()
			var n int
			if n, more, err = s.step(ctx); err != nil {
				return left, err
			}
			left += uint64(n)
			db.metrics.expired.Add(float64(n))
			if err := db.setHistory(ctx, "line", line.UnixMilli()); err != nil { // shows that this program is working
				return left, err
			}
			select { // leaves half of the time to other queries
			case <-ctx.Done():
				return left, ctx.Err()
			case <-time.After(time.Since(begun)):
			}
		}
	}
	if left > 0 {
		if err := db.dropMasked(ctx); err != nil {
			return left, err
		}
	}
	return left, db.setHistory(ctx, "done", line.UnixMilli())
}

// sweep iterates over the instances of a source in primary key order.
type sweep struct {
	*DB
	source string
	line   time.Time
	begun  int64  // of the last instance read
	key    string // of the last instance read
}

// ended is a condition for merged rows of instances that ended before the line.
func (s *sweep) ended() string {
	return fmt.Sprintf("state >= 3 AND last_seen < fromUnixTimestamp64Milli(%d, 'UTC')", s.line.UnixMilli())
}

// of is a condition for the rows of instances. It prunes by the primary key.
func (s *sweep) of(keys []string) string {
	first, last := int64(math.MaxInt64), int64(0)
	for _, key := range keys {
		n, _ := strconv.ParseInt(key, 10, 64) // as in Begun
		first, last = min(first, n&(1<<51-1)), max(last, n&(1<<51-1))
	}
	return fmt.Sprintf("source = %s AND %s BETWEEN %d AND %d AND process_instance_key IN (%s)", quote(s.source), schema.Server{}.Begun(), first, last, quotes(keys))
}

// kin is an instance of a tree, its caller, and whether it has ended before the line.
type kin struct {
	key, caller string
	ended       bool
}

func (s *sweep) kin(ctx context.Context, where string) (all []kin, err error) {
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_query_size": 256 << 20}))
	return all, s.each(ctx, "look for ended instances", fmt.Sprintf(
		"SELECT process_instance_key, if(parent_process_instance_key > 0, toString(parent_process_instance_key), ''), ifNull(%s, false) FROM %s.process_instances FINAL WHERE %s", s.ended(), s.name, where), nil,
		func(rows driver.Rows) error {
			var k kin
			err := rows.Scan(&k.key, &k.caller, &k.ended)
			all = append(all, k)
			return err
		})
}

// step removes the trees of the next ended instances, and reports whether there may be more. A
// tree is visited at its root, or at an instance whose caller has no rows.
func (s *sweep) step(ctx context.Context) (left int, more bool, err error) {
	page, err := s.kin(ctx, fmt.Sprintf("source = %s AND (%[2]s, process_instance_key) > (%[3]d, %[4]s) AND %[5]s ORDER BY %[2]s, process_instance_key LIMIT %[6]d",
		quote(s.source), schema.Server{}.Begun(), s.begun, quote(s.key), s.ended(), treesAtOnce))
	if err != nil || len(page) == 0 {
		return 0, false, err
	}
	s.key = page[len(page)-1].key
	s.begun, _ = strconv.ParseInt(s.key, 10, 64)
	s.begun &= 1<<51 - 1
	there := map[string]bool{} // callers with rows
	for _, k := range page {
		there[k.caller] = k.caller == ""
	}
	if callers := slices.Collect(maps.Keys(there)); len(callers) > 0 {
		found, err := s.kin(ctx, s.of(callers))
		if err != nil {
			return 0, false, err
		}
		for _, k := range found {
			there[k.key] = true
		}
	}
	root := map[string]string{} // of every instance of the trees
	for _, k := range page {
		if k.caller == "" || !there[k.caller] {
			root[k.key] = k.key
		}
	}
	kept, err := s.descend(ctx, root)
	if err != nil {
		return 0, false, err
	}
	maps.DeleteFunc(root, func(_, of string) bool { return kept[of] })
	if len(root) == 0 {
		return 0, true, nil
	}
	return len(root), true, s.remove(ctx, slices.Sorted(maps.Keys(root)))
}

// descend adds the called instances to the roots, and returns the trees that have not ended.
func (s *sweep) descend(ctx context.Context, root map[string]string) (kept map[string]bool, err error) {
	kept = map[string]bool{}
	for level := slices.Collect(maps.Keys(root)); len(level) > 0; {
		var called []string // from unmerged rows, some of which may lack the caller
		asking := clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_query_size": 256 << 20}))
		if err := s.each(asking, "look for called instances", fmt.Sprintf("SELECT DISTINCT process_instance_key FROM %s.process_instances WHERE source = %s AND toString(parent_process_instance_key) IN (%s)",
			s.name, quote(s.source), quotes(level)), nil, func(rows driver.Rows) error {
			var key string
			err := rows.Scan(&key)
			called = append(called, key)
			return err
		}); err != nil || len(called) == 0 {
			return kept, err
		}
		found, err := s.kin(ctx, s.of(called))
		if err != nil {
			return nil, err
		}
		level = level[:0]
		for _, k := range found {
			of, is := root[k.caller]
			if _, seen := root[k.key]; is && !seen {
				root[k.key], level = of, append(level, k.key)
				kept[of] = kept[of] || !k.ended
			}
		}
	}
	return kept, nil
}

// remove masks the rows of instances in every aggregate table, process_instances last: while it
// has a row, the next sweep finds the tree.
func (s *sweep) remove(ctx context.Context, keys []string) error {
	tables, err := s.historyTables(ctx)
	d := s.plain()
	for _, table := range tables {
		if err == nil {
			err = s.everywhere(clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"max_query_size": 256 << 20, "lightweight_deletes_sync": 2})),
				fmt.Sprintf("DELETE FROM %s%s WHERE %s", d.Table(table), d.OnCluster(), s.of(keys)))
		}
	}
	if err != nil {
		return storeError("remove ended instances", err)
	}
	return nil
}

// historyTables are the aggregate tables with rows of instances, their own table last.
func (db *DB) historyTables(ctx context.Context) (tables []string, err error) {
	return tables, db.row(ctx, "look for tables of instances", `
		SELECT arraySort(t -> (t = 'process_instances', t), groupArray(replaceRegexpOne(c.table, '_local$', ''))) FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
		WHERE c.database = ? AND t.engine LIKE '%AggregatingMergeTree' AND c.name = 'process_instance_key'`, []any{db.name}, &tables)
}

// dropMasked rewrites the parts with masked rows, in the background.
func (db *DB) dropMasked(ctx context.Context) error {
	tables, err := db.historyTables(ctx)
	d := db.plain()
	for _, table := range tables {
		if err == nil {
			err = db.everywhere(ctx, fmt.Sprintf("ALTER TABLE %s%s APPLY DELETED MASK SETTINGS mutations_sync = 0", d.Table(table), d.OnCluster()))
		}
	}
	if err != nil {
		return storeError("drop the rows of ended instances", err)
	}
	return nil
}

// KeepHistory calls ExpireHistory periodically once ready is closed, when the schema exists, until
// ctx ends.
func (db *DB) KeepHistory(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-ready:
	}
	for {
		left, err := db.ExpireHistory(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			db.log.Warn("ended instances stay", "error", err, "retried_in", historyEvery)
		case left > 0:
			db.log.Info("ended instances left the aggregate tables", "instances", left)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(historyEvery):
		}
	}
}

// historyEvery is the interval of ExpireHistory.
const historyEvery = 10 * time.Second
