package clickhouse_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// reply is what matters of an answer over HTTP.
type reply struct {
	Status    int
	Exception string // X-ClickHouse-Exception-Code
	Body      string
}

func send(t *testing.T, request *http.Request) (reply, *http.Response) {
	t.Helper()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return reply{answer.StatusCode, answer.Header.Get("X-ClickHouse-Exception-Code"), string(body)}, answer
}

func request(t *testing.T, method, query, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(method, clickhousetest.Shared(t).HTTP()+"/"+query, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
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
		{"a session", url.Values{"session_id": {"x"}}, "SELECT 1", reply{501, "48", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, answer := post(t, c.values, c.body)
			if c.want.Status != 200 {
				if !strings.Contains(got.Body, "DB::Exception: ") || !strings.HasPrefix(got.Body, "Code: "+got.Exception+". ") {
					t.Errorf("error reads %q", got.Body)
				}
				got.Body = ""
				if c.want.Exception == "" {
					c.want.Exception = got.Exception
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if answer.Header.Get("X-ClickHouse-Query-Id") == "" && answer.StatusCode == 200 {
				t.Error("no X-ClickHouse-Query-Id")
			}
		})
	}
}

func TestHTTPTakesInsertsInAnyFormat(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	with := func(query string, more ...string) url.Values {
		values := url.Values{"database": {database}, "query": {query}}
		for i := 0; i < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		return values
	}
	native, _ := post(t, nil, "SELECT toInt64(number) AS a, toString(number) AS b FROM numbers(3) FORMAT Native")
	parquet, _ := post(t, nil, "SELECT toInt64(number) AS a, toString(number) AS b FROM numbers(3) FORMAT Parquet")
	const rows = "0\t0\n1\t1\n2\t2\n"
	for _, c := range []struct {
		name   string
		values url.Values
		body   string
		want   string
	}{
		{"JSONEachRow in the body", with("INSERT INTO t FORMAT JSONEachRow"), `{"a":0,"b":"0"} {"a":"1","b":"1"}` + "\n" + `{"a":2,"b":"2"}`, rows},
		{"text and data in the body", in, "INSERT INTO t (b, a) FORMAT CSV\n\"0\",0\n\"1\",1\n2,2\n", rows},
		{"text and data on one line", in, `INSERT INTO t FORMAT JSONEachRow {"a":0,"b":"0"}{"a":1,"b":"1"}{"a":2,"b":"2"}`, rows},
		{"VALUES in the body", in, "INSERT INTO t VALUES (0, '0'), (1, '1'), (1 + 1, '2')", rows},
		{"VALUES begun in the URL", with("INSERT INTO t VALUES"), "(0, '0'), (1, '1'), (2, '2')", rows},
		{"VALUES in the URL", with("INSERT INTO t VALUES (0, '0'), (1, '1'), (2, '2')"), "", rows},
		{"TabSeparated with a semicolon in the data", with("INSERT INTO t FORMAT TSV"), "0\t;SELECT 1;\n", "0\t;SELECT 1;\n"},
		{"a line break after FORMAT that belongs to no data", in, "INSERT INTO t FORMAT TSV\r\n0\t0\n1\t1\n2\t2\n", rows},
		{"Native", with("INSERT INTO t FORMAT Native"), native.Body, rows},
		{"Parquet", with("INSERT INTO t FORMAT Parquet"), parquet.Body, rows},
		{"the default format", with("INSERT INTO t", "default_format", "CSV"), "0,0\n1,1\n2,2\n", rows},
		{"settings in the statement", in, "INSERT INTO t SETTINGS format_csv_delimiter = '|', async_insert = 1 FORMAT CSV 0|0\n1|1\n2|2\n", rows},
		{"comments", in, "-- first\nINSERT /* into */ INTO t # no\n(a, b) FORMAT CSV\n0,0\n1,1\n2,2\n", rows},
		{"INSERT SELECT", in, "INSERT INTO t SELECT number, toString(number) FROM numbers(3)", rows},
		{"quoted names", in, "INSERT INTO `" + database + "`.\"t\" (`a`, \"b\") FORMAT CSV 0,0\n1,1\n2,2\n", rows},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := post(t, in, "CREATE OR REPLACE TABLE t (a Int64, b String) ENGINE = MergeTree ORDER BY a"); got.Status != 200 {
				t.Fatal(got)
			}
			got, answer := post(t, c.values, c.body)
			if diff := cmp.Diff(ok(""), got); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			var summary struct {
				WrittenRows string `json:"written_rows"`
			}
			if err := json.Unmarshal([]byte(answer.Header.Get("X-ClickHouse-Summary")), &summary); err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint(strings.Count(c.want, "\n")); summary.WrittenRows != want {
				t.Errorf("summary says %q rows were written, want %s", summary.WrittenRows, want)
			}
			stored, _ := post(t, in, "SELECT * FROM t ORDER BY a")
			if diff := cmp.Diff(ok(c.want), stored); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPRefusesBadData(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64, b String) ENGINE = MergeTree ORDER BY a")
	for query, want := range map[string]reply{
		"INSERT INTO t FORMAT JSONEachRow {\"a\":1}{\"a\":\"x\"}": {400, "", ""},
		"INSERT INTO t FORMAT CSV 1,x\ny,z\n":                     {400, "", ""},
		"INSERT INTO nosuch FORMAT CSV 1,x\n":                     {404, "60", ""},
		"INSERT INTO t FORMAT Nosuch 1,x\n":                       {404, "73", ""},
		"INSERT INTO t (c) FORMAT CSV 1\n":                        {404, "16", ""},
	} {
		got, _ := post(t, in, query)
		if got.Exception == "16" { // NO_SUCH_COLUMN_IN_TABLE is a 500 in ClickHouse
			want.Status = 500
		}
		if want.Exception == "" {
			want.Exception = got.Exception
		}
		got.Body = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("0\n") {
		t.Errorf("refused data is stored: %v", got)
	}
}

func TestHTTPGetChangesNothing(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = Memory")
	for _, sql := range []string{"INSERT INTO t VALUES (1)", "INSERT INTO t SELECT 1", "DROP TABLE t", "CREATE TABLE u (a Int8) ENGINE = Memory", "SET max_threads = 1"} {
		got, _ := get(t, url.Values{"database": {database}, "query": {sql}})
		if sql == "SET max_threads = 1" {
			if got.Status != 200 {
				t.Errorf("%s: %v", sql, got)
			}
			continue
		}
		if got.Exception != "164" {
			t.Errorf("%s: got %v, want code 164 (READONLY)", sql, got)
		}
	}
	if got, _ := get(t, url.Values{"database": {database}, "query": {"SELECT count() FROM t SETTINGS max_threads = 2"}}); got != ok("0\n") {
		t.Errorf("got %v", got)
	}
}

func TestHTTPHeaders(t *testing.T) {
	got, answer := get(t, url.Values{"query": {"SELECT number FROM numbers(10) FORMAT JSON"}, "query_id": {"my-id"}})
	if got.Status != 200 || !json.Valid([]byte(got.Body)) {
		t.Errorf("got %v", got)
	}
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
	if err := json.Unmarshal([]byte(answer.Header.Get("X-ClickHouse-Summary")), &summary); err != nil {
		t.Fatal(err)
	}
	if summary["result_rows"] != "10" || summary["read_rows"] != "10" || summary["elapsed_ns"] == "0" {
		t.Errorf("summary is %v", summary)
	}
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

func TestHTTPCompressesBothWays(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	data := strings.Repeat("7\n", 100_000)
	packed := map[string]string{"gzip": pack(t, data, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		"zstd": pack(t, data, func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z })}
	for encoding, body := range packed {
		r := request(t, http.MethodPost, "?database="+database+"&query="+url.QueryEscape("INSERT INTO t FORMAT TSV"), body)
		r.Header.Set("Content-Encoding", encoding)
		if got, _ := send(t, r); got != ok("") {
			t.Errorf("%s: got %v", encoding, got)
		}
		cut := request(t, http.MethodPost, "?database="+database+"&query="+url.QueryEscape("INSERT INTO t FORMAT TSV"), body[:len(body)-9])
		cut.Header.Set("Content-Encoding", encoding)
		if got, _ := send(t, cut); got.Status == 200 {
			t.Errorf("%s: a body that is cut off is taken", encoding)
		}
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("200000\n") {
		t.Errorf("got %v rows, want 200000", got)
	}
	for encoding, open := range map[string]func(io.Reader) (io.Reader, error){
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
	} {
		r := request(t, http.MethodGet, "?query="+url.QueryEscape("SELECT 7 FROM numbers(1000000)"), "")
		r.Header.Set("Accept-Encoding", encoding)
		got, answer := send(t, r)
		if answer.Header.Get("Content-Encoding") != encoding || len(got.Body) > 100_000 {
			t.Errorf("%s: encoding %q, %d bytes", encoding, answer.Header.Get("Content-Encoding"), len(got.Body))
			continue
		}
		unpacked, err := open(strings.NewReader(got.Body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err != nil || string(text) != strings.Repeat("7\n", 1_000_000) {
			t.Errorf("%s: %d bytes, %v", encoding, len(text), err)
		}
	}
	framed, _ := post(t, url.Values{"compress": {"1"}}, "SELECT toInt64(number) FROM numbers(1000)")
	r := url.Values{"decompress": {"1"}, "database": {database}, "query": {"INSERT INTO t FORMAT TSV"}}
	if got, _ := post(t, r, framed.Body); got != ok("") {
		t.Errorf("compress=1 and decompress=1: got %v", got)
	}
	if got, _ := post(t, in, "SELECT count(), sum(a) FROM t"); got != ok("201000\t1899500\n") {
		t.Errorf("got %v", got)
	}
}

func pack(t *testing.T, data string, with func(io.Writer) io.WriteCloser) string {
	t.Helper()
	var packed bytes.Buffer
	w := with(&packed)
	io.WriteString(w, data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.String()
}

func TestHTTPStreamsLargeResults(t *testing.T) {
	e := clickhousetest.Shared(t)
	for _, format := range []string{"TSV", "JSONEachRow", "CSV"} {
		answer, err := http.Get(e.HTTP() + "/?enable_http_compression=0&query=" + url.QueryEscape("SELECT number FROM numbers(5000000) FORMAT "+format))
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 1)
		io.ReadFull(answer.Body, first)
		running, _ := post(t, nil, "SELECT count() FROM system.processes WHERE query LIKE '%5000000%' AND query NOT LIKE '%processes%'")
		if running != ok("1\n") {
			t.Errorf("%s: the first byte came when the statement was over", format)
		}
		rest, err := io.Copy(io.Discard, answer.Body)
		if err != nil || rest < 35_000_000 {
			t.Errorf("%s: %d bytes, %v", format, rest, err)
		}
		answer.Body.Close()
	}
}

func TestHTTPBreaksAResultOffOnALateError(t *testing.T) {
	e := clickhousetest.Shared(t)
	answer, err := http.Get(e.HTTP() + "/?query=" + url.QueryEscape("SELECT number, throwIf(number = 5000000) FROM numbers(10000000)"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil || answer.StatusCode != 200 {
		t.Errorf("status %d, %v, want a broken answer", answer.StatusCode, err)
	}
	if !bytes.Contains(body[max(0, len(body)-1000):], []byte("Code: 395. DB::Exception: ")) {
		t.Errorf("the exception is not at the end: %q", body[max(0, len(body)-200):])
	}
	whole, _ := get(t, url.Values{"query": {"SELECT number, throwIf(number = 5000000) FROM numbers(10000000)"}, "wait_end_of_query": {"1"}})
	if whole.Status != 500 || whole.Exception != "395" {
		t.Errorf("with wait_end_of_query: status %d, code %s", whole.Status, whole.Exception)
	}
}

func TestHTTPCancelsWithItsClient(t *testing.T) {
	e := clickhousetest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, e.HTTP()+"/?query="+url.QueryEscape("SELECT count() FROM numbers(2e12) WHERE NOT ignore(sipHash64(number))"), nil)
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Fatal("the statement ended")
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		running, _ := post(t, nil, "SELECT count() FROM system.processes WHERE query LIKE '%2e12%' AND query NOT LIKE '%processes%'")
		if running == ok("0\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the statement still runs in the engine")
		}
	}
}

func TestHTTPClientGoneInMidInsertStoresNothing(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	reader, writer := io.Pipe()
	r, _ := http.NewRequest(http.MethodPost, clickhousetest.Shared(t).HTTP()+"/?database="+database+"&query="+url.QueryEscape("INSERT INTO t FORMAT TSV"), reader)
	go func() {
		for range 10 {
			io.WriteString(writer, strings.Repeat("7\n", 50_000))
		}
		writer.CloseWithError(errStop)
	}()
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Fatal("the INSERT did not fail")
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		running, _ := post(t, nil, "SELECT count() FROM system.processes WHERE query LIKE 'INSERT%' AND current_database = '"+database+"'")
		if running == ok("0\n") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the INSERT still runs in the engine")
		}
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("0\n") {
		t.Errorf("got %v rows, want none", got)
	}
}

func TestHTTPDeduplicatesTokens(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 10")
	for range 3 {
		values := url.Values{"database": {database}, "insert_deduplication_token": {"x"}, "query": {"INSERT INTO t FORMAT TSV"}}
		if got, _ := post(t, values, "1\n2\n"); got != ok("") {
			t.Fatal(got)
		}
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("2\n") {
		t.Errorf("got %v rows, want 2", got)
	}
}

func TestHTTPKeepsWebPagesOut(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"a page from elsewhere":                func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"a page from elsewhere, old browser":   func(r *http.Request) { r.Header.Set("Origin", "http://example.com") },
		"a name that resolves to this machine": func(r *http.Request) { r.Host = "rebound.example.com:8123" },
	} {
		r := request(t, http.MethodPost, "", "SELECT 1")
		change(r)
		if got, _ := send(t, r); got.Status != http.StatusForbidden {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
