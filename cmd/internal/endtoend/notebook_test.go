package endtoend

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
			s.up()
			notebook(t, s, page)
		})
	}
}

func notebook(t *testing.T, s *stack, page string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	// What a reader has by default is elsewhere here.
	here := strings.NewReplacer("127.0.0.1:8080", s.http, "127.0.0.1:8123", s.chHTTP, "./data/", s.data+"/",
		"bin/sluice load", "'"+filepath.Join(bin, "sluice")+"' load --url http://"+s.http+" --token-file '"+filepath.Join(s.data, "token")+"'", "bin/sluice export", "'"+filepath.Join(bin, "sluice")+"' export --data '"+s.data+"' --clickhouse-http "+s.chHTTP)
	const end = "--- end of a block ---"
	script := "set -euo pipefail\n"
	blocks := notebookBlocks.FindAllStringSubmatch(string(content), -1)
	for _, b := range blocks {
		script += here.Replace(b[1]) + "\necho; echo '" + end + "'\n"
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
		if err := os.WriteFile(page, []byte(fresh), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(content), fresh); diff != "" {
		t.Errorf("-page +what is printed (-update writes it):\n%s", diff)
	}
}
