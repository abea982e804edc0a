package server_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/fatal"
)

// leaving are statements that leave the database in different ways.
func leaving(file string) map[string]string {
	return map[string]string{
		"a table function":              "SELECT * FROM file('" + file + "', 'LineAsString')",
		"one in a subquery":             "SELECT (SELECT any(line) FROM file('" + file + "', 'LineAsString'))",
		"one to be described":           "DESCRIBE TABLE file('" + file + "', 'LineAsString')",
		"one behind a comment":          "SELECT * FROM file/* a /* nested */ comment */('" + file + "', 'LineAsString')",
		"the function":                  "SELECT file('" + file + "')",
		"the function, quoted":          "SELECT `file`('" + file + "')",
		"the function, with escapes":    "SELECT `\\x66ile`('" + file + "')",
		"the function, in curly quotes": "SELECT “file”('" + file + "')",
		"behind a curly quote":          "SELECT ‘'’, file('" + file + "') AS a -- '",
		"behind half an exponent":       "SELECT 1e--1, file('" + file + "')",
		"behind a heredoc":              "SELECT $ '$ ' $ '$, file('" + file + "') AS a --'",
		"applied":                       "SELECT * APPLY file FROM (SELECT '" + file + "')",
		"applied in parentheses":        "SELECT * APPLY(file) FROM (SELECT '" + file + "')",
		"a bare name":                   "SELECT * FROM '" + file + "'",
		"a bare name of a database":     "SELECT * FROM default.`" + file + "`",
		"written":                       "INSERT INTO FUNCTION file('" + file + ".new', 'CSV') SELECT 1",
		"a file engine":                 "CREATE TABLE left (a String) ENGINE = File(CSV, '" + file + "')",
		"a file engine, bare":           "CREATE TABLE left (a String) ENGINE = File",
		"a table as of a function":      "CREATE TABLE left AS file('" + file + "', 'LineAsString')",
		"a default":                     "CREATE TABLE left (a String DEFAULT file('" + file + "')) ENGINE = Memory",
		"a function of one's own":       "CREATE FUNCTION left AS name -> file(name)",
		"a database":                    "CREATE DATABASE left ENGINE = Filesystem('" + filepath.Dir(file) + "')",
		"a dictionary":                  "CREATE DICTIONARY left (a UInt64) PRIMARY KEY a SOURCE(FILE(PATH '" + file + "' FORMAT 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
		"a program":                     "CREATE DICTIONARY left (a UInt64) PRIMARY KEY a SOURCE(EXECUTABLE(COMMAND 'id' FORMAT 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
		"another address":               "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a Int8') SETTINGS http_max_tries = 1",
		"another address, as a table":   "CREATE TABLE left (a Int8) ENGINE = URL('http://127.0.0.1:1/', CSV)",
		"another server":                "SELECT * FROM remote('127.0.0.1:1', system.one)",
		"object storage":                "SELECT * FROM s3('http://127.0.0.1:1/bucket/key', 'CSV', 'a Int8') SETTINGS s3_retry_attempts = 0",
		"another database":              "SELECT * FROM mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
		"a database file":               "SELECT * FROM sqlite('" + file + "', 't')",
		"a disk":                        "CREATE TABLE left (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = local, path = '" + filepath.Dir(file) + "/')",
		"a backup":                      "BACKUP TABLE system.one TO S3('http://127.0.0.1:1/bucket/key', 'k', 's')",
		"a text that is evaluated":      "SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1",
	}
}

// otherwise are the codes of those that ClickHouse refuses for other reasons.
var otherwise = map[string]string{"a bare name": "60", "behind half an exponent": "62"}

func TestNothingLeavesTheDatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret.txt")
	fatal.If(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	database, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for name, sql := range leaving(file) {
		t.Run(name, func(t *testing.T) {
			for method, send := range map[string]func() (reply, *http.Response){
				"GET":  func() (reply, *http.Response) { return get(t, url.Values{"database": {database}, "query": {sql}}) },
				"POST": func() (reply, *http.Response) { return post(t, url.Values{"database": {database}}, sql) },
			} {
				if got, _ := send(); got.Exception != "497" && got.Exception != otherwise[name] {
					t.Errorf("%s: %+v, want code 497 (ACCESS_DENIED)", method, got)
				}
			}
			if err := c.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "code: 497") && !strings.Contains(err.Error(), "code: "+otherwise[name]+",") {
				t.Errorf("native: %v, want code 497 (ACCESS_DENIED)", err)
			}
		})
	}
	t.Run("an expression among values", func(t *testing.T) {
		run(t, c, "CREATE TABLE t (a String) ENGINE = Memory")
		for name, send := range map[string]func() error{
			"native": func() error { return c.Exec(t.Context(), "INSERT INTO t VALUES (file('"+file+"'))") },
			"HTTP": func() error {
				got, _ := post(t, url.Values{"database": {database}, "query": {"INSERT INTO t VALUES"}}, "('a'), (file('"+file+"'))")
				return fmt.Errorf("%+v", got)
			},
			"HTTP, behind many": func() error {
				got, _ := post(t, url.Values{"database": {database}, "query": {"INSERT INTO t FORMAT Values"}}, strings.Repeat("('a'), ", 200_000)+"(file('"+file+"'))")
				return fmt.Errorf("%+v", got)
			},
		} {
			if err := send(); err == nil || strings.Contains(err.Error(), "{Status:200") {
				t.Errorf("%s: %v, want an error", name, err)
			}
		}
		if n := count(t, c, "t WHERE a LIKE 'secret%'"); n != 0 {
			t.Error("the file was read")
		}
	})
	if _, err := os.Stat(file + ".new"); err == nil {
		t.Error("a file was written")
	}
}

// TestNamesThatStayInside accepts statements that only seem to leave.
func TestNamesThatStayInside(t *testing.T) {
	for _, sql := range []string{
		"SELECT file, url FROM t WHERE file IN ('a') AND 'url(' != file",
		"INSERT INTO url (file, s3) SELECT 1, 2",
		"CREATE TABLE IF NOT EXISTS disk (file String) ENGINE = MergeTree ORDER BY file",
		"CREATE TABLE http (url String) ENGINE = Memory",
		"SELECT 1 -- file('x')\n, 2 /* url('x') */ // remote('x')",
		"SELECT $tag$ file('x') $tag$, ‘url('x')’",
		"INSERT INTO d.file (a) VALUES",
	} {
		if what := server.LeavesDatabase(sql); what != "" {
			t.Errorf("%s: %s", sql, what)
		}
	}
}

// TestEveryNameOfTheEngineIsKnown compares the engine's names with ours: each name of a later
// engine must be allowed or forbidden here.
func TestEveryNameOfTheEngineIsKnown(t *testing.T) {
	inside := map[string]string{
		"table_functions": `SQLStandardValues dictionary format fuzzJSON fuzzQuery generateRandom generateSeries generate_series input loop merge
			mergeTreeAnalyzeIndexes mergeTreeAnalyzeIndexesUUID mergeTreeIndex mergeTreeProjection mergeTreeTextIndex null numbers numbers_mt
			primes prometheusQuery prometheusQueryRange timeSeriesData timeSeriesMetrics timeSeriesSamples timeSeriesSelector timeSeriesTags
			values view viewExplain viewIfPermitted zeros zeros_mt`,
		"table_engines": `AggregatingMergeTree Alias Buffer CoalescingMergeTree CollapsingMergeTree Dictionary EmbeddedRocksDB FuzzJSON FuzzQuery
			GenerateRandom GraphiteMergeTree Join Log Loop MaterializedView Memory Merge MergeTree Null ReplacingMergeTree Set StripeLog
			SummingMergeTree TimeSeries TinyLog VersionedCollapsingMergeTree View WindowView
			ReplicatedAggregatingMergeTree ReplicatedCoalescingMergeTree ReplicatedCollapsingMergeTree ReplicatedGraphiteMergeTree
			ReplicatedMergeTree ReplicatedReplacingMergeTree ReplicatedSummingMergeTree ReplicatedVersionedCollapsingMergeTree`,
		"database_engines":   `Atomic Backup DataLakeCatalog Dictionary Memory Ordinary Replicated`, // granted are Atomic, Memory and Ordinary
		"dictionary_sources": `null yamlregexptree`,                                                 // no dictionary is granted
	}
	for table, names := range inside {
		known := map[string]bool{}
		for _, name := range strings.Fields(names) {
			known[name] = true
		}
		for name := range strings.Lines(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT name FROM system."+table)) {
			name = strings.TrimSpace(name)
			if leaves := server.Leaves()[strings.ToLower(strings.ReplaceAll(name, "_", ""))]; !leaves && !known[name] && !server.Leaves()[strings.ToLower(name)] {
				t.Errorf("%s: %s is neither inside nor outside", table, name)
			}
		}
	}
}
