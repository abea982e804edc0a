package server_test

import (
	"strings"
	"testing"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
)

// These tests cover the state of one connection, and use ch-go. clickhouse-go may use another
// connection at any time: its pool admits the next caller before it has returned a connection.

func text(t *testing.T, c *ch.Client, sql string, settings ...string) string {
	t.Helper()
	var s proto.ColStr
	q := ch.Query{Body: "SELECT assumeNotNull(toString((" + sql + "))) AS s", Result: proto.Results{{Name: "s", Data: &s}}}
	for _, set := range settings {
		name, value, _ := strings.Cut(set, "=")
		q.Settings = append(q.Settings, ch.Setting{Key: name, Value: value, Important: true})
	}
	do(t, c, q)
	return s.Row(0)
}

func TestSessionSettingsOfAStatementHoldForIt(t *testing.T) {
	c := dial(t, "", ch.Options{})
	const size = "getSetting('max_block_size')"
	var got []string
	got = append(got, text(t, c, size), text(t, c, size, "max_block_size=11"), text(t, c, size, "max_block_size=12"), text(t, c, size))
	do(t, c, ch.Query{Body: "SET max_block_size = 13"}) // the session's own, restored later
	got = append(got, text(t, c, size), text(t, c, size, "max_block_size=14"), text(t, c, size))
	got = append(got, text(t, c, size, "max_threads=1", "max_block_size=15"), text(t, c, size, "max_threads=1"), text(t, c, size))
	expect.Equal(t, "max_block_size", []string{"65409", "11", "12", "65409", "13", "14", "13", "15", "13", "13"}, got)
	if got := text(t, c, "getSetting('async_insert')"); got != "0" && got != "false" {
		t.Errorf("async_insert is %s", got)
	}
	text(t, c, "1", "async_insert=1")
	if got := text(t, c, "getSetting('async_insert')"); got != "0" && got != "false" {
		t.Errorf("async_insert is %s after a statement that set it", got)
	}
}

func TestSessionAfterAReadonlyStatement(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	other, _ := clickhousetest.FreshDatabase(t)
	c := dial(t, other, ch.Options{})
	do(t, c, ch.Query{Body: "USE " + database})
	do(t, c, ch.Query{Body: "CREATE TABLE t (a Int64) ENGINE = Memory"})
	do(t, c, ch.Query{Body: "SET max_block_size = 13"})
	readonly := []ch.Setting{{Key: "readonly", Value: "1", Important: true}}
	for range 3 {
		wantChCode(t, c.Do(t.Context(), ch.Query{Body: "INSERT INTO t SELECT 1", Settings: readonly}), 164)
		expect.Equal(t, "result", "0", text(t, c, "SELECT count() FROM t WHERE a < 0", "readonly=1", "max_threads=2"))
		do(t, c, ch.Query{Body: "INSERT INTO t SELECT 1"})
	}
	got := []string{text(t, c, "SELECT count() FROM t"), text(t, c, "currentDatabase()"), text(t, c, "getSetting('max_block_size')")}
	expect.Equal(t, "rows, database, max_block_size", []string{"3", database, "13"}, got)
}

func TestSessionReadonlyGetsColumnsOfAnEmptyResult(t *testing.T) {
	c := dial(t, "", ch.Options{})
	var n proto.ColUInt64
	do(t, c, ch.Query{
		Body: "SELECT number AS n FROM numbers(0)", Result: proto.Results{{Name: "n", Data: &n}},
		Settings: []ch.Setting{{Key: "readonly", Value: "1", Important: true}},
	})
}

func TestSessionKeepsItsDatabaseAndTemporaryTables(t *testing.T) {
	one, _ := clickhousetest.FreshDatabase(t)
	two, _ := clickhousetest.FreshDatabase(t)
	c := dial(t, one, ch.Options{})
	got := []string{text(t, c, "currentDatabase()")}
	do(t, c, ch.Query{Body: "USE " + two})
	do(t, c, ch.Query{Body: "CREATE TEMPORARY TABLE mine (a Int64)"})
	do(t, c, ch.Query{Body: "INSERT INTO mine VALUES (1), (2)"})
	got = append(got, text(t, c, "currentDatabase()"), text(t, c, "SELECT count() FROM mine"))
	wantChCode(t, c.Do(t.Context(), ch.Query{Body: "USE nosuch"}), 81)
	got = append(got, text(t, c, "currentDatabase()"))
	expect.Equal(t, "result", []string{one, two, "2", two}, got)
	wantChCode(t, dial(t, two, ch.Options{}).Do(t.Context(), ch.Query{Body: "SELECT * FROM mine"}), 60)
}
