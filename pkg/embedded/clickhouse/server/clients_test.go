package server_test

import (
	"bytes"
	"context"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/ClickHouse/clickhouse-go/v2"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestDriverOverHTTP covers Grafana's data source and clickhouse-go's HTTP protocol.
func TestDriverOverHTTP(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	for _, compress := range []string{"none", "lz4", "zstd", "gzip"} {
		t.Run(compress, func(t *testing.T) {
			c := open(t, strings.Replace(clickhousetest.Shared(t).HTTP(), "http://", "http://default@", 1)+"/"+database+"?compress="+compress)
			run(t, c, "CREATE OR REPLACE TABLE t (a Int64, s LowCardinality(String), d DateTime('Asia/Tokyo'), n Nullable(Float64), l Array(String), tu Tuple(x Int8, y String)) ENGINE = MergeTree ORDER BY a")
			batch, err := c.PrepareBatch(t.Context(), "INSERT INTO t")
			fatal.If(t, err)
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			for i := range 1000 {
				fatal.If(t, batch.Append(int64(i), fmt.Sprint(i%7), at, nil, []string{"a", fmt.Sprint(i)}, map[string]any{"x": int8(1), "y": "z"}))
			}
			fatal.If(t, batch.Send())
			rows, err := c.Query(t.Context(), "SELECT a, s, d, n, l FROM t ORDER BY a")
			fatal.If(t, err)
			defer rows.Close()
			expect.Equal(t, "a DateTime is a", "DateTime('Asia/Tokyo')", rows.ColumnTypes()[2].DatabaseTypeName())
			n := 0
			for rows.Next() {
				var a int64
				var s string
				var d time.Time
				var f *float64
				var l []string
				fatal.If(t, rows.Scan(&a, &s, &d, &f, &l))
				if a != int64(n) || s != fmt.Sprint(n%7) || !d.Equal(at) || d.Location().String() != "Asia/Tokyo" || f != nil || l[1] != fmt.Sprint(n) {
					t.Fatalf("row %d: %v %v %v %v %v", n, a, s, d, f, l)
				}
				n++
			}
			if err := rows.Err(); err != nil || n != 1000 {
				t.Errorf("%d rows: %v", n, err)
			}
			expect.Equal(t, "rows", 0, count(t, c, "t WHERE a < 0"))
			wantCode(t, c.Exec(t.Context(), "SELECT * FROM nosuch"), 60)
		})
	}
}

// TestNativeSendsColumnsFirst: some clients read the columns from an empty first block, and time
// zones from their types.
func TestNativeSendsColumnsFirst(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for sql, want := range map[string]string{
		"SELECT toDateTime(0, 'Asia/Tokyo') AS d":                         "DateTime('Asia/Tokyo')",
		"SELECT d FROM (SELECT toDateTime(0, 'UTC') AS d) WHERE 0":        "DateTime('UTC')",
		"SELECT CAST(0, 'DateTime') AS d":                                 "DateTime",
		"SELECT [toDateTime(0, 'Asia/Tokyo')] AS d":                       "Array(DateTime('Asia/Tokyo'))",
		"SELECT toNullable(toDateTime(0, 'Asia/Tokyo')) AS d FORMAT JSON": "Nullable(DateTime('Asia/Tokyo'))",
	} {
		rows, err := c.Query(t.Context(), sql)
		fatal.If(t, err)
		if got := rows.ColumnTypes()[0].DatabaseTypeName(); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
		rows.Close()
	}
	var sizes []int
	var numbers proto.ColUInt64
	do(t, dial(t, "default", ch.Options{}), ch.Query{
		Body: "SELECT number FROM numbers(100000) SETTINGS max_block_size = 50000", Result: proto.Results{{Name: "number", Data: &numbers}},
		OnResult: func(_ context.Context, block proto.Block) error { sizes = append(sizes, block.Rows); return nil },
	})
	expect.Not(t, len(sizes) < 2 || sizes[0] != 0 || sizes[1] == 0, "blocks are of %v rows, want the first of 0", sizes)
}

func TestHTTPForms(t *testing.T) {
	post := func(fields ...[2]string) reply {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for _, field := range fields {
			fatal.If(t, form.WriteField(field[0], field[1]))
		}
		fatal.If(t, form.Close())
		r := request(t, http.MethodPost, "?default_format=JSONCompactEachRow", body.String())
		r.Header.Set("Content-Type", form.FormDataContentType())
		got, _ := send(t, r)
		return got
	}
	expect.Equal(t, "result", ok("[42, 3]\n"), post([2]string{"query", "SELECT {a:Int32} + 1, getSetting('max_threads')"}, [2]string{"param_a", "41"}, [2]string{"max_threads", "3"}))
	for parameter, code := range map[string]string{"t_format": "115", "nosuch": "115"} { // of a missing table
		if got, _ := get(t, url.Values{"query": {"SELECT 1"}, parameter: {"Native"}}); got.Exception != code {
			t.Errorf("%s: %+v, want code %s", parameter, got, code)
		}
	}
}

// TestNativeExternalTables exist for one statement, and the connection stays usable.
func TestNativeExternalTables(t *testing.T) {
	c := dial(t, "default", ch.Options{})
	rows := make(proto.ColUInt64, 100_000)
	for i := range rows {
		rows[i] = uint64(i)
	}
	for range 2 {
		var sum proto.ColUInt64
		if err := c.Do(t.Context(), ch.Query{
			Body: "SELECT sum(n) AS n FROM given", ExternalTable: "given", ExternalData: proto.Input{{Name: "n", Data: rows}},
			Result: proto.Results{{Name: "n", Data: &sum}},
		}); err != nil || len(sum) != 1 || sum[0] != 4999950000 {
			t.Errorf("%v: %v", sum, err)
		}
	}
	wantChCode(t, c.Do(t.Context(), ch.Query{Body: "SELECT count() FROM given", Result: proto.Results{{Name: "n", Data: new(proto.ColUInt64)}}}), 60)
	expect.Equal(t, "afterwards there are of 3 rows", 3, chCount(t, c, "numbers(3)"))
}

// TestWrongPasswordsAreAnsweredLaterAndLater, and the correct one at once.
func TestWrongPasswordsAreAnsweredLaterAndLater(t *testing.T) {
	t.Parallel() // its own engine, and long waits
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.User, cfg.Password = "me", "secret" })
	begun := time.Now()
	for range 4 { // 50, 100, 200 and 400 ms
		r, err := http.NewRequest(http.MethodPost, e.HTTP()+"/?query=SELECT+1&user=me&password=wrong", nil)
		fatal.If(t, err)
		if got, _ := send(t, r); got.Exception != "516" {
			t.Errorf("%+v", got)
		}
	}
	if took := time.Since(begun); took < 750*time.Millisecond {
		t.Errorf("four wrong passwords were answered within %s", took)
	}
	for range 20 { // 20 s if slowed like wrong ones
		clickhousetest.Exec(t, e, "SELECT 1")
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the right password waits: %s", took)
	}
}

func TestHTTPSessionsLast(t *testing.T) {
	t.Parallel()
	e := clickhousetest.Start(t)
	ask := func(method, sql string, more ...string) reply {
		t.Helper()
		values := url.Values{"query": {sql}, "session_id": {"one"}}
		for i := 0; i < len(more); i += 2 {
			values.Set(more[i], more[i+1])
		}
		r, err := http.NewRequest(method, e.HTTP()+"/?"+values.Encode(), nil)
		fatal.If(t, err)
		got, _ := send(t, r)
		return got
	}
	steps := []struct {
		method, sql string
		more        []string
		want        reply
	}{
		{"POST", "SELECT 1", []string{"session_check", "1"}, reply{500, "372", ""}},
		{"POST", "CREATE TEMPORARY TABLE mine (a Int8)", nil, ok("")},
		{"POST", "INSERT INTO mine VALUES (7)", nil, ok("")},
		{"POST", "SET max_threads = 3", nil, ok("")},
		{"GET", "SELECT a, getSetting('max_threads') FROM mine", nil, ok("7\t3\n")},
		{"GET", "DROP TABLE mine", nil, reply{500, "164", ""}},
		{"POST", "SELECT getSetting('max_threads')", []string{"max_threads", "2"}, ok("2\n")},
		{"POST", "SELECT getSetting('max_threads')", []string{"session_check", "1"}, ok("3\n")},
		{"POST", "USE system", nil, ok("")},
		{"POST", "SELECT currentDatabase()", nil, ok("system\n")},
		{"POST", "SELECT * FROM mine", []string{"session_id", "two"}, reply{404, "60", ""}},
		{"POST", "SELECT 1", []string{"session_timeout", "100000"}, reply{500, "374", ""}},
		{"POST", "SELECT 1", []string{"session_timeout", "1"}, ok("1\n")},
	}
	for _, step := range steps {
		got := ask(step.method, step.sql, step.more...)
		if step.want.Status != 200 {
			got.Body = ""
		}
		expect.Equal(t, fmt.Sprintf("%s %s %v", step.method, step.sql, step.more), step.want, got)
	}
	time.Sleep(1500 * time.Millisecond) // a query would keep it alive
	if got := ask("POST", "SELECT 1", "session_check", "1"); got.Exception != "372" {
		t.Errorf("after its time the session is there: %+v", got)
	}
	slow := make(chan reply)
	go func() { slow <- ask("POST", "SELECT sleep(2)") }()
	eventually(t, "a second request finds it locked", func() bool { return ask("POST", "SELECT 1", "session_check", "1").Exception == "373" })
	expect.Equal(t, "result", ok("0\n"), <-slow)
}

// TestNativeQueryParameters: values sent apart from the statement.
func TestNativeQueryParameters(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	for name, tt := range map[string]struct {
		sql    string
		params clickhouse.Parameters
		want   string
	}{
		"a number":      {"SELECT toString({n:Int64} + 1)", clickhouse.Parameters{"n": "41"}, "42"},
		"a text":        {"SELECT {s:String}", clickhouse.Parameters{"s": "it's a 'text'; DROP TABLE t"}, "it's a 'text'; DROP TABLE t"},
		"a list":        {"SELECT toString({l:Array(Int8)})", clickhouse.Parameters{"l": "[1,2]"}, "[1,2]"},
		"an identifier": {"SELECT toString(count()) FROM system.{t:Identifier}", clickhouse.Parameters{"t": "one"}, "1"},
	} {
		var got string
		if err := c.QueryRow(clickhouse.Context(t.Context(), clickhouse.WithParameters(tt.params)), tt.sql).Scan(&got); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
	wantCode(t, c.Exec(t.Context(), "SELECT {nosuch:String}"), 456)
	wantCode(t, c.Exec(clickhouse.Context(t.Context(), clickhouse.WithParameters(clickhouse.Parameters{"a b": "1"})), "SELECT 1"), 36)
}

func TestNativeVariants(t *testing.T) {
	_, address := clickhousetest.FreshDatabase(t)
	c := open(t, address)
	run(t, c, "CREATE TABLE t (v Variant(Bool, Int64, String), a Int64) ENGINE = MergeTree ORDER BY a SETTINGS allow_experimental_variant_type = 1")
	batch, err := c.PrepareBatch(t.Context(), "INSERT INTO t")
	fatal.If(t, err)
	for i, v := range []any{int64(1), "text", true, nil, int64(5)} {
		fatal.If(t, batch.Append(v, int64(i)))
	}
	fatal.If(t, batch.Send())
	var all string
	if row(t, c, "SELECT toString(groupArray((v, variantType(v)::String))) FROM (SELECT * FROM t ORDER BY a)", &all); all != `[(1,'Int64'),('text','String'),(true,'Bool'),(NULL,'None'),(5,'Int64')]` {
		t.Error(all)
	}
	rows, err := c.Query(t.Context(), "SELECT v, a FROM t ORDER BY a")
	fatal.If(t, err)
	defer rows.Close()
	n := int64(0)
	for ; rows.Next(); n++ {
		var v clickhouse.Variant
		var a int64
		if err := rows.Scan(&v, &a); err != nil || a != n || (v.Any() == nil) != (n == 3) {
			t.Errorf("row %d: %v, %v, %v", n, v.Any(), a, err)
		}
	}
	if n != 5 {
		t.Errorf("%d rows: %v", n, rows.Err())
	}
}
