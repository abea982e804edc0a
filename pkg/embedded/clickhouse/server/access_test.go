package server_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/clickhouse/server"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestPasswordIsAskedForEverywhere(t *testing.T) {
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.User, cfg.Password = "me", "secret" })
	address := func(user, password string) string {
		return "clickhouse://" + user + ":" + password + "@" + e.Addr() + "/default"
	}
	if err := open(t, e.URL("default")).Ping(t.Context()); err != nil {
		t.Errorf("the right user: %v", err)
	}
	var all sync.WaitGroup
	for _, wrong := range [][2]string{{"me", "wrong"}, {"me", ""}, {"default", "secret"}, {"other", "secret"}, {"me", "secret2"}} {
		c := open(t, address(wrong[0], wrong[1]))
		all.Go(func() { wantCode(t, c.Ping(t.Context()), 516) }) // delayed
	}
	all.Wait()
	basic := func(user, password string) http.Header {
		return http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}}
	}
	keys := func(user, password string) http.Header {
		return http.Header{"X-Clickhouse-User": {user}, "X-Clickhouse-Key": {password}}
	}
	for name, c := range map[string]struct {
		query   url.Values
		headers http.Header
		want    reply
	}{
		"nothing":            {nil, nil, reply{401, "194", ""}},
		"headers":            {nil, keys("me", "secret"), ok("1\n")},
		"wrong headers":      {nil, keys("me", "wrong"), reply{403, "516", ""}},
		"Basic":              {nil, basic("me", "secret"), ok("1\n")},
		"wrong Basic":        {nil, basic("me", "wrong"), reply{403, "516", ""}},
		"the URL":            {url.Values{"user": {"me"}, "password": {"secret"}}, nil, ok("1\n")},
		"a wrong URL":        {url.Values{"user": {"me"}, "password": {"wrong"}}, nil, reply{403, "516", ""}},
		"only the user":      {url.Values{"user": {"me"}}, nil, reply{403, "516", ""}},
		"another user":       {nil, basic("default", "secret"), reply{403, "516", ""}},
		"a right user first": {url.Values{"user": {"me"}, "password": {"wrong"}}, keys("me", "secret"), reply{403, "516", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := http.NewRequest(http.MethodPost, e.HTTP()+"/?"+c.query.Encode(), strings.NewReader("SELECT 1"))
			fatal.If(t, err)
			for key, values := range c.headers {
				r.Header[key] = values
			}
			got, answer := send(t, r)
			if c.want.Status != 200 {
				expect.Not(t, strings.Contains(got.Body, "secret") || strings.Contains(got.Body, "wrong"), "the password is in the answer: %q", got.Body)
				got.Body = ""
			}
			expect.Equal(t, "result", c.want, got)
			expect.Not(t, got.Status == 401 && answer.Header.Get("WWW-Authenticate") == "", "no WWW-Authenticate")
		})
	}
	if answer, err := http.Get(e.HTTP() + "/ping"); err != nil || answer.StatusCode != 200 {
		t.Errorf("/ping: %v, %v", answer, err)
	}
	t.Cleanup(func() { // after the parallel subtests
		log := e.Log()
		expect.Not(t, strings.Contains(log, "secret") || strings.Contains(log, "wrong"), "the password is in the log:\n%s", log)
		for _, failed := range []string{"user=me", "user=other", "protocol=native", "protocol=http", "failures=10"} {
			expect.Not(t, !strings.Contains(log, failed), "no %q in the log:\n%s", failed, log)
		}
	})
}

func TestAddressesWithoutPasswordAreLoopback(t *testing.T) {
	for _, c := range []struct{ native, web string }{
		{"0.0.0.0:0", ""}, {":0", ""}, {"[::]:0", ""}, {"192.0.2.1:9000", ""}, {"example.com:9000", ""},
		{"127.0.0.1:0", "0.0.0.0:0"}, {"127.0.0.1:0", ":8123"},
	} {
		err := server.Serve(t.Context(), server.Config{Data: t.TempDir(), Listen: c.native, HTTP: c.web}, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "set --private, or use 127.0.0.1") {
			t.Errorf("%q and %q: %v", c.native, c.web, err)
		}
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel() // its own engine, and long waits
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Slots = 3 })
	var all sync.WaitGroup
	for n := range 12 { // more than fit, each queued
		all.Go(func() {
			expect.Equal(t, "result", fmt.Sprint(n, "\n"), clickhousetest.Exec(t, e, fmt.Sprint("SELECT ", n, " + sleep(0.05)")))
		})
	}
	all.Wait()
	var holds sync.WaitGroup
	for range 3 {
		c := open(t, e.URL("default"))
		fatal.If(t, c.Ping(t.Context()))
		holds.Go(func() {
			expect.NoError(t, c.Exec(t.Context(), "SELECT sleepEachRow(1) FROM numbers(8) SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0"))
		})
	}
	c := open(t, e.URL("default"))
	eventually(t, "all slots are taken", func() bool {
		err := c.Exec(t.Context(), "SELECT 1")
		return err != nil && strings.Contains(err.Error(), "code: 202")
	})
	holds.Wait()
	expect.Equal(t, "result", "1\n", clickhousetest.Exec(t, e, "SELECT 1"))
}

// TestIdleSessionsHoldNoSlot opens many more sessions than slots, and leaves them idle.
func TestIdleSessionsHoldNoSlot(t *testing.T) {
	t.Parallel() // its own engine, and long waits
	e := clickhousetest.Start(t, func(cfg *server.Config) { cfg.Slots, cfg.Sessions = 2, 12 })
	for range 12 {
		c := open(t, e.URL("default"))
		run(t, c, "SELECT 1")
	}
	expect.Equal(t, "result", "1\n", clickhousetest.Exec(t, e, "SELECT 1"))
	wantCode(t, open(t, e.URL("default")).Ping(t.Context()), 202) // one session too many
}

// TestNamesOfExceptionsAreOnesOfTheEngine queries the engine for its names: a misspelt one would
// silently become a 500.
func TestNamesOfExceptionsAreOnesOfTheEngine(t *testing.T) {
	known := map[string]bool{}
	for name := range strings.Lines(clickhousetest.Exec(t, clickhousetest.Shared(t), "SELECT errorCodeToName(number) FROM numbers(2000)")) {
		known[strings.TrimSpace(name)] = true
	}
	for status, names := range server.Statuses() {
		for _, name := range strings.Fields(names) {
			expect.Not(t, !known[name], "%d: the engine has no %s", status, name)
		}
	}
}
