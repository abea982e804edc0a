package warehouse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
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
	var block nativeBlock
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
			last := len(block.columns) - 1
			for _, hash := range *block.columns[last].Column.(*proto.ColUInt64) {
				digest += hash
			}
			rows += uint64(b.Rows)
			out.Reset()
			if err := block.appendTo(&out, last); err != nil {
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
