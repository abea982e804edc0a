package run_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/cmd/internal/run"
	"sluice/pkg/fatal"
)

func TestDataFoldersOfAnotherFormatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files []string // name:content
		want  string   // part of the error; empty: accepted
	}{
		"none":                      {nil, ""},
		"of this format":            {[]string{"format:1", "nats/jetstream:x"}, ""},
		"without servers yet":       {[]string{"secrets/nats-api:x"}, ""},
		"of a later format":         {[]string{"format:2", "nats/jetstream:x"}, "has format 2"},
		"from before formats":       {[]string{"nats/jetstream:x"}, "has format 0"},
		"of ClickHouse from before": {[]string{"clickhouse/store:x"}, "has format 0"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "data")
			for _, file := range c.files {
				path, text, _ := strings.Cut(file, ":")
				path = filepath.Join(folder, path)
				fatal.If(t, os.MkdirAll(filepath.Dir(path), 0o700))
				fatal.If(t, os.WriteFile(path, []byte(text), 0o600))
			}
			for range 2 {
				err := run.MakeFolder(folder)
				fatal.When(t, (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want), "got %v, want %q", err, c.want)
			}
		})
	}
}
