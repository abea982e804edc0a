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

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestSecretsAreWrittenNowhere sends secrets in every way, in valid and invalid requests,
// and then searches everything that any part wrote.
func TestSecretsAreWrittenNowhere(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.flags = []string{"--mask", "apiKey,pin"}
	p := s.up()
	secrets := []string{"record-secret-4711", "record-key-0815", "correct-horse-battery", "another-staple-77", "sk-live-4242424242", "nested-secret-31337", "refused-secret-99", "variable-secret-271", s.token}
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
		expect.Not(t, res.StatusCode != tt.status, "%s: answered %s %s, want %d", tt.body, res.Status, body, tt.status)
		wantNone(t, "an answer", []byte(body), secrets)
	}
	res, body := s.send(http.MethodGet, user, "")
	if res.StatusCode != http.StatusOK || !strings.Contains(body, `"password":"****"`) || !strings.Contains(body, `"sk":"****"`) {
		t.Errorf("answered %s %s, want masked secrets", res.Status, body)
	}
	wantNone(t, "the answer to GET", []byte(body), secrets)
	s.eventuallyQuery(10*time.Second, "SELECT count() FROM flow.changes", "2")
	// Records are stored without masked values, and are equal for different ones.
	for i, sent := range []string{
		`{"id":"u-1","valueType":"USER","intent":"CREATED","value":{"username":"ann","passWord":"record-secret-4711","more":[{"apikey":"record-key-0815"}],"pin":4}}`,
		`{"id":"u-1","valueType":"USER","intent":"CREATED","value":{"username":"ann","passWord":"***","more":[{"apikey":{"is":"record-key-0815"}}],"pin":0}}`,
		`[{"id":"u-2","password":"record-secret-4711","key":"no number"}]`,
		`[{"id":"u-2","password":"record-secret-4711"`,
		`[{"partitionId":1,"position":1,"key":1,"timestamp":1763700000000,"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","value":{"value":"\"variable-secret-271\"","name":"Password","processInstanceKey":7,"scopeKey":7}},
		  {"partitionId":1,"position":2,"key":2,"timestamp":1763700000000,"recordType":"EVENT","valueType":"VARIABLE","intent":"CREATED","value":{"name":"login","value":"{\"user\":\"ann\",\"PIN\":\"variable-secret-271\"}","processInstanceKey":7,"scopeKey":7}}]`,
	} {
		res, body := s.send(http.MethodPost, "/flow/flowRecord/batch", sent)
		if want := []int{200, 200, 422, 400, 200}[i]; res.StatusCode != want {
			t.Errorf("%s: answered %s %s, want %d", sent, res.Status, body, want)
		}
		wantNone(t, "an answer", []byte(body), secrets)
	}
	s.eventuallyQuery(10*time.Second, "SELECT count(), any(extra) LIKE '%\"passWord\":\"***\"%' FROM flow.records WHERE value_type = 'USER'", "1\t1")
	s.eventuallyQuery(10*time.Second, "SELECT name, value FROM flow.v_variables ORDER BY name", "Password\t***\nlogin\t{\"user\":\"ann\",\"PIN\":\"***\"}")
	for _, table := range []string{"records", "v_records"} {
		rows, err := s.query("SELECT * FROM flow." + table + " FORMAT JSONEachRow")
		fatal.If(t, err)
		wantNone(t, "flow."+table, []byte(rows), secrets)
	}
	changes, err := s.query("SELECT * FROM flow.changes FORMAT JSONEachRow") // compressed on disk
	fatal.If(t, err)
	wantNone(t, "flow.changes", []byte(changes), secrets)
	metrics, err := s.client.Get("http://" + s.ops + "/metrics")
	fatal.If(t, err)
	defer metrics.Body.Close()
	page, err := io.ReadAll(metrics.Body)
	fatal.If(t, err)
	wantNone(t, "the metrics", page, secrets)
	if code := p.stop(); code != 0 {
		t.Fatalf("stopped with exit %d", code)
	}

	// The greeting too, which names the file of the token.
	expect.NoError(t, wantText(p.text(), `"Authorization: Bearer $(cat `+filepath.Join(s.data, "token")+`)"`))
	wantNone(t, "the log", []byte(p.text()), secrets)
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
	fatal.If(t, err)
	fatal.When(t, files < 20, "searched only %d files: the data is elsewhere", files)
}

func wantNone(t *testing.T, where string, content []byte, secrets []string) {
	t.Helper()
	for _, secret := range secrets {
		expect.Not(t, bytes.Contains(content, []byte(secret)), "%s holds the secret %q", where, secret)
	}
}
