package server_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// TestTextsHideNoStatement sends texts that hide a second statement behind ClickHouse's own
// syntax.
func TestTextsHideNoStatement(t *testing.T) {
	database, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	run(t, c, "CREATE TABLE kept (a Int64) ENGINE = Memory")
	for _, sql := range []string{
		"SELECT 1; DROP TABLE kept",
		"SELECT ‘'’; DROP TABLE kept --'",
		"SELECT “\"” FROM (SELECT 1 AS “\"”); DROP TABLE kept --\"",
		"SELECT 1 // '\n; DROP TABLE kept --'",
		"SELECT 1 /* /* */ ' */; DROP TABLE kept --'",
		"SELECT x'27'; DROP TABLE kept --'",
		"SELECT $ '$ $ '$; DROP TABLE kept --'",
		"SELECT 1\u2003; DROP TABLE kept",
		"SELECT 1e-- '\n; DROP TABLE kept --'",
		"SELECT 1; not a statement",
		"DROP TABLE kept; not a statement",
		"not a statement; DROP TABLE kept",
		"DROP TABLE kept PARALLEL WITH DROP TABLE kept",
		"EXPLAIN AST SELECT 1; DROP TABLE kept; not a statement",
	} {
		for method, send := range map[string]func() (reply, *http.Response){
			"GET":  func() (reply, *http.Response) { return get(t, url.Values{"database": {database}, "query": {sql}}) },
			"POST": func() (reply, *http.Response) { return post(t, url.Values{"database": {database}}, sql) },
		} {
			if got, _ := send(); got.Exception != "62" {
				t.Errorf("%s %s: %+v, want code 62 (SYNTAX_ERROR)", method, sql, got)
			}
		}
		if err := c.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "code: 62") {
			t.Errorf("native %s: %v, want code 62 (SYNTAX_ERROR)", sql, err)
		}
	}
	if n := count(t, c, "system.tables WHERE database = currentDatabase() AND name = 'kept'"); n != 1 {
		t.Error("a hidden statement ran")
	}
}

// TestHTTPGetOnlyReads sends statements forbidden in a GET, and so in an <img>.
func TestHTTPGetOnlyReads(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	post(t, url.Values{"database": {database}}, "CREATE TABLE t (a Int64) ENGINE = Memory")
	for _, sql := range []string{
		"KILL QUERY WHERE 1", "SYSTEM FLUSH LOGS", "SYSTEM DROP MARK CACHE", "INSERT INTO t SETTINGS readonly = 0 VALUES (1)",
		"INSERT INTO t SELECT 1 SETTINGS readonly = DEFAULT", "DROP TABLE t", "TRUNCATE TABLE t", "OPTIMIZE TABLE t",
		"CREATE TEMPORARY TABLE u (a Int8)", "CREATE FUNCTION left AS a -> a",
		"BEGIN TRANSACTION", "ATTACH TABLE u", "DETACH TABLE t", "BACKUP TABLE t TO Memory('b')",
	} {
		if got, _ := get(t, url.Values{"database": {database}, "query": {sql}}); got.Exception != "164" {
			t.Errorf("%s: %+v, want code 164 (READONLY)", sql, got)
		}
	}
	if got, _ := get(t, url.Values{"query": {"SET ROLE admin"}}); got.Exception != "497" {
		t.Errorf("SET ROLE: %+v, want code 497 (ACCESS_DENIED)", got)
	}
	for _, sql := range []string{"SELECT count() FROM t", "WITH 1 AS a SELECT a - 1", "SELECT count() FROM (EXPLAIN SELECT 1) WHERE explain = 'nothing'"} {
		if got, _ := get(t, url.Values{"database": {database}, "query": {sql}}); got != ok("0\n") {
			t.Errorf("%s: %+v", sql, got)
		}
	}
}

// TestHTTPRefusesOtherSites sends a browser's requests for a page of another site.
func TestHTTPRefusesOtherSites(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"an image":                             {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"a page of another port":               {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		"a script":                             {func(r *http.Request) { r.Header.Set("Origin", "http://example.com") }, 403},
		"a sandboxed page":                     {func(r *http.Request) { r.Header.Set("Origin", "null") }, 403},
		"a script of another port":             {func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }, 403},
		"an image in an old browser":           {func(r *http.Request) { r.Header.Set("Referer", "http://example.com/page") }, 403},
		"a name that resolves to this machine": {func(r *http.Request) { r.Host = "rebound.example.com:8123" }, 403},
		"a person, in the address bar":         {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 200},
		"a page of ours":                       {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }, 200},
		"a script of ours":                     {func(r *http.Request) { r.Header.Set("Origin", "http://"+r.URL.Host) }, 200},
		"localhost":                            {func(r *http.Request) { r.Host = "localhost" }, 200},
		"curl":                                 {func(r *http.Request) {}, 200},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			r := request(t, method, "?query=SELECT+1", "")
			c.change(r)
			if got, _ := send(t, r); got.Status != c.status {
				t.Errorf("%s, %s: %+v, want %d", name, method, got, c.status)
			}
		}
	}
}
