package endtoend

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"sluice/pkg/fatal"
	"sluice/pkg/programtest"
)

// secretNames are the files that `sluice up` creates once.
var secretNames = []string{"clickhouse-admin", "clickhouse-ingester", "clickhouse-analyst", "nats-api", "nats-ingester", "nats-operator"}

// askAs sends a statement to ClickHouse as a user.
func (s *stack) askAs(name, password, sql string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.chHTTP+"/", strings.NewReader(sql))
	fatal.If(s.t, err)
	if name != "" {
		req.Header.Set("X-ClickHouse-User", name)
		req.Header.Set("X-ClickHouse-Key", password)
	}
	res, err := s.client.Do(req)
	fatal.If(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	fatal.If(s.t, err)
	return res.StatusCode, string(text)
}

// TestEveryUserHasHisRights runs `sluice up` and connects without a password, and as each
// of its users.
func TestEveryUserHasHisRights(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	p := s.up()
	fatal.If(t, wantOK(s.send("POST", "/flow/flowRecord/batch", `[{"id":"a"},{"id":"b"}]`)))
	s.eventuallyQuery(10*time.Second, "SELECT count(), any(currentUser()) FROM flow.records", "2\tanalyst")

	secrets := map[string]string{}
	for _, name := range secretNames {
		file := filepath.Join(s.data, "secrets", name)
		stat, err := os.Stat(file)
		fatal.If(t, err)
		if stat.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, stat.Mode())
		}
		secrets[name] = s.secret(name)
		if len(secrets[name]) < 32 || strings.Contains(secrets[name], "\n") {
			t.Errorf("%s is %d characters, want one line of many", name, len(secrets[name]))
		}
	}

	t.Run("without a password ClickHouse is read-only", func(t *testing.T) {
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
	t.Run("NATS requires a password", func(t *testing.T) {
		for _, option := range [][]nats.Option{nil, {nats.UserInfo("operator", "")}, {nats.UserInfo("api", secrets["nats-ingester"])}} {
			if nc, err := nats.Connect("nats://"+s.nats, option...); err == nil {
				nc.Close()
				t.Error("connected")
			}
		}
	})
	t.Run("operator's commands take their passwords from the folder", func(t *testing.T) {
		at, warehouse := "nats://"+s.nats, "clickhouse://"+s.clickhouse+"/flow"
		s.sluice(0, "migrate", "--clickhouse", warehouse) // an up-to-date schema needs no privileges
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
	for range 100 { // of callers without a password
		conn, err := net.Dial("tcp", s.clickhouse)
		fatal.If(t, err)
		_, _ = conn.Write([]byte("G"))
		_, _ = io.ReadAll(conn)
		conn.Close()
		req, err := http.NewRequest(http.MethodPost, "http://"+s.chHTTP, strings.NewReader("SELECT 1"))
		fatal.If(t, err)
		req.Header.Set("Origin", "http://example.com")
		res, err := http.DefaultClient.Do(req)
		fatal.If(t, err)
		res.Body.Close()
	}
	if code := p.stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	log := p.text()
	for _, line := range []string{"native connection refused", "request of another site"} {
		if n := strings.Count(log, line); n < 1 || n > 40 {
			t.Errorf("%d lines of %q, want some and no flood", n, line)
		}
	}
	if !strings.Contains(log, `"clickhouse: log-in failed","user":"admin"`) {
		t.Error("failed log-ins are not in the log")
	}
	s.up()
	for name, secret := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("%s is in the log", name)
		}
		if again := s.secret(name); again != secret {
			t.Errorf("%s changed by a restart", name)
		}
	}
}

// TestUsersOfTheServersAlone runs every part separately, with the passwords that `sluice
// nats` and `sluice clickhouse` created.
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
	fatal.If(t, wantOK(s.send("POST", "/flow/flowRecord/batch", `[{"id":"a"},{"id":"b"}]`)))
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
