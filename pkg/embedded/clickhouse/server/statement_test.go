package server_test

import (
	"fmt"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestStatementIsTakenApart(t *testing.T) {
	type s = server.Statement
	type i = server.Insert
	plain := func(text, verb string) s { return s{Text: text, WithoutFormat: text, Verb: verb} }
	for _, c := range []struct {
		name, text string
		want       s
	}{
		{"a SELECT", "SELECT 1", plain("SELECT 1", "SELECT")},
		{"small letters", "select 1", plain("select 1", "SELECT")},
		{"a trailing semicolon and comment", "SELECT 1 ; -- ;\n/* ; */", plain("SELECT 1", "SELECT")},
		{"a leading comment", "-- SELECT\n/* INSERT */ # no\nUSE x", plain("-- SELECT\n/* INSERT */ # no\nUSE x", "USE")},
		{"a FORMAT", "SELECT 1 FORMAT JSON", s{Text: "SELECT 1 FORMAT JSON", Verb: "SELECT", Format: "JSON", WithoutFormat: "SELECT 1 "}},
		{"a FORMAT before SETTINGS", "SELECT 1 format CSV settings max_threads = 1;", s{Text: "SELECT 1 format CSV settings max_threads = 1", Verb: "SELECT", Format: "CSV", WithoutFormat: "SELECT 1  settings max_threads = 1"}},
		{"a column named format", "SELECT format FROM t", plain("SELECT format FROM t", "SELECT")},
		{"a column named format with an alias", "SELECT format AS f, format g FROM t", plain("SELECT format AS f, format g FROM t", "SELECT")},
		{"a table named format and a FORMAT", "SELECT * FROM format FORMAT CSV", s{Text: "SELECT * FROM format FORMAT CSV", Verb: "SELECT", Format: "CSV", WithoutFormat: "SELECT * FROM format "}},
		{"the function format", "SELECT * FROM format(CSV, '1')", plain("SELECT * FROM format(CSV, '1')", "SELECT")},
		{"FORMAT in a text", "SELECT ' FORMAT CSV'", plain("SELECT ' FORMAT CSV'", "SELECT")},
		{"FORMAT in a heredoc", "SELECT $x$ FORMAT CSV; $x$", plain("SELECT $x$ FORMAT CSV; $x$", "SELECT")},
		{"two statements", "SELECT 1; SELECT 2", s{Text: "SELECT 1", WithoutFormat: "SELECT 1", Verb: "SELECT", Many: true}},
		{"a semicolon in a text", "SELECT ';', \";\", `;`, '\\';', ''';'", plain("SELECT ';', \";\", `;`, '\\';', ''';'", "SELECT")},
		{"parentheses", "(SELECT 1)", plain("(SELECT 1)", "")},
		{"nothing", "", plain("", "")},
		{"nothing but a semicolon", " ; ", plain("", "")},
		{"INSERT VALUES", "INSERT INTO t VALUES (1)", s{Text: "INSERT INTO t VALUES (1)", WithoutFormat: "INSERT INTO t VALUES (1)", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO t ", Target: "t", Format: "Values", Data: " (1)"}}},
		{"INSERT with columns", "INSERT INTO db.`t` (a, `b)`) FORMAT Native", s{Text: "INSERT INTO db.`t` (a, `b)`) FORMAT Native", WithoutFormat: "INSERT INTO db.`t` (a, `b)`) FORMAT Native", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO db.`t` (a, `b)`) ", Target: "db.`t`", Columns: "a, `b)`", Format: "Native"}}},
		{"INSERT with settings", "INSERT INTO TABLE t SETTINGS a = 'VALUES', b = 1 VALUES", s{Text: "INSERT INTO TABLE t SETTINGS a = 'VALUES', b = 1 VALUES", WithoutFormat: "INSERT INTO TABLE t SETTINGS a = 'VALUES', b = 1 VALUES", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO TABLE t SETTINGS a = 'VALUES', b = 1 ", Target: "t", Format: "Values"}}},
		{"INSERT into a function", "INSERT INTO FUNCTION null('a Int8') (a) VALUES", s{Text: "INSERT INTO FUNCTION null('a Int8') (a) VALUES", WithoutFormat: "INSERT INTO FUNCTION null('a Int8') (a) VALUES", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO FUNCTION null('a Int8') (a) ", Target: "FUNCTION null('a Int8')", Columns: "a", Format: "Values"}}},
		{"INSERT without a format", "INSERT INTO t", s{Text: "INSERT INTO t", WithoutFormat: "INSERT INTO t", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO t", Target: "t"}}},
		{"INSERT of data with semicolons", "INSERT INTO t FORMAT TSV \r\n;a\n; b", s{Text: "INSERT INTO t FORMAT TSV \r\n;a\n; b", WithoutFormat: "INSERT INTO t FORMAT TSV \r\n;a\n; b", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO t ", Target: "t", Format: "TSV", Data: ";a\n; b"}}},
		{"INSERT keeps a second line break as data", "INSERT INTO t FORMAT TSV\n\n1", s{Text: "INSERT INTO t FORMAT TSV\n\n1", WithoutFormat: "INSERT INTO t FORMAT TSV\n\n1", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO t ", Target: "t", Format: "TSV", Data: "\n1"}}},
		{"INSERT SELECT", "INSERT INTO t (a) SELECT 1 FORMAT Null;", s{Text: "INSERT INTO t (a) SELECT 1 FORMAT Null", WithoutFormat: "INSERT INTO t (a) SELECT 1 ", Verb: "INSERT", Format: "Null"}},
		{"INSERT WITH", "INSERT INTO t WITH 1 AS x SELECT x", plain("INSERT INTO t WITH 1 AS x SELECT x", "INSERT")},
		{"INSERT of a SELECT in parentheses", "INSERT INTO t (SELECT 1)", plain("INSERT INTO t (SELECT 1)", "INSERT")},
		{"INSERT into tables with keywords for names", "INSERT INTO values VALUES (1)", s{Text: "INSERT INTO values VALUES (1)", WithoutFormat: "INSERT INTO values VALUES (1)", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO values ", Target: "values", Format: "Values", Data: " (1)"}}},
		{"INSERT into a table named table", "INSERT INTO table (a) VALUES (1)", s{Text: "INSERT INTO table (a) VALUES (1)", WithoutFormat: "INSERT INTO table (a) VALUES (1)", Verb: "INSERT",
			Insert: &i{Head: "INSERT INTO table (a) ", Target: "table", Columns: "a", Format: "Values", Data: " (1)"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect.Equal(t, fmt.Sprintf("%q", c.text), c.want, server.ParseStatement(c.text))
		})
	}
}

// FuzzParseStatement checks invariants: parts are slices of the text in order, and omitted text
// holds nothing of the statement.
func FuzzParseStatement(f *testing.F) {
	for _, seed := range []string{
		"SELECT 1", "SELECT 1 FORMAT JSON SETTINGS a = 1;", "INSERT INTO t VALUES (1)", "INSERT INTO a.`b` (c, d) SETTINGS x = 'y' FORMAT CSV\n1,2",
		"INSERT INTO FUNCTION f(')') (a) VALUES", "-- a\n/* b */ SELECT $x$;$x$; ;", "INSERT INTO t (SELECT 1)", "SELECT '\\", "`", "$a$", "(((", "INSERT INTO t.", "SELECT format FORMAT format",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := server.ParseStatement(text)
		fatal.When(t, !strings.HasPrefix(text, s.Text), "text %q is not the beginning of %q", s.Text, text)
		fatal.When(t, s.Verb != strings.ToUpper(s.Verb) || s.Verb != "" && !strings.Contains(strings.ToUpper(text), s.Verb), "verb %q is not in %q", s.Verb, text)
		if i := s.Insert; i != nil {
			if s.Verb != "INSERT" || i.Target == "" || !strings.Contains(i.Head, i.Target) || !strings.Contains(i.Head, i.Columns) {
				t.Fatalf("%q: head %q does not hold target %q and columns %q", text, i.Head, i.Target, i.Columns)
			}
			if !strings.HasPrefix(text, i.Head) || !strings.HasSuffix(text, i.Data) || len(i.Head)+len(i.Format)+len(i.Data) > len(text) {
				t.Fatalf("%q: head %q and data %q overlap", text, i.Head, i.Data)
			}
			return
		}
		if rest := text[len(s.Text):]; !s.Many {
			if again := server.ParseStatement(rest); again.Text != "" || again.Many {
				t.Fatalf("%q: %q was cut off, and holds %q", text, rest, again.Text)
			}
		}
		if again := server.ParseStatement(s.Text); again.Text != s.Text || again.Format != s.Format {
			t.Fatalf("%q becomes %q, then %q", text, s.Text, again.Text)
		}
		if s.Format != "" && len(s.WithoutFormat) > len(s.Text)-len(s.Format)-len("FORMAT") {
			t.Fatalf("%q without its format is %q", s.Text, s.WithoutFormat)
		}
	})
}
