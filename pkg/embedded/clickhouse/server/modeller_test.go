package server_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go"
	"github.com/ClickHouse/ch-go/proto"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestModeller creates tables and views in models, and can read everything, but nothing else.
func TestModeller(t *testing.T) {
	t.Parallel() // its own engine
	e := clickhousetest.Start(t, func(cfg *server.Config) {
		cfg.Secrets, cfg.Models = secrets(t), 1<<20
		cfg.Modeller = server.Limits{Memory: 64 << 20, Time: 5 * time.Second, Rows: 100_000}
	})
	admin := as(t, e, "admin")
	// One connection: a temporary table belongs to it.
	c := open(t, "clickhouse://modeller:pass-of-clickhouse-modeller@"+e.Addr()+"/default?max_open_conns=1")
	run(t, admin, "CREATE DATABASE flow")
	run(t, admin, "CREATE TABLE flow.records (a Int64) ENGINE = MergeTree ORDER BY a")
	run(t, admin, "INSERT INTO flow.records SELECT number FROM numbers(1000)")

	t.Run("it makes tables and views in models", func(t *testing.T) {
		for _, sql := range []string{
			"CREATE DATABASE IF NOT EXISTS models", "CREATE TABLE models.t ENGINE = MergeTree ORDER BY a AS SELECT a FROM flow.records", "INSERT INTO models.t SELECT 7",
			"CREATE VIEW models.v AS SELECT count() AS n FROM models.t", "CREATE OR REPLACE VIEW models.v AS SELECT count() + 1 AS n FROM models.t",
			"ALTER TABLE models.t ADD COLUMN b Int8", "ALTER TABLE models.t DELETE WHERE a = 7 SETTINGS mutations_sync = 1", "RENAME TABLE models.t TO models.u", "CREATE TABLE models.t AS models.u",
			"EXCHANGE TABLES models.t AND models.u", "OPTIMIZE TABLE models.t", "TRUNCATE TABLE models.u", "DROP TABLE models.u",
			"CREATE TEMPORARY TABLE own (a Int64)", "INSERT INTO own SELECT number FROM numbers(10)",
		} {
			if err := c.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
		var n uint64
		if row(t, c, "SELECT n FROM models.v", &n); n != 1000 { // 1000 rows, 7 again, without both of 7, and 1
			t.Errorf("the view has %d", n)
		}
		if row(t, c, "SELECT count() FROM flow.records WHERE a IN (SELECT a FROM own)", &n); n != 10 {
			t.Errorf("the temporary table finds %d rows", n)
		}
		var who string
		if row(t, c, "SELECT currentUser()", &who); who != "modeller" {
			t.Errorf("it is %q", who)
		}
	})
	t.Run("it does nothing else", func(t *testing.T) {
		for _, sql := range []string{
			"INSERT INTO flow.records VALUES (1)", "INSERT INTO flow.records SELECT 1", "CREATE TABLE flow.x (a Int8) ENGINE = MergeTree ORDER BY a", "CREATE VIEW flow.x AS SELECT 1", "DROP TABLE flow.records",
			"ALTER TABLE flow.records DELETE WHERE 1", "TRUNCATE TABLE flow.records", "CREATE DATABASE other", "DROP DATABASE models", "RENAME TABLE flow.records TO models.records",
			"CREATE MATERIALIZED VIEW models.m ENGINE = MergeTree ORDER BY a AS SELECT a FROM flow.records", "CREATE MATERIALIZED VIEW models.m TO models.t AS SELECT a FROM flow.records",
			"CREATE TABLE models.r (a Int64) ENGINE Buffer(flow, records, 1, 1, 1, 1, 1, 1, 1)", "CREATE TABLE models.r (a Int64) ENGINE = `Alias`('flow', 'records')", "INSERT INTO FUNCTION null('a Int8') SELECT 1",
			"CREATE FUNCTION f AS a -> a", "KILL QUERY WHERE 1", "SYSTEM STOP MERGES", "SET ROLE admin", "SELECT * FROM system.users", "CREATE TABLE models.f (a Int8) ENGINE = File(CSV)",
			"CREATE TABLE models.r (a Int64) ENGINE = Buffer(flow, records, 1, 1, 1, 1, 1, 1, 1)", "SELECT * FROM file('/etc/passwd')", "SET max_memory_usage = DEFAULT", "GRANT ALL ON *.* TO default",
		} {
			if err := c.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "code: 497") {
				t.Errorf("%s: %v, want code 497 (ACCESS_DENIED)", sql, err)
			}
		}
		wantCode(t, c.Exec(t.Context(), "SET max_memory_usage = 0"), 452)
		wantCode(t, c.Exec(t.Context(), "SELECT groupArray(number) FROM numbers(20000000)"), 241)
		wantCode(t, c.Exec(t.Context(), "SELECT number FROM numbers(200000)"), 396)
		expect.Equal(t, "flow.records has rows", 1000, count(t, admin, "flow.records"))
	})
	t.Run("external tables come by both protocols", func(t *testing.T) {
		keys := proto.ColInt64{1, 2, 5000}
		native := func(user string) ([]uint64, error) {
			options := ch.Options{Address: e.Addr(), User: user}
			if user != "" {
				options.Password = "pass-of-clickhouse-" + user
			}
			c, err := ch.Dial(t.Context(), options)
			fatal.If(t, err)
			defer c.Close()
			var n proto.ColUInt64
			err = c.Do(t.Context(), ch.Query{Body: "SELECT count() AS n FROM flow.records WHERE a IN given", ExternalTable: "given",
				ExternalData: proto.Input{{Name: "key", Data: keys}}, Result: proto.Results{{Name: "n", Data: &n}}})
			return n, err
		}
		if n, err := native("modeller"); err != nil || len(n) != 1 || n[0] != 2 {
			t.Errorf("%v, %v", n, err)
		}
		_, err := native("")
		wantChCode(t, err, 497)
		for user, want := range map[string]reply{"modeller": ok("2\n"), "": {403, "497", ""}} {
			for _, columns := range []url.Values{{"given_structure": {"key Int64, name String"}}, {"given_types": {"Int64, Nullable(String)"}}} {
				var body bytes.Buffer
				form := multipart.NewWriter(&body)
				part, err := form.CreateFormFile("given", "given.csv")
				fatal.If(t, err)
				_, err = part.Write([]byte("1,a\n2,b\n5000,c\n"))
				fatal.If(t, err)
				fatal.If(t, form.Close())
				columns.Set("given_format", "CSV")
				columns.Set("query", "SELECT count() FROM flow.records WHERE a IN (SELECT * EXCEPT('name|_2') FROM given)")
				r, err := http.NewRequest(http.MethodPost, e.HTTP()+"/?"+columns.Encode(), &body)
				fatal.If(t, err)
				r.Header.Set("Content-Type", form.FormDataContentType())
				if user != "" {
					r.SetBasicAuth(user, "pass-of-clickhouse-"+user)
				}
				got, _ := send(t, r)
				if want.Status != 200 {
					got.Body = ""
				}
				expect.Not(t, got != want, "%q: %+v, want %+v", user, got, want)
			}
		}
	})
	t.Run("models has a quota", func(t *testing.T) {
		run(t, c, "CREATE TABLE models.big (a UInt64) ENGINE = MergeTree ORDER BY a")
		run(t, c, "INSERT INTO models.big SELECT cityHash64(number) FROM numbers(200000)")
		for _, sql := range []string{"INSERT INTO models.big SELECT 1", "CREATE TABLE models.more ENGINE = MergeTree ORDER BY a AS SELECT 1 AS a"} {
			wantCode(t, c.Exec(t.Context(), sql), 201)
		}
		b, err := c.PrepareBatch(t.Context(), "INSERT INTO models.big")
		if err == nil {
			err = b.Append(uint64(1))
			fatal.If(t, err)
			err = b.Send()
		}
		wantCode(t, err, 201)
		run(t, c, "SELECT count() FROM models.big")
		run(t, c, "DROP TABLE models.big SYNC")
		run(t, c, "INSERT INTO models.t (a) SELECT 8")
		run(t, c, "CREATE TEMPORARY TABLE heap (a UInt64)")
		for range 3 {
			run(t, c, "INSERT INTO heap SELECT number FROM numbers(3000000)")
		}
		wantCode(t, c.Exec(t.Context(), "INSERT INTO heap SELECT 1"), 201)
	})
	t.Run("a client that says None has no password", func(t *testing.T) { // clickhouse-sqlalchemy over HTTP
		for _, name := range []string{"None", "default"} {
			r, err := http.NewRequest(http.MethodPost, e.HTTP()+"/?query=SELECT+currentUser()", nil)
			fatal.If(t, err)
			r.SetBasicAuth(name, "None")
			if got, _ := send(t, r); got != ok("analyst\n") {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}
