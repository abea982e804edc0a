package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestEveryPartHasItsLicence: every linked module, and every file of the console.
func TestEveryPartHasItsLicence(t *testing.T) {
	var b bytes.Buffer
	fatal.If(t, write(&b, "../../.."))
	for _, want := range []string{"github.com/nats-io/nats-server/v2 v", "github.com/gin-gonic/gin v", "Go go1", "bpmn-js (in the console)", "uPlot (in the console)", "Apache License", "BSD"} {
		expect.Not(t, !strings.Contains(b.String(), want), "the notices lack %q", want)
	}
}

// TestLicencesAreFound: of a folder and of those above it, without source files.
func TestLicencesAreFound(t *testing.T) {
	root := t.TempDir()
	fatal.If(t, os.MkdirAll(filepath.Join(root, "a/b/licenses"), 0o755))
	for _, name := range []string{"LICENSE", "license_test.go", "a/COPYING.txt", "a/b/NOTICE", "a/b/noticed"} {
		fatal.If(t, os.WriteFile(filepath.Join(root, name), nil, 0o644))
	}
	p := part{files: map[string]bool{}}
	fatal.If(t, p.find(filepath.Join(root, "a/b"), root))
	expect.Not(t, len(p.files) != 3 || !p.files[filepath.Join(root, "LICENSE")], "found are %v, want LICENSE, a/COPYING.txt and a/b/NOTICE", p.files)
}
