package endtoend

import (
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/fatal"
)

var update = flag.Bool("update", false, "write the answers of docs/notebooks anew")

// A block of commands, and the one behind it of what they print.
var notebookBlocks = regexp.MustCompile("(?s)```sh\n(.*?)```\n\n```text\n(.*?)```")

// TestNotebooks runs the pages as a reader would, block by block in one shell,
// and compares what it prints with what stands there.
func TestNotebooks(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/notebooks/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, page := range pages {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			s := newStack(t)
			s.empty = true
			greeting := s.up().text()
			firstTenMinutes(t, s, greeting)
			notebook(t, s, page)
			if said := s.sluice(0, "lint", "--clickhouse", "clickhouse://"+s.clickhouse+"/flow"); !strings.Contains(said, "no findings") {
				t.Errorf("sluice lint:\n%s", said)
			}
			v := visit(t, greeting)
			v.needsNothing()
			for path, want := range map[string]string{"/sources": "local", "/dead": "No dead letters."} {
				if status, shown := v.send(path, nil); status != http.StatusOK || !strings.Contains(shown, want) || strings.Contains(shown, "missing") {
					t.Errorf("%s: %d, without %q\n%s", path, status, want, shown)
				}
			}
		})
	}
}

// firstTenMinutes does what the README and the greeting of sluice up say: the loads, and
// the record.
func firstTenMinutes(t *testing.T, s *stack, greeting string) {
	t.Helper()
	readme, err := os.ReadFile("../../../README.md")
	fatal.If(t, err)
	script := "set -euo pipefail\n"
	for _, line := range strings.Split(string(readme), "\n") {
		if strings.HasPrefix(line, "bin/sluice load ") {
			script += here(s).Replace(line) + "\n"
		}
	}
	_, record, found := strings.Cut(greeting, "Post a record:\n")
	if record, _, _ = strings.Cut(record, "\n"); !found || strings.Count(script, "\n") != 3 {
		t.Fatalf("the README has other loads, or the greeting no record:\n%s\n%s", script, greeting)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script+record)
	cmd.Env = environ("sluice")
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(said), `{"status":"OK"}`) {
		t.Fatalf("%v\n%s", err, said)
	}
	s.eventuallyQuery(10*time.Second, "SELECT count() >= 1000, max(started_at) > now() - 60 FROM flow.v_process_instances WHERE bpmn_process_id NOT LIKE 'steady-%' AND started_at > now() - 3600", "1\t1")
}

// here replaces what a reader has by default, which is elsewhere here.
func here(s *stack) *strings.Replacer {
	program := "'" + filepath.Join(bin, "sluice") + "' "
	return strings.NewReplacer("127.0.0.1:8080", s.http, "127.0.0.1:8123", s.chHTTP, "./data/", s.data+"/",
		"bin/sluice load", program+"load --url http://"+s.http+" --token-file '"+filepath.Join(s.data, "token")+"'", "bin/sluice export", program+"export --data '"+s.data+"' --clickhouse-http "+s.chHTTP)
}

func notebook(t *testing.T, s *stack, page string) {
	t.Helper()
	content, err := os.ReadFile(page)
	fatal.If(t, err)
	const end = "--- end of a block ---"
	script := "set -euo pipefail\n"
	blocks := notebookBlocks.FindAllStringSubmatch(string(content), -1)
	for _, b := range blocks {
		script += here(s).Replace(b[1]) + "\necho; echo '" + end + "'\n"
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = environ("sluice")
	var said strings.Builder
	cmd.Stderr = &said
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, said.String(), printed)
	}
	answers := strings.Split(string(printed), "\n"+end+"\n")
	if len(blocks) < 3 || len(answers) != len(blocks)+1 {
		t.Fatalf("%d blocks have %d answers: %s", len(blocks), len(answers)-1, printed)
	}
	i := -1
	fresh := notebookBlocks.ReplaceAllStringFunc(string(content), func(string) string {
		i++
		lines := strings.Split(strings.Trim(answers[i], "\n"), "\n")
		for n := range lines {
			lines[n] = strings.TrimRight(lines[n], " ")
		}
		answer := strings.Join(lines, "\n")
		if answer != "" {
			answer += "\n"
		}
		return "```sh\n" + blocks[i][1] + "```\n\n```text\n" + answer + "```"
	})
	if *update {
		fatal.If(t, os.WriteFile(page, []byte(fresh), 0o600))
		return
	}
	if diff := cmp.Diff(string(content), fresh); diff != "" {
		t.Errorf("-page +what is printed (-update writes it):\n%s", diff)
	}
}
