package warehouse

import (
	"cmp"
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

	"sluice/pkg/warehouse/native"
)

// DumpTable is a table of a backup.
type DumpTable struct {
	Name    string   `json:"name"` // unique in the backup
	Columns []string `json:"columns"`
	Model   string   `json:"model,omitempty"`  // name in the modeller's database; empty: a table of Sluice
	Create  string   `json:"create,omitempty"` // definition, of a model
}

// frozenPrefix is the name prefix of tables of Freeze.
const frozenPrefix = "frozen_"

func (db *DB) frozen(table string) string { return db.name + "." + frozenPrefix + table }

// DumpTables are the tables whose rows are not derived from others, and those of the modeller.
func (db *DB) DumpTables(ctx context.Context) ([]DumpTable, Models, error) {
	if db.cfg.Cluster != "" {
		return nil, Models{}, errors.New("this command does not copy tables of a ClickHouse cluster: see docs/backup.md")
	}
	tables, err := db.tables(ctx)
	if err != nil {
		return nil, Models{}, err
	}
	all, models, err := db.Models(ctx)
	if err != nil {
		return nil, models, err
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t := tables[name]
		short, ours := strings.CutPrefix(name, db.name+".")
		if !ours || !strings.HasSuffix(t.engine, "MergeTree") || short == "schema" || short == restoring || strings.HasPrefix(short, stagingPrefix) || strings.HasPrefix(short, frozenPrefix) {
			continue
		}
		if !identifier.MatchString(short) {
			return nil, models, fmt.Errorf("table %q is not one of Sluice's: its name is not plain", name)
		}
		all = append(all, DumpTable{Name: short})
	}
	for i := range all {
		if err := db.describe(ctx, &all[i]); err != nil {
			return nil, models, err
		}
	}
	return all, models, nil
}

// describe reads the columns of a table.
func (db *DB) describe(ctx context.Context, d *DumpTable) error {
	return db.row(ctx, "describe "+d.Name, `SELECT arrayMap(c -> c.2, arraySort(groupArray((c.position, c.name))))
		FROM system.columns AS c WHERE concat(c.database, '.', c.table) = ? AND c.default_kind NOT IN ('ALIAS', 'MATERIALIZED')`, []any{db.live(*d)}, &d.Columns)
}

// rowDigest is a hash expression over columns of a table. NULL has no hash, so it becomes a text.
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
		quoted := quoteName(name)
		if typ := types[name]; strings.Contains(typ, "Nullable(") || strings.Contains(typ, "Array(") || strings.Contains(typ, "Map(") {
			quoted = "ifNull(toString(" + quoted + "), 'NULL')"
		}
		hashed = append(hashed, quoted)
	}
	return "cityHash64(" + strings.Join(hashed, ", ") + ")", err
}

// MakeFreezable creates an empty table without merges beside each, for Freeze. Those of an earlier
// backup are dropped.
func (db *DB) MakeFreezable(ctx context.Context, tables []DumpTable) error {
	if err := db.Unfreeze(ctx, tables); err != nil {
		return err
	}
	for _, t := range tables {
		for _, statement := range []string{
			fmt.Sprintf("CREATE TABLE %s AS %s", db.frozen(t.Name), db.live(t)),
			fmt.Sprintf("ALTER TABLE %s MODIFY SETTING max_bytes_to_merge_at_max_space_in_pool = 1", db.frozen(t.Name)),
		} {
			if err := db.exec(ctx, statement); err != nil {
				return fmt.Errorf("make a table to freeze %s: %w", t.Name, err)
			}
		}
	}
	return nil
}

// Freeze fills these tables with the current parts of each table, as hard links, which takes no
// space and some milliseconds per partition.
func (db *DB) Freeze(ctx context.Context, tables []DumpTable) error {
	for _, t := range tables {
		if err := db.replacePartitions(ctx, db.live(t), db.frozen(t.Name)); err != nil {
			return fmt.Errorf("freeze %s: %w", t.Name, err)
		}
	}
	return nil
}

// Unfreeze drops the tables of Freeze.
func (db *DB) Unfreeze(ctx context.Context, tables []DumpTable) error {
	for _, t := range tables {
		if err := db.exec(ctx, "DROP TABLE IF EXISTS "+db.frozen(t.Name)+" SYNC"); err != nil {
			return fmt.Errorf("drop %s: %w", db.frozen(t.Name), err)
		}
	}
	return nil
}

// Frozen reports whether all tables of Freeze exist.
func (db *DB) Frozen(ctx context.Context, tables []DumpTable) (bool, error) {
	var names []string
	err := db.row(ctx, "look for frozen tables", "SELECT groupArray(name) FROM system.tables WHERE database = ?", []any{db.name}, &names)
	return !slices.ContainsFunc(tables, func(t DumpTable) bool { return !slices.Contains(names, frozenPrefix+t.Name) }), err
}

// replacePartitions replaces the parts of a table by those of another. It is idempotent.
func (db *DB) replacePartitions(ctx context.Context, from, to string) error {
	var partitions []string
	err := db.row(ctx, "list the partitions of "+from, "SELECT arraySort(groupUniqArray(partition_id)) FROM system.parts WHERE active AND concat(database, '.', table) = ?", []any{from}, &partitions)
	if err != nil {
		return err
	}
	for _, p := range partitions {
		if err := db.exec(ctx, fmt.Sprintf("ALTER TABLE %s REPLACE PARTITION ID %s FROM %s", to, quote(p), from)); err != nil {
			return err
		}
	}
	return nil
}

// DumpFile is the part of a table in one file of a backup.
type DumpFile struct {
	Table string `json:"table"`
	Name  string `json:"name"`            // unique in its table, valid as a file name
	Where string `json:"where,omitempty"` // empty: all rows
	Rows  uint64 `json:"rows"`            // expected
}

// dumpRows bounds the rows of flow.records per file, beyond which a day is split by value type, the
// next column of the primary key.
const dumpRows = 5_000_000

// DumpFiles splits frozen tables into files: flow.records by day. The primary key begins with these
// columns, so that each file reads only its own rows.
func (db *DB) DumpFiles(ctx context.Context, tables []DumpTable) (all []DumpFile, err error) {
	for _, t := range tables {
		if t.Name == "records" {
			continue
		}
		f := DumpFile{Table: t.Name, Name: "all"}
		if err := db.row(ctx, "count the rows of "+t.Name, "SELECT count() FROM "+db.frozen(t.Name), nil, &f.Rows); err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	var days []DumpFile
	count := func(what, key, where string, add func(value string, rows uint64)) error {
		return db.each(ctx, "count the rows by "+what, fmt.Sprintf("SELECT %s AS what, count() FROM %s WHERE %s GROUP BY what ORDER BY what", key, db.frozen("records"), where), nil,
			func(rows driver.Rows) error {
				var value string
				var n uint64
				err := rows.Scan(&value, &n)
				add(value, n)
				return err
			})
	}
	if err := count("day", "toString(toDate(ts))", "1", func(day string, rows uint64) {
		days = append(days, DumpFile{"records", day, fmt.Sprintf("toDate(ts) = '%s'", day), rows})
	}); err != nil {
		return nil, err
	}
	for _, day := range days {
		if day.Rows <= dumpRows {
			all = append(all, day)
			continue
		}
		part := 0
		if err := count("type", "toString(value_type)", day.Where, func(kind string, rows uint64) {
			all = append(all, DumpFile{"records", fmt.Sprintf("%s-%03d", day.Name, part), "value_type = " + quote(kind) + " AND " + day.Where, rows})
			part++
		}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Dump passes the rows of a file from the frozen table to each, block by block in FORMAT Native; a
// block is valid until the next. It returns the number of rows and the sum of their hashes.
func (db *DB) Dump(ctx context.Context, t DumpTable, f DumpFile, each func(block []byte) error) (rows, digest uint64, err error) {
	hash, err := db.rowDigest(ctx, frozenPrefix+t.Name, t.Columns)
	if err != nil {
		return 0, 0, err
	}
	var columns []string
	for _, name := range t.Columns {
		columns = append(columns, quoteName(name))
	}
	var block native.Block
	var out proto.Buffer
	err = db.send(ctx, ch.Query{
		Body: fmt.Sprintf("SELECT %s, %s AS row_digest FROM %s WHERE %s", strings.Join(columns, ", "), hash, db.frozen(t.Name), cmp.Or(f.Where, "1")),
		Settings: append(db.lookupSettings(),
			ch.Setting{Key: "max_threads", Value: "2", Important: true}, // leaves threads for others
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

// Reach is the progress of one partition of a source.
type Reach struct {
	Source    string    `json:"source"`
	Partition int64     `json:"partition"` // 0: records without a position
	From      int64     `json:"from"`      // the lowest position among the last received
	Last      int64     `json:"last"`      // the highest one
	Until     time.Time `json:"until"`     // when the api received the last of them
}

// Reaches returns the progress of every source in the frozen tables, from what was received within
// the last moments of each.
func (db *DB) Reaches(ctx context.Context, last time.Duration) (all []Reach, err error) {
	ctx, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	newest := fmt.Sprintf("(SELECT source, partition_id, max(received_at) AS at FROM %s GROUP BY source, partition_id)", db.frozen("sources"))
	margin := fmt.Sprintf("INTERVAL %d MILLISECOND", last.Milliseconds())
	query := fmt.Sprintf(`SELECT r.source, r.part, min(r.place), max(r.place), max(r.received_at) FROM
			(SELECT source, if(identity = '', partition_id, 0) AS part, if(identity = '', position, 0) AS place, received_at FROM %[1]s
			WHERE toDate(ts) IN (SELECT s.day FROM %[4]s AS s INNER JOIN %[2]s AS n ON s.source = n.source AND s.partition_id = n.partition_id WHERE s.received_at >= n.at - %[3]s)) AS r
		INNER JOIN %[2]s AS n ON r.source = n.source AND r.part = n.partition_id
		WHERE r.received_at >= n.at - %[3]s GROUP BY r.source, r.part ORDER BY r.source, r.part`, db.frozen("records"), newest, margin, db.frozen("sources"))
	return all, db.eachUntil(ctx, "read the progress of the sources", query, nil, func(rows driver.Rows) error {
		var r Reach
		err := rows.Scan(&r.Source, &r.Partition, &r.From, &r.Last, &r.Until)
		r.Until = r.Until.UTC()
		all = append(all, r)
		return err
	})
}
