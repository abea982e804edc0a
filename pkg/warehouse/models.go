package warehouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/warehouse/native"
)

const modelsDatabase = "models"

// Models is the part of the modeller's database in a backup besides the rows of its MergeTree tables,
// which are DumpTables.
type Models struct {
	Views []Model `json:"views,omitempty"`
	Left  []Model `json:"left,omitempty"` // tables whose rows are not copied, with the reason
}

// Model is a view or a table of the modeller.
type Model struct {
	Name   string `json:"name"`
	Create string `json:"create"` // its definition
	Why    string `json:"why,omitempty"`
}

// Models returns the modeller's tables and views, if the records are in the database flow.
func (db *DB) Models(ctx context.Context) (tables []DumpTable, models Models, err error) {
	if db.name != "flow" { // another database, as of a rebuild
		return nil, models, nil
	}
	err = db.each(ctx, "list the models", "SELECT name, engine, create_table_query FROM system.tables WHERE database = ? ORDER BY name", []any{modelsDatabase}, func(rows driver.Rows) error {
		var m Model
		var engine string
		if err := rows.Scan(&m.Name, &engine, &m.Create); err != nil {
			return err
		}
		switch {
		case engine == "View":
			models.Views = append(models.Views, m)
		case !strings.HasSuffix(engine, "MergeTree"):
			m.Why = "the engine " + engine + " is not copied"
			models.Left = append(models.Left, m)
		case !identifier.MatchString(m.Name):
			m.Why = "its name is not plain"
			models.Left = append(models.Left, m)
		default:
			tables = append(tables, DumpTable{Name: modelsDatabase + "__" + m.Name, Model: m.Name, Create: m.Create})
		}
		return nil
	})
	if err != nil {
		return nil, models, err
	}
	return slices.DeleteFunc(tables, func(t DumpTable) bool {
		if err != nil {
			return false
		}
		var why string
		why, err = db.cannotDump(ctx, t)
		if why != "" {
			models.Left = append(models.Left, Model{t.Model, t.Create, why})
		}
		return why != ""
	}), models, err
}

// cannotDump names a column whose type cannot be dumped, if any.
func (db *DB) cannotDump(ctx context.Context, t DumpTable) (why string, err error) {
	return why, db.each(ctx, "read the types of "+db.live(t), "SELECT name, type FROM system.columns WHERE database = ? AND table = ? AND default_kind NOT IN ('ALIAS', 'MATERIALIZED')", []any{modelsDatabase, t.Model}, func(rows driver.Rows) error {
		var name, typ string
		if err := rows.Scan(&name, &typ); err != nil {
			return err
		}
		if err := native.Readable(typ); err != nil {
			why = fmt.Sprintf("column %s: %v", name, err)
		}
		return nil
	})
}

// live is the full name of a table that a backup copies.
func (db *DB) live(t DumpTable) string {
	if t.Model != "" {
		return modelsDatabase + "." + t.Model
	}
	return db.name + "." + t.Name
}

// makeModel creates an empty table of the modeller, unless it exists.
func (r *Restore) makeModel(ctx context.Context, t DumpTable) error {
	if err := r.exec(ctx, "CREATE DATABASE IF NOT EXISTS "+modelsDatabase); err != nil {
		return fmt.Errorf("make the database %s: %w", modelsDatabase, err)
	}
	if err := r.exec(ctx, strings.Replace(t.Create, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)); err != nil {
		return fmt.Errorf("make the table %s: %w", r.live(t), err)
	}
	return nil
}

// MakeViews creates the views of the modeller in dependency order, and the tables whose rows the
// backup left out, empty. Views that cannot be created, as of a missing table, are in the error; the
// others are created.
func (r *Restore) MakeViews(ctx context.Context, models Models) error {
	var failed error
	for left := slices.Concat(models.Left, models.Views); len(left) > 0; {
		before := len(left)
		failed = nil
		left = slices.DeleteFunc(left, func(m Model) bool {
			create := m.Create
			for _, kind := range []string{"CREATE TABLE ", "CREATE VIEW "} {
				create = strings.Replace(create, kind, kind+"IF NOT EXISTS ", 1)
			}
			err := r.exec(ctx, create)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("make %s.%s: %w", modelsDatabase, m.Name, err))
			}
			return err == nil
		})
		if len(left) == before {
			break
		}
	}
	return failed
}

// ModelsOf returns tables of the modeller that may have rows of the Subject: those with a row of its
// instances, and those without a column process_instance_key, where this is unknown. Views have none.
func (db *DB) ModelsOf(ctx context.Context, s Subject) (may []string, err error) {
	var keyed []string
	err = db.each(ctx, "list the models", `SELECT t.name, countIf(c.name = 'process_instance_key') > 0 FROM system.tables AS t
		LEFT JOIN system.columns AS c ON c.database = t.database AND c.table = t.name
		WHERE t.database = ? AND t.engine NOT LIKE '%View' AND t.engine != 'Null' AND ifNull(t.total_rows, 1) > 0 GROUP BY t.name ORDER BY t.name`, []any{modelsDatabase}, func(rows driver.Rows) error {
		var name string
		var has bool
		err := rows.Scan(&name, &has)
		if has {
			keyed = append(keyed, name)
		} else {
			may = append(may, name)
		}
		return err
	})
	for _, name := range keyed {
		var rows uint64
		found := false
		err = errors.Join(err, s.chunks(func(s Subject) error {
			err := db.row(ctx, "look into "+modelsDatabase+"."+name, fmt.Sprintf("SELECT count() FROM %s.%s WHERE toString(process_instance_key) IN (%s)", modelsDatabase, quoteName(name), quotes(s.Keys)), nil, &rows)
			found = found || rows > 0
			return err
		}))
		if found {
			may = append(may, name)
		}
	}
	slices.Sort(may)
	return may, err
}

func quoteName(name string) string {
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`").Replace(name) + "`"
}
