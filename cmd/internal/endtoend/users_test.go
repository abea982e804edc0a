package endtoend

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/programtest"
)

// secretNames are the files that `sluice up` makes once.
var secretNames = []string{"clickhouse-admin", "clickhouse-ingester", "clickhouse-analyst", "nats-api", "nats-ingester", "nats-operator"}

// askAs sends a statement to ClickHouse as one of its users.
func (s *stack) askAs(name, password, sql string) (int, string) {
	s.t.Helper()
	header := http.Header{}
	if name != "" {
		header.Set("X-ClickHouse-User", name)
		header.Set("X-ClickHouse-Key", password)
	}
	return s.asks(http.MethodPost, sql, header)
}

// natsAs connects to NATS as one of its users, and returns what the server then
// said against what was tried.
func (s *stack) natsAs(name, password string) (nc *nats.Conn, refused chan error) {
	s.t.Helper()
	refused = make(chan error, 64)
	nc, err := nats.Connect("nats://"+s.nats, nats.UserInfo(name, password), nats.CustomInboxPrefix("_INBOX_"+name),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	s.t.Cleanup(nc.Close)
	return nc, refused
}

// TestEveryUserHasHisRights runs `sluice up` and knocks as another user of this
// machine would, and as each of its own.
func TestEveryUserHasHisRights(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	if err := wantOK(s.send("POST", "/flow/flowRecord/batch", `[{"id":"a"},{"id":"b"}]`)); err != nil {
		t.Fatal(err)
	}
	s.eventuallyQuery(10*time.Second, "SELECT count(), any(currentUser()) FROM flow.records", "2\tanalyst")

	secrets := map[string]string{}
	for _, name := range secretNames {
		file := filepath.Join(s.data, "secrets", name)
		stat, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if stat.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, stat.Mode())
		}
		secrets[name] = s.secret(name)
		if len(secrets[name]) < 32 || strings.Contains(secrets[name], "\n") {
			t.Errorf("%s is %d characters, want one line of many", name, len(secrets[name]))
		}
	}

	t.Run("who has no password changes nothing in ClickHouse", func(t *testing.T) {
		for _, sql := range []string{
			"INSERT INTO flow.records (id) VALUES ('x')", "DROP TABLE flow.records", "TRUNCATE TABLE flow.records", "ALTER TABLE flow.records DELETE WHERE 1",
			"KILL QUERY WHERE 1", "SYSTEM STOP MERGES", "CREATE TABLE flow.x (a Int8) ENGINE = Memory", "SET ROLE admin", "SELECT 1 SETTINGS max_memory_usage = DEFAULT",
			"SELECT groupArray(number) FROM numbers(1000000000)", "SELECT number FROM numbers(2000000) FORMAT JSON",
		} {
			if status, body := s.askAs("", "", sql); status == http.StatusOK {
				t.Errorf("%s: %d %.200s", sql, status, body)
			}
		}
		for name, password := range map[string]string{"admin": "", "ingester": "", "analyst": "wrong", "default": "wrong"} {
			if status, _ := s.askAs(name, password, "SELECT 1"); status != http.StatusForbidden {
				t.Errorf("%s: %d, want 403", name, status)
			}
		}
	})
	t.Run("each user is told who he is", func(t *testing.T) {
		for _, name := range []string{"admin", "ingester", "analyst"} {
			if status, body := s.askAs(name, secrets["clickhouse-"+name], "SELECT currentUser()"); status != http.StatusOK || body != name+"\n" {
				t.Errorf("%s: %d %s", name, status, body)
			}
		}
	})
	t.Run("the admin does what he likes", func(t *testing.T) {
		for _, sql := range []string{"CREATE TABLE flow.x (a Int8) ENGINE = MergeTree ORDER BY a", "INSERT INTO flow.x VALUES (1)", "SYSTEM FLUSH LOGS", "DROP TABLE flow.x SYNC", "KILL QUERY WHERE query = 'nosuch'"} {
			if status, body := s.askAs("admin", secrets["clickhouse-admin"], sql); status != http.StatusOK {
				t.Errorf("%s: %d %s", sql, status, body)
			}
		}
	})
	t.Run("who has no password has no NATS", func(t *testing.T) {
		for _, option := range [][]nats.Option{nil, {nats.UserInfo("operator", "")}, {nats.UserInfo("api", secrets["nats-ingester"])}} {
			if nc, err := nats.Connect("nats://"+s.nats, option...); err == nil {
				nc.Close()
				t.Error("connected")
			}
		}
	})
	t.Run("a user of NATS does his work and no other", func(t *testing.T) {
		for _, tt := range []struct{ user, subject string }{
			{"api", "flow.dead.x"}, {"api", "flow.replay.x"}, {"api", "$KV.flow_lanes.lane.0"}, {"api", "$KV.flow_state.user.x"}, {"api", "$KV.flow_leases.lane.0"},
			{"api", "$JS.API.STREAM.PURGE.FLOW_0"}, {"api", "$JS.API.STREAM.DELETE.FLOW_0"}, {"api", "$JS.API.STREAM.CREATE.MINE"},
			{"api", "$JS.API.STREAM.UPDATE.FLOW_0"}, {"api", "$JS.API.STREAM.MSG.DELETE.FLOW_DEAD"}, {"api", "elsewhere"},
			{"ingester", "flow.0.record"}, {"ingester", "flow.0.change.user.x"}, {"ingester", "flow.replay.x"}, {"ingester", "$JS.API.STREAM.DELETE.FLOW_0"},
			{"ingester", "$JS.API.STREAM.CREATE.MINE"}, {"ingester", "$JS.API.STREAM.UPDATE.FLOW_0"}, {"ingester", "$JS.API.STREAM.MSG.DELETE.FLOW_DEAD"}, {"ingester", "elsewhere"},
		} {
			nc, refused := s.natsAs(tt.user, secrets["nats-"+tt.user])
			if err := nc.Publish(tt.subject, []byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-refused:
				if !strings.Contains(strings.ToLower(err.Error()), "permissions violation") {
					t.Errorf("%s publishes to %s: %v", tt.user, tt.subject, err)
				}
			case <-time.After(5 * time.Second):
				t.Errorf("%s may publish to %s", tt.user, tt.subject)
			}
			nc.Close()
		}
		nc, refused := s.natsAs("api", secrets["nats-api"])
		if _, err := nc.SubscribeSync("_INBOX_ingester.>"); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-refused:
		case <-time.After(5 * time.Second):
			t.Error("the api may read the ingester's answers")
		}
	})
	t.Run("operator's commands take their passwords from the folder", func(t *testing.T) {
		at, warehouse := "nats://"+s.nats, "clickhouse://"+s.clickhouse+"/flow"
		s.sluice(0, "migrate", "--clickhouse", warehouse) // an up-to-date schema takes no rights
		for _, args := range [][]string{
			{"lanes", "--nats", at}, {"verify", "--nats", at, "--clickhouse", warehouse}, {"dead", "list", "--nats", at},
			{"migrate", "ttl", "--keep-changes", "3000d", "--clickhouse", warehouse},
		} {
			if code, out := run(t, "sluice", append(args, "--data", t.TempDir())...); code == 0 {
				t.Errorf("sluice %s without passwords: exit 0\n%s", strings.Join(args, " "), out)
			} else if lower := strings.ToLower(out); !strings.Contains(lower, "authorization") && !strings.Contains(lower, "not enough privileges") {
				t.Errorf("sluice %s without passwords does not say what is missing:\n%s", strings.Join(args, " "), out)
			}
			s.sluice(0, args...)
		}
	})
	s.eventuallyQuery(0, "SELECT count() FROM flow.records", "2")
	if code := p.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	log := p.text()
	if !strings.Contains(log, `"clickhouse: a log-in failed","user":"admin"`) {
		t.Error("failed log-ins are not in the log")
	}
	s.up()
	for name, secret := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("%s is in the log", name)
		}
		if again := s.secret(name); again != secret {
			t.Errorf("%s is another one after a restart", name)
		}
	}
}

// TestPrivateUp: with --private no client reads without a password.
func TestPrivateUp(t *testing.T) {
	s := newStack(t)
	s.flags = []string{"--private", "--analyst-rows", "10"}
	s.up()
	if status, body := s.askAs("", "", "SELECT 1"); status != http.StatusUnauthorized {
		t.Errorf("%d %s, want 401", status, body)
	}
	if status, body := s.askAs("analyst", s.secret("clickhouse-analyst"), "SELECT count() FROM flow.records"); status != http.StatusOK || body != "0\n" {
		t.Errorf("the analyst: %d %s", status, body)
	}
	if status, _ := s.askAs("analyst", s.secret("clickhouse-analyst"), "SELECT number FROM numbers(11)"); status == http.StatusOK {
		t.Error("the analyst has no limit")
	}
	if status, body := s.askAs("analyst", s.secret("clickhouse-analyst"), "DROP TABLE flow.records"); status != http.StatusForbidden {
		t.Errorf("the analyst drops: %d %s", status, body)
	}
}

// TestUsersOfTheServersAlone runs every part by itself, with the passwords that
// `sluice nats` and `sluice clickhouse` have made.
func TestUsersOfTheServersAlone(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	folder := filepath.Join(s.data, "secrets")
	start(t, "sluice", "nats", "--data", filepath.Join(s.data, "nats"), "--listen", s.nats, "--secrets", folder)
	start(t, "sluice", "clickhouse", "--data", filepath.Join(s.data, "clickhouse"), "--listen", s.clickhouse, "--http", s.chHTTP, "--secrets", folder)
	eventually(t, 30*time.Second, func() error { _, err := s.query("SELECT 1"); return err })
	file := func(secret string) string { return filepath.Join(folder, secret) }
	tokens := s.tokenFile()
	api := start(t, "api", "--http", s.http, "--ops", s.ops, "--nats", "nats://"+s.nats, "--nats-user", "api", "--nats-password-file", file("nats-api"), "--tokens", tokens, "--fingerprint-key", filepath.Join(s.data, "key"))
	ops := programtest.Address()
	withPassword := (&url.URL{Scheme: "nats", User: url.UserPassword("ingester", s.secret("nats-ingester")), Host: s.nats}).String()
	ingester := start(t, "ingester", "--ops", ops, "--nats", withPassword,
		"--clickhouse", "clickhouse://ingester@"+s.clickhouse+"/flow", "--clickhouse-password-file", file("clickhouse-ingester"))
	s.waitReady(api, s.ops)
	s.waitReady(ingester, ops)
	if err := wantOK(s.send("POST", "/flow/flowRecord/batch", `[{"id":"a"},{"id":"b"}]`)); err != nil {
		t.Fatal(err)
	}
	if err := wantOK(s.send("PATCH", "/spm/login/current/user", `{"name":"n"}`)); err != nil {
		t.Error(err)
	}
	if err := wantOK(s.send("PUT", aField, `{"name":"n"}`)); err != nil {
		t.Error(err)
	}
	s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.records", "2")
	s.sluice(0, "verify", "--nats", "nats://"+s.nats, "--clickhouse", "clickhouse://"+s.clickhouse+"/flow")
	s.sluice(0, "lanes", "add", "--nats", "nats://"+s.nats)
	for _, args := range [][]string{
		{"--nats", "nats://operator:s3cret@" + s.nats + "0"}, {"--nats", "nats://operator:s3cret@" + s.nats}, {"--nats", "nats://operator:s3%cret@" + s.nats},
		{"--nats", "nats://" + s.nats, "--nats-user", "operator"}, {"--nats", withPassword, "--nats-user", "operator", "--nats-password-file", file("nats-operator")},
	} {
		code, out := run(t, "sluice", append([]string{"lanes"}, args...)...)
		if code == 0 || strings.Contains(out, "cret@") || strings.Contains(out, s.secret("nats-ingester")) {
			t.Errorf("sluice lanes %q: exit %d\n%s", args, code, out)
		}
	}
	for _, p := range []*process{api, ingester} {
		for _, name := range secretNames {
			if secret := s.secret(name); secret != "" && strings.Contains(p.text(), secret) {
				t.Errorf("%s is in the log of %s", name, p.name)
			}
		}
	}
}
