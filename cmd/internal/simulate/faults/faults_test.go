package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

var testName = regexp.MustCompile(`\bTest[A-Z]\w+`)

// TestEveryNamedTestExists: tests named in docs/reliability.md and in README.md exist.
func TestEveryNamedTestExists(t *testing.T) {
	const root = "../../../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	fatal.If(t, err)
	list, err := os.ReadFile("README.md")
	fatal.If(t, err)
	var tests strings.Builder
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".cache":
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	fatal.If(t, err)
	for _, name := range testName.FindAllString(string(page)+string(list), -1) {
		expect.Not(t, !strings.Contains(tests.String(), "\nfunc "+name+"("), "a page names %s, which is no test", name)
	}
}

// TestEveryPatchApplies: a fault that cannot be applied proves nothing.
func TestEveryPatchApplies(t *testing.T) {
	patches, err := filepath.Glob("*.patch")
	fatal.When(t, err != nil || len(patches) == 0, "%d patches, %v", len(patches), err)
	list, err := os.ReadFile("README.md")
	fatal.If(t, err)
	for _, patch := range patches {
		text, err := os.ReadFile(patch)
		fatal.If(t, err)
		if err := git(t.Context(), "../../../..", text, "apply", "--check"); err != nil {
			t.Errorf("%s does not apply: rewrite it: %v", patch, err)
		}
		if number := strings.TrimLeft(strings.SplitN(patch, "-", 2)[0], "0"); !strings.Contains(string(list), "\n| "+number+" |") {
			t.Errorf("%s is not in the list of README.md", patch)
		}
	}
}
