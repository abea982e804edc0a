package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

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
			fatal.If(t, json.Unmarshal([]byte(answer.Header.Get("X-ClickHouse-Summary")), &summary))
			if want := fmt.Sprint(strings.Count(c.want, "\n")); summary.WrittenRows != want {
				t.Errorf("summary has %q written rows, want %s", summary.WrittenRows, want)
			}
			stored, _ := post(t, in, "SELECT * FROM t ORDER BY a")
			expect.Equal(t, "stored", ok(c.want), stored)
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
		expect.Equal(t, query, want, got)
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("0\n") {
		t.Errorf("refused data is stored: %v", got)
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
		fatal.When(t, time.Now().After(deadline), "the INSERT still runs in the engine")
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
