package server_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// secrets creates a folder with the passwords of all users.
func secrets(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{server.AdminSecret, server.IngesterSecret, server.AnalystSecret, server.ModellerSecret, server.ConsoleSecret} {
		fatal.If(t, os.WriteFile(filepath.Join(folder, name), []byte("pass-of-"+name+"\n"), 0o600))
	}
	return folder
}

// as opens the engine as one of its users, "" for none.
func as(t *testing.T, e *clickhousetest.Engine, name string) driver.Conn {
	t.Helper()
	who := url.User("default")
	if name != "" {
		who = url.UserPassword(name, "pass-of-clickhouse-"+name)
	}
	return open(t, (&url.URL{Scheme: "clickhouse", User: who, Host: e.Addr(), Path: "/default"}).String())
}

// asHTTP sends a statement as one of the users.
func asHTTP(t *testing.T, e *clickhousetest.Engine, name, method, sql string, settings url.Values) reply {
	t.Helper()
	values := url.Values{"query": {sql}}
	for key, value := range settings {
		values[key] = value
	}
	r, err := http.NewRequest(method, e.HTTP()+"/?"+values.Encode(), nil)
	fatal.If(t, err)
	if name != "" {
		r.SetBasicAuth(name, "pass-of-clickhouse-"+name)
	}
	got, _ := send(t, r)
	return got
}

func TestUsers(t *testing.T) {
	t.Parallel() // its own engine, and long waits
	e := clickhousetest.Start(t, func(cfg *server.Config) {
		cfg.Secrets = secrets(t)
		cfg.Analyst = server.Limits{Memory: 64 << 20, Time: 2 * time.Second, Rows: 1000}
	})
	admin := as(t, e, "admin")
	run(t, admin, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	run(t, admin, "INSERT INTO t SELECT number FROM numbers(10000)")

	t.Run("every user gets its name", func(t *testing.T) {
		for name, want := range map[string]string{"": "analyst", "analyst": "analyst", "ingester": "ingester", "admin": "admin"} {
			for _, sql := range []string{"SELECT currentUser()", "SELECT user() AS me", "WITH 1 AS a SELECT current_user ( /* me */ )", "(SELECT any(currentUser()) FROM (SELECT currentUser() AS b))"} {
				var got string
				if row(t, as(t, e, name), sql, &got); got != want {
					t.Errorf("%s: %q, want %q", sql, got, want)
				}
			}
			if got := asHTTP(t, e, name, "GET", "SELECT currentUser(), ' currentUser()' AS text FORMAT JSONEachRow", nil); got.Body != `{"currentUser()":"`+want+`","text":" currentUser()"}`+"\n" {
				t.Errorf("%q", got.Body)
			}
		}
	})
	t.Run("the analyst reads", func(t *testing.T) {
		c := as(t, e, "")
		for _, sql := range []string{
			"SELECT count() FROM t", "SHOW TABLES", "DESCRIBE TABLE t", "EXPLAIN SELECT 1", "SELECT * FROM system.parts LIMIT 1", "SET max_threads = 1", "USE system",
			"SELECT count() FROM (EXPLAIN SELECT 1)", "SELECT * FROM numbers(3)", "SELECT 1 SETTINGS max_execution_time = 1", "EXISTS TABLE t", "SHOW CREATE TABLE default.t",
		} {
			if err := c.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	})
	t.Run("the analyst is shown views, and what feeds them only when named", func(t *testing.T) {
		run(t, admin, "CREATE DATABASE flow")
		run(t, admin, "CREATE TABLE flow.records (id String) ENGINE = MergeTree ORDER BY id")
		run(t, admin, "CREATE TABLE flow.jobs (job Int64) ENGINE = MergeTree ORDER BY job")
		run(t, admin, "CREATE MATERIALIZED VIEW flow.jobs_mv TO flow.jobs AS SELECT toInt64(1) AS job FROM flow.records")
		run(t, admin, "CREATE VIEW flow.v_jobs AS SELECT job FROM flow.jobs")
		run(t, admin, "INSERT INTO flow.records VALUES ('a')")
		for name, want := range map[string]string{"": "records v_jobs", "analyst": "records v_jobs", "ingester": "jobs jobs_mv records v_jobs", "admin": "jobs jobs_mv records v_jobs"} {
			for _, sql := range []string{"SHOW TABLES FROM flow", "SELECT DISTINCT table FROM system.columns WHERE database = 'flow' ORDER BY table"} {
				if got := asHTTP(t, e, name, "POST", sql, nil); strings.Join(strings.Fields(got.Body), " ") != want {
					t.Errorf("%s as %q: %+v, want %s", sql, name, got, want)
				}
			}
			if got := asHTTP(t, e, name, "POST", "SELECT sum(job), (SELECT count() FROM flow.v_jobs) FROM flow.jobs", nil); got.Body != "1\t1\n" {
				t.Errorf("%q: %+v", name, got)
			}
		}
	})
	t.Run("the analyst does nothing else", func(t *testing.T) {
		c := as(t, e, "analyst")
		for _, sql := range []string{
			"INSERT INTO t VALUES (1)", "INSERT INTO t SELECT 1", "CREATE TABLE u (a Int8) ENGINE = Memory", "DROP TABLE t", "TRUNCATE TABLE t", "ALTER TABLE t DELETE WHERE 1",
			"DELETE FROM t WHERE 1", "OPTIMIZE TABLE t", "KILL QUERY WHERE 1", "SYSTEM STOP MERGES", "CREATE TEMPORARY TABLE u (a Int8)", "CREATE FUNCTION f AS a -> a", "CREATE DATABASE d",
			"RENAME TABLE t TO u", "DETACH TABLE t", "ATTACH TABLE t", "BACKUP TABLE t TO Memory('b')", "BEGIN TRANSACTION", "GRANT ALL ON *.* TO default",
			"SET ROLE admin", "SET ROLE ALL", "SET DEFAULT ROLE ALL TO default", "SET readonly = DEFAULT", "SET max_memory_usage = DEFAULT",
			"SELECT 1 SETTINGS max_memory_usage = DEFAULT", "SELECT 1 SETTINGS max_threads = 1, readonly=DEFAULT", "EXECUTE AS admin SELECT 1",
			"SELECT * FROM file('/etc/passwd')", "SELECT * FROM system.users", "SELECT * FROM url('http://127.0.0.1:1/', CSV, 'a Int8')",
		} {
			err := c.Exec(t.Context(), sql)
			if err == nil || !strings.Contains(err.Error(), "code: 497") && !strings.Contains(err.Error(), "code: 344") && !strings.Contains(err.Error(), "code: 164") {
				t.Errorf("%s: %v, want code 497 (ACCESS_DENIED)", sql, err)
			}
			if got := asHTTP(t, e, "", "POST", sql, nil); got.Status == 200 {
				t.Errorf("POST %s: %+v", sql, got)
			}
		}
		expect.Equal(t, "rows", 10000, count(t, c, "t"))
	})
	t.Run("the analyst has limits", func(t *testing.T) {
		c := as(t, e, "")
		for sql, code := range map[string]int32{
			"SELECT groupArray(number) FROM numbers(20000000)": 241, // MEMORY_LIMIT_EXCEEDED
			"SELECT count() FROM numbers(100000000000)":        159, // TIMEOUT_EXCEEDED
			"SELECT * FROM t": 396, // TOO_MANY_ROWS_OR_BYTES
			"SELECT 1 SETTINGS max_memory_usage = 1000000000": 452, // SETTING_CONSTRAINT_VIOLATION
			"SELECT 1 SETTINGS max_memory_usage = 0":          452,
			"SET max_result_rows = 0":                         452,
			"SET max_execution_time = 1000, max_threads = 1":  452,
			"SET profile = 'default', max_result_rows = 2000": 452,
			"SELECT count() FROM (SELECT groupArray(number) FROM numbers(20000000) SETTINGS max_memory_usage = 10e10)": 241,
		} {
			wantCode(t, c.Exec(t.Context(), sql), code)
		}
		run(t, c, "SET profile = 'default'")
		wantCode(t, c.Exec(t.Context(), "SELECT * FROM t"), 396)
		// Settings sent with a statement are clamped, and apply to it alone.
		ctx := withSettings(t, clickhouse.Settings{"max_result_rows": 0, "max_execution_time": 600, "readonly": 1, "max_threads": 1})
		wantCode(t, c.Exec(ctx, "SELECT * FROM t"), 396)
		wantCode(t, c.Exec(t.Context(), "SELECT * FROM t"), 396)
		if got := asHTTP(t, e, "", "GET", "SELECT getSetting('max_execution_time')", url.Values{"max_execution_time": {"99"}}); got.Body != "2\n" {
			t.Errorf("%+v", got)
		}
		if got := asHTTP(t, e, "", "POST", "SELECT getSetting('max_execution_time')", url.Values{"max_execution_time": {"1"}}); got.Body != "1\n" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("the ingester makes tables and inserts", func(t *testing.T) {
		c := as(t, e, "ingester")
		for _, sql := range []string{
			"CREATE DATABASE d", "CREATE TABLE d.t (a Int64) ENGINE = MergeTree ORDER BY a", "CREATE TABLE d.n (n UInt64) ENGINE = SummingMergeTree ORDER BY n",
			"CREATE MATERIALIZED VIEW d.v TO d.n AS SELECT count() AS n FROM d.t", "CREATE VIEW d.w AS SELECT * FROM d.t", "INSERT INTO d.t SELECT 1",
			"ALTER TABLE d.t ADD COLUMN b Int8", "DROP VIEW d.w", "SELECT * FROM d.n",
		} {
			if err := c.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
		for _, sql := range []string{"KILL QUERY WHERE 1", "SYSTEM STOP MERGES", "DROP DATABASE d", "CREATE FUNCTION f AS a -> a", "SET ROLE admin", "SELECT * FROM system.users"} {
			wantCode(t, c.Exec(t.Context(), sql), 497)
		}
	})
	t.Run("a view inserts with the rights of its definer", func(t *testing.T) {
		expect.Equal(t, "rows", 1, count(t, as(t, e, ""), "d.n"))
	})
	t.Run("passwords are asked for", func(t *testing.T) {
		for _, c := range []struct{ name, password string }{{"admin", ""}, {"admin", "pass-of-clickhouse-ingester"}, {"ingester", "x"}, {"analyst", "x"}, {"default", "x"}, {"root", ""}} {
			address := (&url.URL{Scheme: "clickhouse", User: url.UserPassword(c.name, c.password), Host: e.Addr()}).String()
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				wantCode(t, open(t, address).Ping(t.Context()), 516)
			})
		}
	})
}

func TestPrivateAnalyst(t *testing.T) {
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Secrets, cfg.Private = secrets(t), true })
	wantCode(t, as(t, e, "").Ping(t.Context()), 516)
	if got := asHTTP(t, e, "", "GET", "SELECT 1", nil); got.Status != 401 {
		t.Errorf("%+v", got)
	}
	var name string
	if row(t, as(t, e, "analyst"), "SELECT currentUser()", &name); name != "analyst" {
		t.Errorf("analyst is %q", name)
	}
	wantCode(t, as(t, e, "analyst").Exec(t.Context(), "DROP TABLE t"), 497)
}

func TestSecretsThatAreWrongAreSaid(t *testing.T) {
	folder := secrets(t)
	fatal.If(t, os.WriteFile(filepath.Join(folder, server.AnalystSecret), nil, 0o600))
	for _, secrets := range []string{folder, filepath.Join(folder, "nowhere")} {
		err := server.Serve(t.Context(), server.Config{Library: os.Args[0], Data: t.TempDir(), Secrets: secrets}, nil, nil)
		expect.Not(t, err == nil || !strings.Contains(err.Error(), "the password of the ClickHouse user"), "%s: %v", secrets, err)
	}
}

// TestSomeSlotsAreTheIngestersAndTheConsoles occupies all other slots, and queries.
func TestSomeSlotsAreTheIngestersAndTheConsoles(t *testing.T) {
	t.Parallel() // its own engine, and long waits
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Secrets, cfg.Slots, cfg.Kept = secrets(t), 6, 2 })
	busy := make(chan error, 2)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for range cap(busy) {
		c := as(t, e, "")
		run(t, c, "SELECT 1")
		go func() {
			busy <- c.Exec(ctx, "SELECT sleepEachRow(1) FROM numbers(40) SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0")
		}()
	}
	analyst := as(t, e, "")
	eventually(t, "all slots of analysts are taken", func() bool {
		err := analyst.Exec(t.Context(), "SELECT 1")
		return err != nil && strings.Contains(err.Error(), "code: 202")
	})
	for _, name := range []string{"ingester", "console", "admin"} { // without reserved slots they would be refused before an analyst's query ends
		c := as(t, e, name)
		for i := range 20 {
			run(t, c, fmt.Sprint("SELECT ", i))
		}
	}
	expect.Not(t, len(busy) > 0, "a statement of an analyst ended, so that nothing had to wait")
	end()
	for range cap(busy) {
		<-busy
	}
}

// TestAnalystsTogetherHaveABound runs more concurrently than fit: the largest is cancelled, and
// the memory of ingester and console is unaffected.
func TestAnalystsTogetherHaveABound(t *testing.T) {
	t.Parallel() // its own engine
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Secrets, cfg.Analysts = secrets(t), 256<<20 })
	const large = "SELECT length(groupArray(number)) FROM numbers(30000000)" // at least 256 MiB
	ended := make(chan error, 6)
	for i := range cap(ended) {
		go func() { ended <- as(t, e, []string{"", "analyst", "modeller"}[i%3]).Exec(t.Context(), large) }()
	}
	refused := 0
	for range cap(ended) {
		if err := <-ended; err != nil && strings.Contains(err.Error(), "code: 394") {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	expect.Not(t, refused == 0, "six large statements of analysts had all the memory they asked for")
	for _, name := range []string{"ingester", "console"} {
		run(t, as(t, e, name), large)
	}
	for _, sql := range []string{"SET workload = 'default'", "SELECT 1 SETTINGS workload = ''", "SELECT 1 SETTINGS reserve_memory = 1"} {
		wantCode(t, as(t, e, "").Exec(t.Context(), sql), 452)
	}
	if got := asHTTP(t, e, "", "POST", "SELECT getSetting('workload')", url.Values{"workload": {"default"}}); got.Body != "analysts\n" {
		t.Errorf("%+v", got)
	}
}
