package run_test

import (
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

// TestEveryDecisionIsInTheIndex, and every number is one decision's.
func TestEveryDecisionIsInTheIndex(t *testing.T) {
	folder := filepath.Join("../../..", "docs", "decisions")
	index := read(t, filepath.Join(folder, "README.md"))
	pages, err := filepath.Glob(filepath.Join(folder, "[0-9]*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d decisions, %v", len(pages), err)
	}
	numbers := map[string]string{}
	for _, page := range pages {
		name := filepath.Base(page)
		if !strings.Contains(index, "]("+name+")") {
			t.Errorf("%s is not in docs/decisions/README.md", name)
		}
		if other, taken := numbers[name[:4]]; taken {
			t.Errorf("%s and %s have one number", name, other)
		}
		numbers[name[:4]] = name
	}
}
