// Package schema is the schema of the warehouse as a document: one file for each table,
// with the materialized view that feeds it and the views that people read. The files are
// templates: the same text gives the schema of one server and of a cluster, for old and
// new versions of ClickHouse. What is in them is what exists.
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

//go:embed *.sql migrations
var embedded embed.FS

// Files are the folder of this package: what Load reads.
func Files() fs.FS { return embedded }

// order of the files: each follows what it reads. A migration does not change it.
var order = []string{
	"records", "counts_1m", "sources",
	"incidents", "process_instances", "element_instances", "jobs", "variables", "user_tasks", "waits", "signals", "decisions", "process_definitions",
	"changes", "forgotten", "receipts", "v_lint",
}

// Schema is what a database is to have.
type Schema struct {
	Objects    []File // in the order in which they are created
	Migrations []File // that lead to it, in order; its version is their number
}

// File is a file of the schema.
type File struct {
	Name   string // without .sql
	Source string
	Hash   string // of the statements, without comments and whatever the server is
}

// Load reads a schema. checks is the SELECT of v_lint.
func Load(files fs.FS, checks string) (*Schema, error) {
	s := &Schema{}
	for _, name := range order {
		f, err := load(files, name+".sql", checks)
		if err != nil {
			return nil, err
		}
		s.Objects = append(s.Objects, f)
	}
	migrations, err := fs.Glob(files, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	for _, name := range migrations {
		f, err := load(files, name, checks)
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

func load(files fs.FS, name, checks string) (File, error) {
	source, err := fs.ReadFile(files, name)
	if err != nil {
		return File{}, fmt.Errorf("read the schema: %w", err)
	}
	f := File{Name: strings.TrimSuffix(name, ".sql"), Source: string(source)}
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

// Statements renders the file for a server. A statement ends with a semicolon at the end
// of a line; the paragraph before a table or a view becomes its comment.
func (f File) Statements(s Server) ([]string, error) {
	t, err := template.New(f.Name).Funcs(template.FuncMap{"about": about, "columns": columns}).Option("missingkey=error").Parse(f.Source)
	if err != nil {
		return nil, fmt.Errorf("parse %s of the schema: %w", f.Name, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, s); err != nil {
		return nil, fmt.Errorf("render %s of the schema: %w", f.Name, err)
	}
	var all []string
	for text := range strings.SplitSeq(b.String()+"\n", ";\n") {
		paragraph, statement := cut(text)
		if statement == "" {
			continue
		}
		if paragraph != "" && commented.MatchString(statement) {
			statement += "\nCOMMENT " + quote(paragraph)
		}
		all = append(all, statement)
	}
	return all, nil
}

// commented are statements that take a comment: tables of rows, and views.
var commented = regexp.MustCompile(`^CREATE (OR REPLACE )?(TABLE|VIEW) `)

// cut separates the comment before a statement from it. An empty line of the comment
// begins a new paragraph.
func cut(text string) (paragraph, statement string) {
	var b, said strings.Builder
	for line := range strings.Lines(text) {
		comment, is := strings.CutPrefix(strings.TrimSpace(line), "--")
		switch {
		case !is:
			b.WriteString(line)
		case comment == "":
			said.WriteString("\n\n")
		default:
			said.WriteString(comment)
		}
	}
	return strings.TrimSpace(strings.ReplaceAll(said.String(), "\n ", "\n")), strings.TrimSpace(b.String())
}

func quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
}
