package server_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// reply is the compared parts of an HTTP response.
type reply struct {
	Status    int
	Exception string // X-ClickHouse-Exception-Code
	Body      string
}

func send(t *testing.T, request *http.Request) (reply, *http.Response) {
	t.Helper()
	answer, err := http.DefaultClient.Do(request)
	fatal.If(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fatal.When(t, err != nil, "read the answer: %v", err)
	return reply{answer.StatusCode, answer.Header.Get("X-ClickHouse-Exception-Code"), string(body)}, answer
}

func request(t *testing.T, method, query, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, clickhousetest.Shared(t).HTTP()+"/"+query, strings.NewReader(body))
	fatal.If(t, err)
	return r
}

func get(t *testing.T, values url.Values) (reply, *http.Response) {
	t.Helper()
	return send(t, request(t, http.MethodGet, "?"+values.Encode(), ""))
}

func post(t *testing.T, values url.Values, body string) (reply, *http.Response) {
	t.Helper()
	return send(t, request(t, http.MethodPost, "?"+values.Encode(), body))
}

func ok(body string) reply { return reply{Status: 200, Body: body} }

func TestHTTPAnswersStatements(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	for _, c := range []struct {
		name   string
		values url.Values
		body   string
		want   reply
	}{
		{"a query in the URL", url.Values{"query": {"SELECT 1, 'a'"}}, "", ok("1\ta\n")},
		{"a query in the body", nil, "SELECT 2", ok("2\n")},
		{"a query begun in the URL and ended in the body", url.Values{"query": {"SELECT 3"}}, " FORMAT CSV", ok("3\n")},
		{"a trailing semicolon", nil, "SELECT 4; -- done\n", ok("4\n")},
		{"a FORMAT", nil, "SELECT 5 AS a FORMAT JSONEachRow", ok("{\"a\":5}\n")},
		{"a default format", url.Values{"default_format": {"CSVWithNames"}}, "SELECT 6 AS a, 'x' AS b", ok("\"a\",\"b\"\n6,\"x\"\n")},
		{"a setting", url.Values{"max_block_size": {"77"}}, "SELECT getSetting('max_block_size')", ok("77\n")},
		{"query parameters", url.Values{"param_n": {"9223372036854775807"}, "param_s": {"it's \\t \\\\ {x}"}}, "SELECT {n:Int64}, {s:String}", ok("9223372036854775807\tit\\'s \\t \\\\ {x}\n")},
		{"a parameter for an identifier", url.Values{"param_t": {"one"}, "database": {"system"}}, "SELECT count() FROM {t:Identifier}", ok("1\n")},
		{"a database", url.Values{"database": {database}}, "SELECT currentDatabase()", ok(database + "\n")},
		{"a statement without a result", url.Values{"database": {database}}, "CREATE TABLE nothing (a Int8) ENGINE = Memory", ok("")},
		{"an empty result", nil, "SELECT 1 WHERE 0", ok("")},
		{"an empty result with names", nil, "SELECT 1 AS a WHERE 0 FORMAT CSVWithNames", ok("\"a\"\n")},
		{"SHOW", url.Values{"database": {database}}, "EXISTS TABLE nosuch", ok("0\n")},
		{"a syntax error", nil, "SELEC 1", reply{400, "62", ""}},
		{"several statements", nil, "SELECT 1; SELECT 2", reply{400, "62", ""}},
		{"an empty statement", nil, " ", reply{400, "62", ""}},
		{"an unknown table", nil, "SELECT * FROM nosuch", reply{404, "60", ""}},
		{"an unknown column", nil, "SELECT nosuch", reply{404, "47", ""}},
		{"an unknown setting", url.Values{"nosuch": {"1"}}, "SELECT 1", reply{404, "115", ""}},
		{"an unknown database", url.Values{"database": {"nosuch"}}, "SELECT 1", reply{404, "81", ""}},
		{"an unknown format", nil, "SELECT 1 FORMAT Nosuch", reply{404, "73", ""}},
		{"a wrong value for a setting", url.Values{"max_threads": {"many"}}, "SELECT 1", reply{400, "", ""}},
		{"a type mismatch", nil, "SELECT toInt64('x')", reply{400, "6", ""}},
		{"an error of the statement", nil, "SELECT throwIf(number = 3) FROM numbers(10)", reply{500, "395", ""}},
		{"a memory limit", url.Values{"max_memory_usage": {"1000000"}}, "SELECT groupArray(number) FROM numbers(10000000)", reply{500, "241", ""}},
		{"a time limit", url.Values{"max_execution_time": {"1"}}, "SELECT count() FROM numbers(1e12) WHERE NOT ignore(sipHash64(number))", reply{408, "159", ""}},
		{"no access control", nil, "CREATE USER u", reply{403, "497", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, answer := post(t, c.values, c.body)
			if c.want.Status != 200 {
				expect.Not(t, !strings.Contains(got.Body, "DB::Exception: ") || !strings.HasPrefix(got.Body, "Code: "+got.Exception+". "), "error reads %q", got.Body)
				got.Body = ""
				if c.want.Exception == "" {
					c.want.Exception = got.Exception
				}
			}
			expect.Equal(t, "result", c.want, got)
			expect.Not(t, answer.Header.Get("X-ClickHouse-Query-Id") == "" && answer.StatusCode == 200, "no X-ClickHouse-Query-Id")
		})
	}
}

func TestHTTPGetChangesNothing(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = Memory")
	for _, sql := range []string{"INSERT INTO t VALUES (1)", "INSERT INTO t SELECT 1", "DROP TABLE t", "CREATE TABLE u (a Int8) ENGINE = Memory", "SET max_threads = 1"} {
		got, _ := get(t, url.Values{"database": {database}, "query": {sql}})
		if sql == "SET max_threads = 1" {
			expect.Not(t, got.Status != 200, "%s: %v", sql, got)
			continue
		}
		expect.Not(t, got.Exception != "164", "%s: got %v, want code 164 (READONLY)", sql, got)
	}
	if got, _ := get(t, url.Values{"database": {database}, "query": {"SELECT count() FROM t SETTINGS max_threads = 2"}}); got != ok("0\n") {
		t.Errorf("got %v", got)
	}
}

func TestHTTPHeaders(t *testing.T) {
	got, answer := get(t, url.Values{"query": {"SELECT number FROM numbers(10) FORMAT JSON"}, "query_id": {"my-id"}})
	expect.Not(t, got.Status != 200 || !json.Valid([]byte(got.Body)), "got %v", got)
	headers := map[string]string{}
	for _, name := range []string{"Content-Type", "X-Clickhouse-Query-Id", "X-Clickhouse-Format", "X-Clickhouse-Timezone"} {
		headers[name] = answer.Header.Get(name)
	}
	if diff := cmp.Diff(map[string]string{
		"Content-Type": "application/json; charset=UTF-8", "X-Clickhouse-Query-Id": "my-id",
		"X-Clickhouse-Format": "JSON", "X-Clickhouse-Timezone": "Etc/UTC",
	}, headers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var summary map[string]string
	fatal.If(t, json.Unmarshal([]byte(answer.Header.Get("X-ClickHouse-Summary")), &summary))
	expect.Not(t, summary["result_rows"] != "10" || summary["read_rows"] != "10" || summary["elapsed_ns"] == "0", "summary is %v", summary)
}

func TestHTTPHealth(t *testing.T) {
	for path, want := range map[string]reply{"ping": ok("Ok.\n"), "": ok("Ok.\n"), "replicas_status": ok("Ok.\n")} {
		if got, _ := send(t, request(t, http.MethodGet, path, "")); got != want {
			t.Errorf("/%s: got %v, want %v", path, got, want)
		}
	}
	if got, _ := send(t, request(t, http.MethodGet, "nosuch", "")); got.Status != 404 || !strings.HasPrefix(got.Body, "There is no handle /nosuch") {
		t.Errorf("got %v", got)
	}
}
