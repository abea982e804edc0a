// Package schema is the schema of the warehouse as a document: one file for each table, with the records that feed it
// and the views that people read. The same text serves one server and a cluster, old and new versions of ClickHouse.
package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"text/template"

	"github.com/zeebo/xxh3"
)

//go:embed *.sql columns migrations
var embedded embed.FS

// Files is the folder of this package, as Load reads it.
func Files() fs.FS { return embedded }

// order of the files: each follows those that it reads. Migrations do not change it.
var order = []string{
	"records", "counts_1m", "sources", "history", "process_definitions",
	"incidents", "process_instances", "element_instances", "jobs", "variables", "user_tasks", "waits", "signals", "decisions", "events",
	"changes", "forgotten", "receipts", "v_lint",
}

// Schema is the schema of a database.
type Schema struct {
	Objects    []File // in the order of creation
	Migrations []File // that lead to it, in order; its version is their number
}

// File is a file of the schema: a list of objects, or a migration of statements.
type File struct {
	Name    string // without .sql
	Source  string
	Hash    string // of the statements, without comments, the same for every server
	objects []*object
	known   []*object // objects that its text may name
}

// Load reads a schema. checks is the SELECT of v_lint.
func Load(files fs.FS, checks string) (*Schema, error) {
	text, err := fs.ReadFile(files, "columns")
	if err != nil {
		return nil, fmt.Errorf("read the schema: %w", err)
	}
	shared := map[string]column{}
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		c, err := parseColumn(line)
		if err != nil {
			return nil, fmt.Errorf("columns of the schema: %w", err)
		}
		shared[c.name] = c
	}
	s := &Schema{}
	var known []*object
	for _, name := range order {
		f, err := load(files, name+".sql", checks, shared, nil)
		if err != nil {
			return nil, err
		}
		s.Objects, known = append(s.Objects, f), append(known, f.objects...)
	}
	migrations, err := fs.Glob(files, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	for _, name := range migrations {
		f, err := load(files, name, checks, nil, known)
		if err != nil {
			return nil, err
		}
		s.Migrations = append(s.Migrations, f)
	}
	if all, err := fs.Glob(files, "*.sql"); err != nil || len(all) != len(order) {
		return nil, fmt.Errorf("schema: %d files, and %d in their order: %w", len(all), len(order), err)
	}
	return s, nil
}

// load reads a file of objects, or without shared columns a migration.
func load(files fs.FS, name, checks string, shared map[string]column, known []*object) (File, error) {
	source, err := fs.ReadFile(files, name)
	if err != nil {
		return File{}, fmt.Errorf("read the schema: %w", err)
	}
	f := File{Name: strings.TrimSuffix(name, ".sql"), Source: string(source), known: known}
	if shared != nil {
		if f.objects, err = parse(f.Source, shared); err != nil {
			return File{}, fmt.Errorf("schema: %s: %w", name, err)
		}
		f.known = f.objects
	}
	h := xxh3.New()
	for _, s := range []Server{{Database: "flow", Version: Version{99, 12}, Checks: checks}, {Database: "flow", Cluster: "c", Shards: 1, Version: Version{99, 12}, Checks: checks}} {
		statements, err := f.Statements(s)
		if err != nil {
			return File{}, err
		}
		for _, statement := range statements {
			_, _ = h.WriteString(statement + ";\n")
		}
	}
	f.Hash = fmt.Sprintf("%016x", h.Sum64())
	return f, nil
}

// Statements renders the file for a server. A statement of a migration ends with a semicolon at the end of a line.
func (f File) Statements(s Server) ([]string, error) {
	var all []string
	for _, o := range f.objects {
		all = append(all, s.statements(o)...)
	}
	if f.objects == nil {
		for statement := range strings.SplitSeq(f.Source+"\n", ";\n") {
			if statement = strings.TrimSpace(statement); statement != "" {
				all = append(all, statement)
			}
		}
	}
	for i, text := range all {
		rendered, err := f.render(s, text)
		if err != nil {
			return nil, err
		}
		all[i] = database.ReplaceAllLiteralString(rendered, s.Database+".")
	}
	return all, nil
}

// Feed is the statement that recreates the materialized view of a table, for another server.
func (s *Schema) Feed(table string) File {
	f := File{Name: table, Source: `{{replace "` + table + `"}};` + "\n"}
	for _, of := range s.Objects {
		f.known = append(f.known, of.objects...)
	}
	return f
}

// render renders a statement for a server.
func (f File) render(s Server, text string) (string, error) {
	funcs := template.FuncMap{
		"merged": func(name string, condition ...string) (string, error) {
			name, as, _ := strings.Cut(name, " ")
			o, err := f.find(name)
			return s.merged(o, as, strings.Join(condition, "")), err
		},
		// In a migration: the current view, or materialized view of a table.
		"replace": func(name string) (string, error) {
			o, err := f.find(name)
			if err != nil {
				return "", err
			}
			text := strings.Replace(s.view(o), "CREATE VIEW IF NOT EXISTS", "CREATE OR REPLACE VIEW", 1)
			if o.verb == "TABLE" {
				_, query, _ := strings.Cut(s.feed(o), " AS\n")
				text = "ALTER TABLE flow." + name + "_mv" + s.OnCluster() + " MODIFY QUERY " + query
			}
			return f.render(s, text)
		},
	}
	t, err := template.New(f.Name).Funcs(funcs).Parse(text)
	if err != nil {
		return "", fmt.Errorf("parse %s of the schema: %w", f.Name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, s); err != nil {
		return "", fmt.Errorf("render %s of the schema: %w", f.Name, err)
	}
	return b.String(), nil
}

// database matches the database name in a text.
var database = regexp.MustCompile(`\bflow\.`)

func (f File) find(name string) (*object, error) {
	for _, o := range f.known {
		if o.name == name {
			return o, nil
		}
	}
	return &object{}, fmt.Errorf("%s names %s, which is not in the schema", f.Name, name)
}

func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}
