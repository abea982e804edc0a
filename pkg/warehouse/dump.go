package warehouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/dialect"
	"sluice/pkg/warehouse/native"
)

// Migration is a migration that a database has had.
type Migration struct {
	Version  uint32 `json:"version"`
	Name     string `json:"name"`
	Checksum string `json:"checksum"`
}

// Migrations are those that the database has had, in order.
func (db *DB) Migrations(ctx context.Context) (all []Migration, err error) {
	return all, db.each(ctx, "read the applied migrations", fmt.Sprintf("SELECT version, name, checksum FROM %s.migrations FINAL ORDER BY version", db.name), nil,
		func(rows driver.Rows) error {
			var m Migration
			err := rows.Scan(&m.Version, &m.Name, &m.Checksum)
			all = append(all, m)
			return err
		})
}

// MigrateTo makes the schema as it was when a database had had these migrations.
// Those after them are applied by the next migration, as in any upgrade.
func (db *DB) MigrateTo(ctx context.Context, had []Migration) error {
	all, err := migrations()
	if err != nil {
		return err
	}
	until := all[:1]
	for _, m := range had {
		i := slices.IndexFunc(all, func(one migration) bool { return one.version == m.Version })
		switch {
		case i < 0:
			return fmt.Errorf("migration %s is not known here: it is of a later version of Sluice, which is needed", m.Name)
		case all[i].checksum != m.Checksum:
			return fmt.Errorf("migration %s is another one here: the version of Sluice that made it is needed", m.Name)
		}
		until = append(until, all[i])
	}
	return db.migrate(ctx, until)
}

// Keeping is how the rows of a table are copied while others are inserted.
type Keeping string

const (
	// ByPlace: a row says where it came in, so that the rows up to a position can
	// be told from later ones at any time.
	ByPlace Keeping = "by place"

	// Ahead: a fold that may hear a thing twice. What it has heard beyond the
	// position it will hear again.
	Ahead Keeping = "ahead"

	// AtOnce: sums, and whatever else is right only as it was at the position.
	AtOnce Keeping = "at once"
)

// DumpTable is a table that a backup holds.
type DumpTable struct {
	Name    string   `json:"name"`
	Keeping Keeping  `json:"keeping"`
	Columns []string `json:"columns"`
	Comment string   `json:"comment,omitempty"` // what has expired stands there
}

// stagingPrefix begins the names of the tables that a restore fills first.
const stagingPrefix = "restored_"

// restoring is the table that says which restore is going on.
const restoring = "restore"

// DumpTables are the tables that hold something which is nowhere else.
func (db *DB) DumpTables(ctx context.Context) ([]DumpTable, error) {
	if db.cfg.Cluster != "" {
		return nil, errors.New("the tables of a ClickHouse cluster are not copied by this command: see docs/backup.md")
	}
	tables, err := db.tables(ctx)
	if err != nil {
		return nil, err
	}
	var all []DumpTable
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t := tables[name]
		short, ours := strings.CutPrefix(name, db.name+".")
		if !ours || !strings.HasSuffix(t.engine, "MergeTree") || short == "migrations" || short == restoring || strings.HasPrefix(short, stagingPrefix) {
			continue
		}
		if !identifier.MatchString(short) {
			return nil, fmt.Errorf("table %q is not one of Sluice's: its name is not plain", name)
		}
		d := DumpTable{Name: short, Keeping: AtOnce}
		switch {
		case short == "records":
			d.Keeping = ByPlace
		case short != "sources" && isFold(t):
			d.Keeping = Ahead
		}
		if err := db.describe(ctx, &d); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// describe reads the columns of a table, and its comment.
func (db *DB) describe(ctx context.Context, d *DumpTable) error {
	return db.row(ctx, "describe "+d.Name, `SELECT any(t.comment), arrayMap(c -> c.2, arraySort(groupArray((c.position, c.name))))
		FROM system.columns AS c INNER JOIN system.tables AS t ON t.database = c.database AND t.name = c.table
		WHERE c.database = ? AND c.table = ? AND c.default_kind NOT IN ('ALIAS', 'MATERIALIZED')`, []any{db.name, d.Name}, &d.Comment, &d.Columns)
}

// rowDigest is a hash of some columns of a row. NULL has none, and is made a text.
func (db *DB) rowDigest(ctx context.Context, table string, columns []string) (string, error) {
	types := map[string]string{}
	err := db.each(ctx, "read the types of "+table, "SELECT name, type FROM system.columns WHERE database = ? AND table = ?", []any{db.name, table}, func(rows driver.Rows) error {
		var name, typ string
		err := rows.Scan(&name, &typ)
		types[name] = typ
		return err
	})
	var hashed []string
	for _, name := range columns {
		if typ := types[name]; strings.Contains(typ, "Nullable(") || strings.Contains(typ, "Array(") {
			name = "ifNull(toString(" + name + "), 'NULL')"
		}
		hashed = append(hashed, name)
	}
	return "cityHash64(" + strings.Join(hashed, ", ") + ")", err
}

// Cut are the rows of flow.records up to where lanes stood: Start.First is the first
// message that is left out.
type Cut []Start

func (c Cut) condition() string {
	var newer []string
	for _, l := range c {
		newer = append(newer, fmt.Sprintf("(lane = %d AND (incarnation > %d OR incarnation = %[2]d AND stream_seq >= %[3]d))", l.Lane, l.Incarnation, l.First))
	}
	return "NOT (" + strings.Join(append(newer, "0"), " OR ") + ")"
}

// Piece is what of a table is copied into one file.
type Piece struct {
	Table string `json:"table"`
	Name  string `json:"name"`            // unique in its table, fit for the name of a file
	Where string `json:"where,omitempty"` // all rows when empty
	Rows  uint64 `json:"rows"`            // expected
}

// pieceRows is how many rows of flow.records a piece may have before a day is cut
// by the types of its records, which the primary key has next.
const pieceRows = 5_000_000

// Pieces cuts the rows of flow.records up to where lanes stood. The primary key
// begins with what they are cut by, so that each reads its own rows and no others.
func (db *DB) Pieces(ctx context.Context, cut Cut) ([]Piece, error) {
	days := map[string]uint64{}
	err := db.each(ctx, "count the rows by day", fmt.Sprintf("SELECT toString(toDate(ts)), count() FROM %s.records WHERE %s GROUP BY 1", db.name, cut.condition()), nil,
		func(rows driver.Rows) error {
			var day string
			var n uint64
			err := rows.Scan(&day, &n)
			days[day] = n
			return err
		})
	if err != nil {
		return nil, err
	}
	var all []Piece
	for _, day := range slices.Sorted(maps.Keys(days)) {
		where := fmt.Sprintf("toDate(ts) = '%s' AND %s", day, cut.condition())
		if days[day] <= pieceRows {
			all = append(all, Piece{"records", day, where, days[day]})
			continue
		}
		part := 0
		err := db.each(ctx, "count the rows of a day by type", fmt.Sprintf("SELECT value_type, count() FROM %s.records WHERE %s GROUP BY 1 ORDER BY 1", db.name, where), nil,
			func(rows driver.Rows) error {
				var typ string
				var n uint64
				err := rows.Scan(&typ, &n)
				all = append(all, Piece{"records", fmt.Sprintf("%s-%03d", day, part), "value_type = " + quote(typ) + " AND " + where, n})
				part++
				return err
			})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Dump reads what a piece has of its table and hands it on block by block, as FORMAT
// Native prints it, which is the caller's until the next one. It returns how many
// rows there were, and the sum of their hashes.
func (db *DB) Dump(ctx context.Context, t DumpTable, p Piece, each func(block []byte) error) (rows, digest uint64, err error) {
	where := p.Where
	if where == "" {
		where = "1"
	}
	hash, err := db.rowDigest(ctx, t.Name, t.Columns)
	if err != nil {
		return 0, 0, err
	}
	var block native.Block
	var out proto.Buffer
	err = db.send(ctx, ch.Query{
		Body: fmt.Sprintf("SELECT %s, %s AS row_digest FROM %s.%s WHERE %s", strings.Join(t.Columns, ", "), hash, db.name, t.Name, where),
		Settings: append(db.lookupSettings(),
			ch.Setting{Key: "max_threads", Value: "2", Important: true}, // others work here
			ch.Setting{Key: "max_block_size", Value: "65536", Important: true},
		),
		Result: &block,
		OnResult: func(_ context.Context, b proto.Block) error {
			if b.Rows == 0 {
				return nil
			}
			last := block.Width() - 1
			for _, hash := range *block.Column(last).(*proto.ColUInt64) {
				digest += hash
			}
			rows += uint64(b.Rows)
			out.Reset()
			if err := block.AppendTo(&out, last); err != nil {
				return err
			}
			return each(out.Buf)
		},
	})
	if err != nil {
		return rows, digest, storeError("read "+t.Name, err)
	}
	return rows, digest, nil
}

// Reach is how far what a source has sent of one of its partitions reaches.
type Reach struct {
	Source    string    `json:"source"`
	Partition int64     `json:"partition"` // 0: records without a position
	From      int64     `json:"from"`      // the least position among those that came last
	Last      int64     `json:"last"`      // the greatest one
	Until     time.Time `json:"until"`     // when the api took in the last of them
}

// Reaches returns how far every source reaches in the tables, by what came within
// the last moments of each.
func (db *DB) Reaches(ctx context.Context, last time.Duration) (all []Reach, err error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	newest := fmt.Sprintf("(SELECT source, partition_id, max(received_at) AS at FROM %s.sources GROUP BY source, partition_id)", db.name)
	margin := fmt.Sprintf("INTERVAL %d MILLISECOND", last.Milliseconds())
	query := fmt.Sprintf(`SELECT r.source, r.part, min(r.place), max(r.place), max(r.received_at) FROM
			(SELECT source, if(identity = '', partition_id, 0) AS part, if(identity = '', position, 0) AS place, received_at FROM %[1]s.records
			WHERE toDate(ts) IN (SELECT s.day FROM %[1]s.sources AS s INNER JOIN %[2]s AS n ON s.source = n.source AND s.partition_id = n.partition_id WHERE s.received_at >= n.at - %[3]s)) AS r
		INNER JOIN %[2]s AS n ON r.source = n.source AND r.part = n.partition_id
		WHERE r.received_at >= n.at - %[3]s GROUP BY r.source, r.part ORDER BY r.source, r.part`, db.name, newest, margin)
	return all, db.eachUntil(ctx, "look how far the sources reach", query, nil, func(rows driver.Rows) error {
		var r Reach
		err := rows.Scan(&r.Source, &r.Partition, &r.From, &r.Last, &r.Until)
		r.Until = r.Until.UTC()
		all = append(all, r)
		return err
	})
}

// Restore fills an empty database from what Dump has written. Each table is filled
// beside its place, where no materialized view listens, compared with what was
// written, and put in its place by a statement that may be repeated:
//
//	RestoreInto → Load every piece → Compare → Publish → … → Finish
//
// What is done is written down in the database, so that a restore that was
// interrupted goes on where it was. Until Finish no ingester begins to work.
type Restore struct {
	*DB
	id   string
	done map[string]bool
}

// RestoreBegun is how far a restore is: at its beginning when there was none. It fails
// when the database is not empty, and not what an interrupted restore of the same id has
// left.
func (db *DB) RestoreBegun(ctx context.Context, id string) (*Restore, error) {
	if db.cfg.Cluster != "" {
		return nil, errors.New("the tables of a ClickHouse cluster are not restored by this command: see docs/backup.md")
	}
	r := &Restore{DB: db, id: id, done: map[string]bool{}}
	begun, err := db.isRestoring(ctx)
	if err == nil && begun {
		err = r.resume(ctx)
	} else if err == nil {
		err = db.checkEmpty(ctx)
	}
	return r, err
}

// RestoreInto begins a restore, or goes on with it: id names what it restores, which
// was made with these migrations. The error says what is there when the database is
// not empty.
func (db *DB) RestoreInto(ctx context.Context, id string, had []Migration) (*Restore, error) {
	r, err := db.RestoreBegun(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := db.MigrateTo(ctx, had); err != nil {
		return nil, err
	}
	d := dialect.Dialect{Database: db.name}
	if err := db.exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s.%s (id String, item String) ENGINE = MergeTree ORDER BY (id, item) SETTINGS %s", db.name, restoring, d.Durable())); err != nil {
		return nil, fmt.Errorf("begin the restore: %w", err)
	}
	return r, r.Note(ctx, "begun")
}

// isRestoring says whether a restore was begun and not finished.
func (db *DB) isRestoring(ctx context.Context) (bool, error) {
	var n uint64
	err := db.row(ctx, "look for a restore", "SELECT count() FROM system.tables WHERE database = ? AND name = ?", []any{db.name, restoring}, &n)
	return n > 0, err
}

// resume reads what is done.
func (r *Restore) resume(ctx context.Context) error {
	return r.each(ctx, "read how far the restore is", fmt.Sprintf("SELECT id, item FROM %s.%s", r.name, restoring), nil, func(rows driver.Rows) error {
		var id, item string
		if err := rows.Scan(&id, &item); err != nil {
			return err
		}
		if id != r.id {
			return fmt.Errorf("database %s is in the middle of the restore of another backup, %s: finish that one, or drop the database", r.name, id)
		}
		r.done[item] = true
		return nil
	})
}

// checkEmpty fails when a table of the database has rows.
func (db *DB) checkEmpty(ctx context.Context) error {
	return db.each(ctx, "look whether the database is empty", "SELECT table, sum(rows) FROM system.parts WHERE active AND database = ? AND table != 'migrations' GROUP BY table HAVING sum(rows) > 0 ORDER BY table LIMIT 1", []any{db.name},
		func(rows driver.Rows) error {
			var table string
			var n uint64
			if err := rows.Scan(&table, &n); err != nil {
				return err
			}
			return fmt.Errorf("database %s is not empty: table %s has %d rows; a restore writes over nothing: choose another database, or drop this one", db.name, table, n)
		})
}

// Done says whether an item was written down.
func (r *Restore) Done(item string) bool { return r.done[item] }

// Note writes an item down.
func (r *Restore) Note(ctx context.Context, item string) error {
	if r.done[item] {
		return nil
	}
	ctx = clickhouse.Context(ctx, clickhouse.WithSettings(clickhouse.Settings{"async_insert": 0}))
	if err := r.exec(ctx, fmt.Sprintf("INSERT INTO %s.%s (id, item) VALUES (?, ?)", r.name, restoring), r.id, item); err != nil {
		return storeError("write down how far the restore is", err)
	}
	r.done[item] = true
	return nil
}

func (r *Restore) staging(table string) string { return r.name + "." + stagingPrefix + table }

// Prepare makes the table beside the one that is to be filled. It joins no parts, so
// that what is compared is what was written, whatever time has made of it.
func (r *Restore) Prepare(ctx context.Context, t DumpTable) error {
	var columns []string
	if err := r.row(ctx, "read the columns of "+t.Name, "SELECT groupArray(name) FROM system.columns WHERE database = ? AND table = ?", []any{r.name, t.Name}, &columns); err != nil {
		return err
	}
	for _, column := range t.Columns {
		if !slices.Contains(columns, column) {
			return fmt.Errorf("table %s of database %s has no column %s, which the backup has: it was added by hand, add it here first", t.Name, r.name, column)
		}
	}
	for _, statement := range []string{
		fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s AS %s.%s", r.staging(t.Name), r.name, t.Name),
		fmt.Sprintf("ALTER TABLE %s MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1, parts_to_delay_insert = 0, parts_to_throw_insert = 1000000", r.staging(t.Name)),
	} {
		if err := r.exec(ctx, statement); err != nil {
			return fmt.Errorf("make room for %s: %w", t.Name, err)
		}
	}
	return nil
}

const (
	loadRows = 500_000          // of one insert, which is one part for each month
	loadTime = 10 * time.Minute // that it may take
	oneBlock = "1099511627776"  // of rows or bytes: all that comes is one block
)

// Load inserts what Dump has written of a piece. Every insert has a token made of
// the restore, the piece and its number: a piece that was begun before is completed.
func (r *Restore) Load(ctx context.Context, t DumpTable, piece string, from io.Reader) (rows uint64, err error) {
	item := t.Name + "/" + piece
	f := native.NewFile(from)
	for number, more := 0, f.Next(); more; number++ {
		if more, err = r.insertBlocks(ctx, t, fmt.Sprintf("restore-%s:%s:%d", r.id, item, number), f); err != nil {
			return f.Rows, err
		}
	}
	if f.Err != nil {
		return f.Rows, fmt.Errorf("read %s: %w", item, f.Err)
	}
	return f.Rows, r.Note(ctx, item)
}

// insertBlocks inserts the block that was read from f and those behind it, as many as
// make one insert, and reads the first one of the next.
func (r *Restore) insertBlocks(ctx context.Context, t DumpTable, token string, f *native.File) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, loadTime)
	defer cancel()
	settings, err := r.insertSettings(ctx, t.Name, token, loadTime)
	if err != nil {
		return false, storeError("insert into "+r.staging(t.Name), err)
	}
	input, sent := f.Block.Input(), 0
	more = true
	err = r.send(ctx, ch.Query{
		Body:    fmt.Sprintf("INSERT INTO %s %s VALUES", r.staging(t.Name), input.Columns()),
		QueryID: token + "-" + r.attempt(),
		Input:   input,
		OnInput: func(context.Context) error {
			if sent += f.Block.Rows; sent < loadRows {
				more = f.Next()
			}
			if sent >= loadRows || !more {
				input.Reset()
				return io.EOF
			}
			return nil
		},
		Settings: append(settings,
			ch.Setting{Key: "min_insert_block_size_rows", Value: oneBlock, Important: true}, // one part a month, and one token
			ch.Setting{Key: "min_insert_block_size_bytes", Value: oneBlock, Important: true}),
	})
	if err != nil {
		return false, storeError("insert into "+r.staging(t.Name), err)
	}
	if more {
		more = f.Next()
	}
	return more, nil
}

// Compare fails unless the table beside holds these rows, by their number and the
// sum of their hashes.
func (r *Restore) Compare(ctx context.Context, t DumpTable, rows, digest uint64) error {
	hash, err := r.rowDigest(ctx, t.Name, t.Columns)
	if err != nil {
		return err
	}
	var gotRows, gotDigest uint64
	if err := r.row(ctx, "read back "+t.Name, fmt.Sprintf("SELECT count(), sum(%s) FROM %s", hash, r.staging(t.Name)), nil, &gotRows, &gotDigest); err != nil {
		return err
	}
	if gotRows != rows || gotDigest != digest {
		return fmt.Errorf("table %s was written with %d rows, and has %d rows when it is read back, or others: drop database %s and begin again", t.Name, rows, gotRows, r.name)
	}
	return nil
}

// Publish puts the table in its place. It may be repeated.
func (r *Restore) Publish(ctx context.Context, t DumpTable) error {
	var partitions []string
	err := r.row(ctx, "list the partitions of "+t.Name, "SELECT groupUniqArray(partition_id) FROM system.parts WHERE active AND database = ? AND table = ?", []any{r.name, stagingPrefix + t.Name}, &partitions)
	if err != nil {
		return err
	}
	slices.Sort(partitions)
	for _, p := range partitions {
		if err := r.exec(ctx, fmt.Sprintf("ALTER TABLE %s.%s REPLACE PARTITION ID %s FROM %s", r.name, t.Name, quote(p), r.staging(t.Name))); err != nil {
			return fmt.Errorf("put %s in its place: %w", t.Name, err)
		}
	}
	if t.Comment != "" {
		if err := r.exec(ctx, fmt.Sprintf("ALTER TABLE %s.%s MODIFY COMMENT %s", r.name, t.Name, quote(t.Comment))); err != nil {
			return fmt.Errorf("write the comment of %s: %w", t.Name, err)
		}
	}
	return nil
}

// Finish removes what the restore has needed. From here on ingesters work.
func (r *Restore) Finish(ctx context.Context, tables []DumpTable) error {
	for _, t := range tables {
		if err := r.exec(ctx, "DROP TABLE IF EXISTS "+r.staging(t.Name)+" SYNC"); err != nil {
			return fmt.Errorf("remove %s: %w", r.staging(t.Name), err)
		}
	}
	if err := r.exec(ctx, fmt.Sprintf("DROP TABLE IF EXISTS %s.%s SYNC", r.name, restoring)); err != nil {
		return fmt.Errorf("finish the restore: %w", err)
	}
	return nil
}
