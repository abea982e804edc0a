package export

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"

	_ "modernc.org/sqlite" // the driver of databases
)

// ocelSQLite writes OCEL 2.0 as a database: lists of events, of objects and of
// their relations, and a table with the attributes of each type.
type ocelSQLite struct {
	db       *sql.DB
	tx       *sql.Tx
	pending  int                    // rows in tx
	tables   map[string]bool        // taken names, in small letters
	inserts  map[string]*sqliteType // by event_ or object_ and the type
	prepared map[string]*sql.Stmt
}

// sqliteType is the table of a type.
type sqliteType struct {
	insert string
	places map[string]int // of attributes, in the values of a row
}

// rowsInTransaction bounds what the database holds back.
const rowsInTransaction = 50_000

const ocelTables = `
CREATE TABLE event_map_type (ocel_type TEXT PRIMARY KEY, ocel_type_map TEXT NOT NULL UNIQUE);
CREATE TABLE object_map_type (ocel_type TEXT PRIMARY KEY, ocel_type_map TEXT NOT NULL UNIQUE);
CREATE TABLE event (ocel_id TEXT PRIMARY KEY, ocel_type TEXT NOT NULL REFERENCES event_map_type (ocel_type)) WITHOUT ROWID;
CREATE TABLE object (ocel_id TEXT PRIMARY KEY, ocel_type TEXT NOT NULL REFERENCES object_map_type (ocel_type)) WITHOUT ROWID;
CREATE TABLE event_object (
	ocel_event_id TEXT NOT NULL REFERENCES event (ocel_id), ocel_object_id TEXT NOT NULL REFERENCES object (ocel_id), ocel_qualifier TEXT NOT NULL,
	PRIMARY KEY (ocel_event_id, ocel_object_id, ocel_qualifier)) WITHOUT ROWID;
CREATE TABLE object_object (
	ocel_source_id TEXT NOT NULL REFERENCES object (ocel_id), ocel_target_id TEXT NOT NULL REFERENCES object (ocel_id), ocel_qualifier TEXT NOT NULL,
	PRIMARY KEY (ocel_source_id, ocel_target_id, ocel_qualifier)) WITHOUT ROWID;
`

func newSQLite(file string) (*ocelSQLite, error) {
	db, err := sql.Open("sqlite", file)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	o := &ocelSQLite{db: db, tables: map[string]bool{}, inserts: map[string]*sqliteType{}, prepared: map[string]*sql.Stmt{}}
	// The file is thrown away if this program dies: nothing needs to survive.
	if _, err := db.Exec("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF;" + ocelTables); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return o, nil
}

func (o *ocelSQLite) objectType(name string, attributes []attribute) error {
	return o.declare("object", name, "ocel_id TEXT NOT NULL REFERENCES object (ocel_id), ocel_time TIMESTAMP, ocel_changed_field TEXT", attributes)
}

func (o *ocelSQLite) eventType(name string, attributes []attribute) error {
	return o.declare("event", name, "ocel_id TEXT PRIMARY KEY REFERENCES event (ocel_id), ocel_time TIMESTAMP", attributes)
}

var notOfNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// declare makes the table of a type. Its name is what letters and digits the
// type has, and a number where another type has the same.
func (o *ocelSQLite) declare(of, name, columns string, attributes []attribute) error {
	short := strings.Trim(notOfNames.ReplaceAllString(name, "_"), "_")
	table := of + "_" + short
	for n := 2; o.tables[strings.ToLower(table)] || short == "" || table == "event_object" || table == "object_object" || strings.HasSuffix(table, "_map_type"); n++ {
		short = fmt.Sprintf("%s_%d", strings.Trim(notOfNames.ReplaceAllString(name, "_"), "_"), n)
		table = of + "_" + short
	}
	o.tables[strings.ToLower(table)] = true
	t := &sqliteType{places: map[string]int{}}
	fixed := strings.Count(columns, ",") + 1
	for _, a := range attributes {
		t.places[a.Name] = fixed + len(t.places)
		columns += fmt.Sprintf(", %q %s", a.Name, map[string]string{"string": "TEXT", "integer": "INTEGER"}[a.Type])
	}
	t.insert = fmt.Sprintf("INSERT INTO %q VALUES (?%s)", table, strings.Repeat(", ?", fixed+len(t.places)-1))
	o.inserts[of+"_"+name] = t
	if err := o.run(fmt.Sprintf("CREATE TABLE %q (%s)", table, columns)); err != nil {
		return err
	}
	return o.run(fmt.Sprintf("INSERT INTO %s_map_type VALUES (?, ?)", of), name, short)
}

func (o *ocelSQLite) object(one object) error {
	if err := o.run("INSERT INTO object VALUES (?, ?)", one.id, one.kind); err != nil {
		return err
	}
	for _, r := range one.relations {
		if err := o.run("INSERT INTO object_object VALUES (?, ?, ?)", one.id, r.Object, r.Qualifier); err != nil {
			return err
		}
	}
	t := o.inserts["object_"+one.kind]
	row := make([]any, 3+len(t.places))
	row[0], row[1] = one.id, stamp(always)
	for _, v := range one.values {
		if v.at.IsZero() {
			row[t.places[v.name]] = v.is
		}
	}
	if err := o.run(t.insert, row...); err != nil {
		return err
	}
	for _, v := range one.values { // a row for each change
		if v.at.IsZero() {
			continue
		}
		row := make([]any, 3+len(t.places))
		row[0], row[1], row[2] = one.id, stamp(v.at), v.name
		row[t.places[v.name]] = v.is
		if err := o.run(t.insert, row...); err != nil {
			return err
		}
	}
	return nil
}

func (o *ocelSQLite) event(one objectEvent) error {
	if err := o.run("INSERT INTO event VALUES (?, ?)", one.id, one.kind); err != nil {
		return err
	}
	for _, r := range one.relations {
		if err := o.run("INSERT INTO event_object VALUES (?, ?, ?)", one.id, r.Object, r.Qualifier); err != nil {
			return err
		}
	}
	t := o.inserts["event_"+one.kind]
	row := make([]any, 2+len(t.places))
	row[0], row[1] = one.id, stamp(one.at)
	for _, v := range one.values {
		row[t.places[v.name]] = v.is
	}
	return o.run(t.insert, row...)
}

// run runs a statement, in a transaction with many others.
func (o *ocelSQLite) run(statement string, args ...any) (err error) {
	if o.pending >= rowsInTransaction {
		if err := o.commit(); err != nil {
			return err
		}
	}
	if o.tx == nil {
		if o.tx, err = o.db.Begin(); err != nil {
			return err
		}
	}
	o.pending++
	if len(args) == 0 {
		_, err = o.tx.Exec(statement)
		return err
	}
	s := o.prepared[statement]
	if s == nil {
		if s, err = o.tx.Prepare(statement); err != nil {
			return err
		}
		o.prepared[statement] = s
	}
	_, err = s.Exec(args...)
	return err
}

// commit ends the transaction, and with it its statements.
func (o *ocelSQLite) commit() error {
	if o.tx == nil {
		return nil
	}
	var err error
	for _, s := range o.prepared {
		err = errors.Join(err, s.Close())
	}
	clear(o.prepared)
	err = errors.Join(err, o.tx.Commit())
	o.tx, o.pending = nil, 0
	return err
}

func (o *ocelSQLite) close() error { return errors.Join(o.commit(), o.db.Close()) }
