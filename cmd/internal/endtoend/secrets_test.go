package endtoend

import (
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSecretsAreWrittenNowhere sends secrets in every way a client may, good
// and bad, and then looks for them in every byte that any part wrote.
func TestSecretsAreWrittenNowhere(t *testing.T) {
	s := newStack(t)
	p := s.up()
	secrets := []string{"correct-horse-battery", "another-staple-77", "sk-live-4242424242", "nested-secret-31337", "refused-secret-99", s.token}
	const user = "/spm/login/current/user"
	for _, tt := range []struct {
		body   string
		status int
	}{
		{`{"name":"Ann","password":"correct-horse-battery","password1":"correct-horse-battery","sk":"sk-live-4242424242"}`, 200},
		{`{"password":"correct-horse-battery","password1":"another-staple-77"}`, 422},
		{`{"projects":[{"id":"p1","user":{"password":"nested-secret-31337"}}]}`, 200},
		{`{"password":"refused-secret-99","status":"not a boolean"}`, 422},
		{`{"password":"refused-secret-99"`, 400},
		{`{"id":"somebody-else","password":"refused-secret-99"}`, 409},
	} {
		res, body := s.send(http.MethodPatch, user, tt.body)
		if res.StatusCode != tt.status {
			t.Errorf("%s: answered %s %s, want %d", tt.body, res.Status, body, tt.status)
		}
		wantNone(t, "an answer", []byte(body), secrets)
	}
	res, body := s.send(http.MethodGet, user, "")
	if res.StatusCode != http.StatusOK || !strings.Contains(body, `"password":"****"`) || !strings.Contains(body, `"sk":"****"`) {
		t.Errorf("answered %s %s, want masked secrets", res.Status, body)
	}
	wantNone(t, "the answer to GET", []byte(body), secrets)
	s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.changes", "2")
	changes, err := s.query("SELECT * FROM flow.changes FORMAT JSONEachRow") // on disk it is compressed
	if err != nil {
		t.Fatal(err)
	}
	wantNone(t, "flow.changes", []byte(changes), secrets)
	metrics, err := s.client.Get("http://" + s.ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer metrics.Body.Close()
	page, err := io.ReadAll(metrics.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantNone(t, "the metrics", page, secrets)
	if code := p.stop(); code != 0 {
		t.Fatalf("stopped with exit %d", code)
	}

	// The greeting shows the token, on standard output, to who started it.
	log := strings.ReplaceAll(p.text(), "-H 'Authorization: Bearer "+s.token+"'", "")
	wantNone(t, "the log", []byte(log), secrets)
	files := 0
	err = filepath.WalkDir(s.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || path == filepath.Join(s.data, "token") {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		wantNone(t, path, content, secrets)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("looked into %d files: the data is somewhere else", files)
	}
}

func wantNone(t *testing.T, where string, content []byte, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		if bytes.Contains(content, []byte(secret)) {
			t.Errorf("%s holds the secret %q", where, secret)
		}
	}
}
