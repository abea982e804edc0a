package warehouse

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// Marks returns the progress of days of sources from flow.sources, and the number of rows of an incarnation
// of a lane that fed that table, on the replicas with the most.
func (db *DB) Marks(ctx context.Context, lane int, incarnation uint64, days []flow.SourceDay) (flow.Marks, error) {
	_, most, err := db.count(ctx, "count the rows of the lane", "sum(rows)", "sources", fmt.Sprintf("lane = %d AND incarnation = %d", lane, incarnation))
	marks := flow.Marks{Last: map[flow.SourceDay]int64{}, Rows: most}
	if err != nil || len(days) == 0 {
		return marks, err
	}
	asked, sources, dayNumbers := map[flow.SourceDay]bool{}, map[string]bool{}, map[int64]bool{}
	for _, day := range days {
		asked[day], sources[quote(day.Source)], dayNumbers[day.Day] = true, true, true
	}
	// May return more days than requested: a list of triples parses slowly.
	err = db.each(db.shardwise(ctx), "read the progress of the sources", fmt.Sprintf(
		`SELECT source, partition_id, toInt64(toUInt16(day)), ifNull(max(last_position), 0), ifNull(toUnixTimestamp64Milli(max(last_ts)), 0)
		FROM %s WHERE source IN (%s) AND day IN (%s) GROUP BY source, partition_id, day`,
		db.onReplicas("sources"), strings.Join(slices.Sorted(maps.Keys(sources)), ", "), strings.Join(dates(dayNumbers), ", ")),
		nil, func(rows driver.Rows) error {
			var day flow.SourceDay
			var position, ts int64
			if err := rows.Scan(&day.Source, &day.Partition, &day.Day, &position, &ts); err != nil {
				return err
			}
			if day.Partition == 0 {
				position = ts
			}
			if last, known := marks.Last[day]; asked[day] && (!known || position > last) {
				marks.Last[day] = position
			}
			return nil
		})
	return marks, err
}

// StaleSourceDays compares flow.sources with all stored rows of an incarnation of a lane, and returns some
// days on which flow.sources is behind.
func (db *DB) StaleSourceDays(ctx context.Context, lane int, incarnation uint64) ([]flow.SourceDay, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	var all []flow.SourceDay
	err := db.eachUntil(ctx, "compare flow.sources with flow.records", fmt.Sprintf(`
		SELECT r.source, r.p, toInt64(toUInt16(r.d)) FROM
			(SELECT source, if(identity = '', partition_id, 0) AS p, toDate(ts) AS d, max(if(identity = '', position, 0)) AS position, max(ts) AS last
			FROM %[1]s.records WHERE lane = ? AND incarnation = ? GROUP BY source, p, d) AS r
		LEFT JOIN
			(SELECT source, partition_id AS p, day AS d, sum(rows) AS n, ifNull(max(last_position), 0) AS position,
				ifNull(max(last_ts), fromUnixTimestamp64Milli(0, 'UTC')) AS last
			FROM %[1]s.sources GROUP BY source, p, d) AS s
		ON r.source = s.source AND r.p = s.p AND r.d = s.d
		WHERE s.n = 0 OR r.p > 0 AND r.position > s.position OR r.p = 0 AND r.last > s.last
		ORDER BY ALL LIMIT 100`, db.name),
		[]any{lane, incarnation}, func(rows driver.Rows) error {
			var day flow.SourceDay
			err := rows.Scan(&day.Source, &day.Partition, &day.Day)
			all = append(all, day)
			return err
		})
	return all, err
}

// Inserting reports whether an insert of the lane is running on any server. It may outlive its ingester.
func (db *DB) Inserting(ctx context.Context, lane int) (bool, error) {
	from := "system.processes"
	if db.cfg.Cluster != "" {
		from = fmt.Sprintf("clusterAllReplicas('%s', %s)", db.cfg.Cluster, from)
	}
	running := false
	err := db.each(db.shardwise(ctx), "look for running inserts", fmt.Sprintf("SELECT count() > 0 FROM %s WHERE startsWith(Settings['insert_deduplication_token'], ?)", from), []any{flow.TokensOf(lane)},
		func(rows driver.Rows) error {
			var here bool
			err := rows.Scan(&here)
			running = running || here
			return err
		})
	return running, err
}

// scanTime bounds a query that reads all of flow.records, which is needed only after an error, and a
// migration that copies a table.
const scanTime = 10 * time.Minute

// Last returns the last message of an incarnation of a lane with a row in flow.records, 0 if none. A table
// that was truncated or restored ends before the checkpoint of the lane. It reads only the days of that
// message, from flow.sources, unless it is missing. Incarnation 0 means the greatest one in flow.sources,
// and the progress of that table.
func (db *DB) Last(ctx context.Context, lane int, incarnation uint64) (of, seq uint64, err error) {
	if incarnation > 0 {
		seq, err = db.lastRow(ctx, lane, incarnation)
		return incarnation, seq, err
	}
	err = db.each(db.shardwise(ctx), "find the last incarnation of the lane", fmt.Sprintf(
		"SELECT tupleElement(m, 1), tupleElement(m, 2) FROM (SELECT max((incarnation, last_seq)) AS m FROM %s WHERE lane = ?)", db.onReplicas("sources")), []any{lane},
		func(rows driver.Rows) error {
			var one, last uint64
			err := rows.Scan(&one, &last)
			if one > of || one == of && last > seq {
				of, seq = one, last
			}
			return err
		})
	return of, seq, err
}

// Incarnations returns the incarnations of a lane above a time, ms since 1970, with rows in flow.records,
// oldest first, each with its first such message. It reads two columns of the whole table.
func (db *DB) Incarnations(ctx context.Context, lane int, above uint64) ([]flow.Incarnation, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	first := map[uint64]uint64{} // each server answers separately
	err := db.eachUntil(db.shardwise(ctx), "list the incarnations of the lane", fmt.Sprintf(
		"SELECT incarnation, min(stream_seq) FROM %s WHERE lane = ? AND incarnation > ? GROUP BY incarnation", db.onReplicas("records")), []any{lane, above},
		func(rows driver.Rows) error {
			var id, seq uint64
			err := rows.Scan(&id, &seq)
			if before, there := first[id]; !there || seq < before {
				first[id] = seq
			}
			return err
		})
	var all []flow.Incarnation
	for _, id := range slices.Sorted(maps.Keys(first)) {
		all = append(all, flow.Incarnation{ID: id, First: first[id]})
	}
	return all, err
}

// lastRow is Last of a given incarnation.
func (db *DB) lastRow(ctx context.Context, lane int, incarnation uint64) (uint64, error) {
	ctx = db.shardwise(ctx)
	args := []any{lane, incarnation}
	expected, err := db.greatest(ctx, "find the last message", fmt.Sprintf(
		"SELECT max(last_seq) FROM %s WHERE lane = ? AND incarnation = ?", db.onReplicas("sources")), args...)
	if err != nil || expected == 0 {
		return 0, err
	}
	days := map[int64]bool{}
	err = db.each(ctx, "find the days of the last message", fmt.Sprintf(
		"SELECT DISTINCT toInt64(toUInt16(day)) FROM %s WHERE lane = ? AND incarnation = ? AND last_seq = ?", db.onReplicas("sources")), []any{lane, incarnation, expected},
		func(rows driver.Rows) error {
			var day int64
			err := rows.Scan(&day)
			days[day] = true
			return err
		})
	if err != nil {
		return 0, err
	}
	found, err := db.greatest(ctx, "find the last stored message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s WHERE lane = ? AND incarnation = ? AND stream_seq = ? AND toDate(ts) IN (%s)",
		db.onReplicas("records"), strings.Join(dates(days), ", ")), lane, incarnation, expected)
	if err != nil || found == expected {
		return found, err
	}
	// All rows of that message may be forgotten.
	forgotten, err := db.greatest(ctx, "find the last forgotten message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s.forgotten WHERE lane = ? AND incarnation = ?", db.name), args...)
	if err != nil || forgotten == expected {
		return forgotten, err
	}
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	found = forgotten
	err = db.eachUntil(ctx, "find the last stored message", fmt.Sprintf(
		"SELECT max(stream_seq) FROM %s WHERE lane = ? AND incarnation = ?", db.onReplicas("records")), args, greater(&found))
	return found, err
}

// greatest returns the greatest number of all servers.
func (db *DB) greatest(ctx context.Context, doing, query string, args ...any) (highest uint64, err error) {
	err = db.each(ctx, doing, query, args, greater(&highest))
	return highest, err
}

func greater(highest *uint64) func(driver.Rows) error {
	return func(rows driver.Rows) error {
		var n uint64
		err := rows.Scan(&n)
		*highest = max(*highest, n)
		return err
	}
}

// Visible returns how many rows of the block are in the table, only those of its StoredAt if it has one: the fewest and the
// most that replicas have. It reads only the days of these rows, and counts only those of their incarnation.
func (db *DB) Visible(ctx context.Context, b record.Block) (least, most uint64, err error) {
	if b.From == b.To {
		return 0, 0, nil
	}
	where := ofBlock(b)
	if b.StoredAt > 0 {
		where.add("stored_at = fromUnixTimestamp64Milli(%d, 'UTC')", b.StoredAt)
	}
	return db.count(ctx, "count visible rows", "count()", "records", where.String())
}

func (db *DB) Clock(ctx context.Context) (time.Time, error) {
	var ms int64
	err := db.row(ctx, "read the clock of ClickHouse", "SELECT toUnixTimestamp64Milli(now64(3))", nil, &ms)
	return time.UnixMilli(ms), err
}

// ofBlock selects the rows of a block. Between its first and last row the stream has only rows of the block,
// and rows of other months, which are not counted.
func ofBlock(b record.Block) conditions {
	c, first, last := b.Columns, b.From, b.From
	before := func(i, j int) bool {
		return c.StreamSeq[i] < c.StreamSeq[j] || c.StreamSeq[i] == c.StreamSeq[j] && c.StreamIdx[i] < c.StreamIdx[j]
	}
	for row := b.From + 1; row < b.To; row++ {
		if before(row, first) {
			first = row
		}
		if before(last, row) {
			last = row
		}
	}
	var where conditions
	where.when(c, numbersOf(b.From, b.To))
	where.add("lane = %d AND incarnation = %d", c.Lane[b.From], c.Incarnation[b.From])
	where.add("stream_seq BETWEEN %d AND %d", c.StreamSeq[first], c.StreamSeq[last])
	where.add("(stream_seq, stream_idx) >= (%d, %d) AND (stream_seq, stream_idx) <= (%d, %d)",
		c.StreamSeq[first], c.StreamIdx[first], c.StreamSeq[last], c.StreamIdx[last])
	return where
}

// PartsSince returns how many parts flow.records got since a time of its own clock, never too few. The name of a part
// has the numbers of its first and last insert, so the older parts give the start: the highest number among them, or
// more. Targets of our materialized views get as many parts, or fewer.
func (db *DB) PartsSince(ctx context.Context, then time.Time) (uint64, error) {
	d := db.plain()
	// A single server numbers the inserts of a table, a replicated table those of each
	// partition.
	numbered, parts := "'all'", "system.parts"
	if d.Replicated() {
		numbered = "partition_id"
	}
	if d.Cluster != "" {
		parts = fmt.Sprintf("clusterAllReplicas('%s', system.parts)", d.Cluster)
	}
	table := d.Table("records")
	var n uint64
	err := db.row(db.shardwise(ctx), "count the parts since a claim", fmt.Sprintf(`
		SELECT toUInt64(ifNull(max(n), 0)) FROM (
			SELECT hostName() AS host, sum(since) AS n FROM (
				SELECT hostName() AS host, %s AS numbered, toInt64(max(max_block_number)) - toInt64(maxIf(max_block_number, modification_time < ?)) AS since
				FROM %s WHERE database = ? AND table = ? GROUP BY host, numbered)
			GROUP BY host)`, numbered, parts),
		[]any{then.Add(-clockSkew), db.name, table[len(db.name)+1:]}, &n)
	return n, err
}

// clockSkew bounds the clock differences of ClickHouse's servers.
const clockSkew = time.Minute

// Reaggregate feeds the aggregate tables again with the stored rows of the block: it is unknown which materialized
// views received them. Aggregates of minima, maxima, and sets tolerate a row twice. flow.sources also counts
// rows and receives only what it lacks; counters are left alone. On a cluster each shard does so by itself, as
// its views do.
func (db *DB) Reaggregate(ctx context.Context, b record.Block) error {
	if b.From == b.To {
		return nil
	}
	tables, err := db.tables(ctx)
	if err != nil {
		return err
	}
	d := db.plain()
	records := d.Table("records")
	source := fmt.Sprintf("(SELECT * FROM %s WHERE %s)", records, ofBlock(b))
	for _, name := range tables[records].feeds {
		view := tables[name]
		if view == nil || view.engine != "MaterializedView" || !isAggregate(tables[view.targets]) {
			continue
		}
		if err := db.reaggregate(ctx, view, records, source, int(b.Columns.Lane[b.From]), b.Columns.Incarnation[b.From]); err != nil {
			return storeError("feed "+view.targets+" again", err)
		}
	}
	return nil
}

// reaggregate inserts the result of a view over source instead of its table.
func (db *DB) reaggregate(ctx context.Context, view *table, records, source string, lane int, incarnation uint64) error {
	var query string
	var columns []string
	short := view.name[len(db.name)+1:]
	for question, dest := range map[string]any{
		"SELECT as_select FROM system.tables WHERE database = ? AND name = ?":          &query,
		"SELECT groupArray(name) FROM system.columns WHERE database = ? AND table = ?": &columns,
	} {
		if err := db.row(ctx, "read a materialized view", question, []any{db.name, short}, dest); err != nil {
			return err
		}
	}
	read := regexp.MustCompile(`\bFROM ` + regexp.QuoteMeta(records) + `\b(?: AS \w+)?`)
	if !read.MatchString(query) {
		return fmt.Errorf("the materialized view %s does not read %s plainly", view.name, records)
	}
	query = read.ReplaceAllStringFunc(query, func(from string) string {
		_, alias, named := strings.Cut(from, " AS ")
		if !named {
			alias = "records"
		}
		return "FROM " + source + " AS " + alias
	})
	received := ""
	if slices.Contains(columns, "last_seq") && slices.Contains(columns, "rows") {
		received = fmt.Sprintf(" WHERE (source, partition_id, day, last_seq) NOT IN (SELECT n.source, n.partition_id, n.day, n.last_seq FROM (%s) AS n INNER JOIN %s AS s ON n.source = s.source AND n.partition_id = s.partition_id AND n.day = s.day WHERE s.lane = %d AND s.incarnation = %d AND s.last_seq >= n.last_seq)", query, db.plain().Table("sources"), lane, incarnation)
	}
	list := strings.Join(columns, ", ")
	ctx, err := db.storing(ctx, clickhouse.Settings{"asterisk_include_alias_columns": 1, "max_query_size": 256 << 20})
	if err != nil {
		return err
	}
	return db.onShards(ctx, db.cfg.QueryTimeout, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM (%s)%s", view.targets, list, list, query, received))
}

// aggregate matches the aggregate functions of a table.
var aggregate = regexp.MustCompile(`AggregateFunction\((\w+)`)

// idempotent are the aggregate functions that tolerate a value twice.
var idempotent = []string{
	"min", "max", "any", "anyLast", "any_respect_nulls", "argMin", "argMax", "groupUniqArray", "groupUniqArrayArray",
	"groupBitAnd", "groupBitOr", "minMap", "maxMap", "uniq", "uniqExact", "uniqCombined",
}

// isAggregate reports whether a table tolerates repeated rows. That includes flow.sources, which also
// counts rows: reaggregate leaves out those that it has.
func isAggregate(t *table) bool {
	if t == nil || !strings.HasSuffix(t.engine, "AggregatingMergeTree") {
		return false
	}
	if strings.HasSuffix(t.name, ".sources") || strings.HasSuffix(t.name, ".sources_local") {
		return true
	}
	for _, m := range aggregate.FindAllStringSubmatch(t.create, -1) {
		if !slices.Contains(idempotent, m[1]) {
			return false
		}
	}
	return true
}
