package endtoend

import (
	"html"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice/pkg/fatal"
)

// TestTheFirstTenMinutes follows the README and the greeting of sluice up, on an empty folder. Then no
// check, no page, and no lint reports a problem.
func TestTheFirstTenMinutes(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.empty, s.flags = true, []string{"--grafana", "https://grafana.example", "--operate", "https://operate.example"}
	greeting := s.up().text()
	firstTenMinutes(t, s, greeting)
	if said := s.sluice(0, "lint"); !strings.Contains(said, "no findings") {
		t.Errorf("sluice lint:\n%s", said)
	}
	if said := s.sluice(0, "source", "add", "broker"); !strings.Contains(said, "curl http://"+s.http+"/") { // commands find the addresses in --data
		t.Errorf("sluice source add has other addresses than sluice up:\n%s", said)
	}
	v := visit(t, greeting)
	v.needsNothing()
	_, list := v.send("/instances", nil)
	instance := html.UnescapeString(regexp.MustCompile(`/instance\?[^"]+`).FindString(list))
	for path, want := range map[string]string{"/": "https://grafana.example", instance: "https://operate.example/processes/", "/sources": "local", "/dead": "No dead letters."} {
		if status, shown := v.send(path, nil); status != http.StatusOK || !strings.Contains(shown, want) || strings.Contains(shown, "missing") {
			t.Errorf("%s: %d, without %q\n%s", path, status, want, shown)
		}
	}
}

// firstTenMinutes runs the loads of the README and posts the record of the greeting.
func firstTenMinutes(t *testing.T, s *stack, greeting string) {
	t.Helper()
	readme, err := os.ReadFile("../../../README.md")
	fatal.If(t, err)
	script := "set -euo pipefail\n"
	load := "'" + filepath.Join(bin, "sluice") + "' load --url http://" + s.http + " --token-file '" + filepath.Join(s.data, "token") + "'"
	for _, line := range strings.Split(string(readme), "\n") {
		if strings.HasPrefix(line, "bin/sluice load ") {
			script += strings.Replace(line, "bin/sluice load", load, 1) + "\n"
		}
	}
	_, record, found := strings.Cut(greeting, "Post a record:\n")
	if record, _, _ = strings.Cut(record, "\n"); !found || strings.Count(script, "\n") != 3 {
		t.Fatalf("the README has other loads, or the greeting has no record:\n%s\n%s", script, greeting)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script+record)
	cmd.Env = environ("sluice")
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(said), `{"status":"OK"}`) {
		t.Fatalf("%v\n%s", err, said)
	}
	s.eventuallyQuery(10*time.Second, "SELECT count() >= 1000, max(started_at) > now() - 60 FROM flow.v_process_instances WHERE bpmn_process_id NOT LIKE 'steady-%' AND started_at > now() - 3600", "1\t1")
}
