package run_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// TestPagesLeadSomewhere follows every link between pages, and from pages to code.
func TestPagesLeadSomewhere(t *testing.T) {
	root := "../../.."
	links := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "data") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		for _, found := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, path), ""), -1) {
			target, place, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, ":") {
				continue // elsewhere in the world
			}
			links++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %s does not exist", path, found[1])
			} else if place != "" && filepath.Ext(file) == ".md" && !places(read(t, file))[place] {
				t.Errorf("%s: %s has no such heading", path, found[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 100 {
		t.Errorf("found %d links, want more than 100: are they still looked for in the right place?", links)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// places are the anchors of a page: its headings as GitHub names them, and those
// that it names itself.
func places(page string) map[string]bool {
	page = fenced.ReplaceAllString(page, "")
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(page, -1) {
		text := link.ReplaceAllString(h[1], "]")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))
		all[name] = true
	}
	for _, a := range anchor.FindAllStringSubmatch(page, -1) {
		all[a[1]] = true
	}
	return all
}

// TestEveryDecisionIsInTheIndex, under the number of its file and its heading; the
// numbers have no holes.
func TestEveryDecisionIsInTheIndex(t *testing.T) {
	folder := filepath.Join("../../..", "docs", "decisions")
	index := read(t, filepath.Join(folder, "README.md"))
	pages, err := filepath.Glob(filepath.Join(folder, "[0-9]*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d decisions, %v", len(pages), err)
	}
	for i, page := range pages {
		name := filepath.Base(page)
		number := fmt.Sprintf("%04d", i+1)
		if !strings.HasPrefix(name, number+"-") {
			t.Fatalf("%s should have the number %s: a new decision takes the next free one", name, number)
		}
		if !strings.HasPrefix(read(t, page), "# "+number+": ") {
			t.Errorf("the heading of %s does not begin with # %s:", name, number)
		}
		if !strings.Contains(index, "["+number+"]("+name+")") {
			t.Errorf("%s is not in docs/decisions/README.md", name)
		}
	}
}

var named = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/-]+\.md\b`)

// TestCodeNamesPagesThatAreThere follows what code, scripts and configuration say
// where to read on.
func TestCodeNamesPagesThatAreThere(t *testing.T) {
	root := "../../.."
	found := 0
	for _, folder := range []string{"cmd", "pkg", "deploy", "Makefile", "docker-compose.yml"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if name := entry.Name(); entry.IsDir() && (name == "testdata" || name == "vendor" || name == "node_modules") {
				return filepath.SkipDir
			}
			if entry.IsDir() || filepath.Ext(path) == ".md" {
				return nil
			}
			for _, page := range named.FindAllString(read(t, path), -1) {
				found++
				if _, err := os.Stat(filepath.Join(root, page)); err != nil {
					t.Errorf("%s names %s, which does not exist", path, page)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found < 30 {
		t.Errorf("found %d names of pages, want at least 30: are they still looked for in the right place?", found)
	}
}
