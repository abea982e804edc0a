package run

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestWarningsNameTheirRunbook: each page exists, and each text is one that a program logs.
func TestWarningsNameTheirRunbook(t *testing.T) {
	const root = "../../.."
	var source bytes.Buffer
	for _, dir := range []string{"pkg", "cmd"} {
		fatal.If(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "log.go" {
				return err
			}
			text, err := os.ReadFile(path)
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "Warn") || strings.Contains(line, "Error") || strings.Contains(line, "changesName") {
					source.WriteString(line)
				}
			}
			return err
		}))
	}
	for _, r := range runbooks {
		_, err := os.Stat(filepath.Join(root, "docs/runbooks", r.page+".md"))
		fatal.If(t, err)
		for _, text := range r.texts {
			expect.Not(t, !strings.Contains(source.String(), text), "nothing logs %q", text)
		}
	}
	for want, message := range map[string]string{
		"ChangesHalted": "applying changes halted: probing until fixed", "LaneHalted": "lane 3 halted: probing until fixed",
		"ServerDown": "NATS cannot be reached", "README": "console: page failed to render",
	} {
		expect.Equal(t, message, "docs/runbooks/"+want+".md", runbook(message).Value.String())
	}
	var out bytes.Buffer
	log := newLogger(&out, true)
	log.Warn("lease lost")
	log.Info("lease taken")
	expect.Equal(t, "lines that name a runbook", 1, strings.Count(out.String(), "runbook=docs/runbooks/LaneWithoutOwner.md"))
}
