package endtoend

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// asks sends a statement to the engine of `sluice up` over HTTP.
func (s *stack) asks(method, sql string, header http.Header) (status int, body string) {
	s.t.Helper()
	target, sent := "http://"+s.chHTTP+"/", io.Reader(nil)
	if method == http.MethodGet {
		target += "?query=" + url.QueryEscape(sql)
	} else {
		sent = strings.NewReader(sql)
	}
	req, err := http.NewRequest(method, target, sent)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, values := range header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	res, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestWebPagesReachNothing sends the engine what a browser on this machine would
// for a page that its user opens, and what none may.
func TestWebPagesReachNothing(t *testing.T) {
	s := newStack(t)
	p := s.up()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("the secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := "SELECT * FROM file('" + secret + "', 'LineAsString')"
	for name, header := range map[string]http.Header{
		"an image":          {"Sec-Fetch-Site": {"cross-site"}},
		"another port":      {"Sec-Fetch-Site": {"same-site"}},
		"a script":          {"Origin": {"https://example.com"}},
		"a sandboxed frame": {"Origin": {"null"}},
		"an old browser":    {"Referer": {"https://example.com/page"}},
		"a rebound name":    {"Host": {"rebound.example.com"}},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			for _, sql := range []string{"SELECT 1", read, "INSERT INTO FUNCTION file('" + secret + ".new', 'CSV') SELECT 1", "KILL QUERY WHERE 1"} {
				if status, body := s.asks(method, sql, header); status != http.StatusForbidden {
					t.Errorf("%s, %s %s: %d %s, want 403", name, method, sql, status, body)
				}
			}
		}
	}
	for _, sql := range []string{
		"INSERT INTO flow.records (id) VALUES ('x')", "DROP TABLE flow.records", "KILL QUERY WHERE 1", "SYSTEM STOP MERGES", "CREATE TABLE flow.x (a Int8) ENGINE = Memory",
		read, "SELECT file('" + secret + "')", "SELECT * FROM `" + secret + "`", "SELECT * FROM url('http://" + s.http + "/', 'LineAsString')",
		"SELECT 1 INTO OUTFILE '" + secret + ".new'", "SELECT ‘'’; DROP TABLE flow.records --'",
	} {
		if status, body := s.asks(http.MethodGet, sql, nil); status == http.StatusOK || strings.Contains(body, "the secret") {
			t.Errorf("GET %s: %d %s, want an error", sql, status, body)
		}
	}
	for _, sql := range []string{
		read, "SELECT file('" + secret + "')", "SELECT * FROM `" + secret + "`", "INSERT INTO FUNCTION file('" + secret + ".new', 'CSV') SELECT 1",
		"SELECT * FROM remote('" + s.clickhouse + "', system.one)", "SELECT * FROM s3('http://" + s.http + "/bucket/key', 'CSV', 'a Int8')",
		"CREATE TABLE flow.x (a String) ENGINE = File(CSV, '" + secret + "')", "SELECT 1 INTO OUTFILE '" + secret + ".new'",
	} {
		if status, body := s.asks(http.MethodPost, sql, nil); status == http.StatusOK || strings.Contains(body, "the secret") {
			t.Errorf("POST %s: %d %s, want an error", sql, status, body)
		}
	}
	if _, err := os.Stat(secret + ".new"); err == nil {
		t.Error("a file was written")
	}
	s.eventuallyQuery(0, "SELECT count() FROM flow.records", "0")
	status, err := os.ReadFile("/proc/" + strconv.Itoa(engineOf(t, p)) + "/status")
	if err != nil || !strings.Contains(string(status), "NoNewPrivs:\t1\n") {
		t.Errorf("the engine's process is not confined: %v\n%s", err, status)
	}
}

// TestAllowFilesLetsStatementsOut starts with the flag that turns them on.
func TestAllowFilesLetsStatementsOut(t *testing.T) {
	s := newStack(t)
	s.flags = []string{"--allow-files"}
	s.up()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("a line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sql := "SELECT * FROM file('" + file + "', 'LineAsString')"
	if status, body := s.askAs("admin", s.secret("clickhouse-admin"), sql); status != http.StatusOK || body != "a line\n" {
		t.Errorf("POST: %d %s", status, body)
	}
	if status, body := s.asks(http.MethodGet, sql, nil); status != http.StatusForbidden {
		t.Errorf("GET: %d %s, want 403", status, body)
	}
}
