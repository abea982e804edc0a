package run_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// TestPagesLeadSomewhere checks every link between pages, and from pages to code.
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
				continue // an external link
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
	fatal.If(t, err)
	expect.Not(t, links < 100, "found %d links, want more than 100: are they still looked for in the right place?", links)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	fatal.If(t, err)
	return string(text)
}

// places are the anchors of a page: GitHub's anchors of its headings, and explicit
// ones.
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

// TestEveryDecisionIsInTheIndex: with the unique number of its file and heading. Numbers of
// deleted decisions are not reused.
func TestEveryDecisionIsInTheIndex(t *testing.T) {
	folder := filepath.Join("../../..", "docs", "decisions")
	index := read(t, filepath.Join(folder, "README.md"))
	pages, err := filepath.Glob(filepath.Join(folder, "[0-9]*.md"))
	fatal.When(t, err != nil || len(pages) == 0, "%d decisions, %v", len(pages), err)
	used := map[string]string{}
	for _, page := range pages {
		name := filepath.Base(page)
		number, _, _ := strings.Cut(name, "-")
		if used[number] != "" {
			t.Errorf("%s has the number of %s: a new decision takes the next free one", name, used[number])
		}
		used[number] = name
		expect.Not(t, !strings.HasPrefix(read(t, page), "# "+number+": "), "the heading of %s does not begin with # %s:", name, number)
		expect.Not(t, !strings.Contains(index, "["+number+"]("+name+")"), "%s is not in docs/decisions/README.md", name)
	}
}

// TestEveryPageIsInTheIndex: docs/README.md links to every page of docs; runbooks and
// decisions have their own indexes.
func TestEveryPageIsInTheIndex(t *testing.T) {
	docs := filepath.Join("../../..", "docs")
	index := read(t, filepath.Join(docs, "README.md"))
	for _, folder := range []string{"", "performance"} {
		pages, err := filepath.Glob(filepath.Join(docs, folder, "*.md"))
		fatal.When(t, err != nil || len(pages) == 0, "%d pages in %s, %v", len(pages), folder, err)
		for _, page := range pages {
			name := filepath.ToSlash(filepath.Join(folder, filepath.Base(page)))
			expect.Not(t, name != "README.md" && !strings.Contains(index, "("+name+")"), "docs/%s is not in docs/README.md", name)
		}
	}
}

var named = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/-]+\.md\b`)

// TestCodeNamesPagesThatAreThere checks that pages named in code, scripts and configuration
// exist.
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
		fatal.If(t, err)
	}
	expect.Not(t, found < 30, "found %d names of pages, want at least 30: are they still looked for in the right place?", found)
}

var step = regexp.MustCompile("\\[`([A-Za-z.]+)`\\]\\(\\.\\./([a-z_/]+\\.go)\\)")

// TestTheWalkNamesWhatIsThere: each function, method and type that docs/contributing.md
// names is declared in the linked file. At most twelve files are between a request and its
// answer, and eight between a message and its INSERT, in the rows of numbered returns.
func TestTheWalkNamesWhatIsThere(t *testing.T) {
	root := "../../.."
	page := read(t, filepath.Join(root, "docs", "contributing.md"))
	before, after, found := strings.Cut(page, "\n## From the lane to the table\n")
	fatal.When(t, !found, "the walk has no section From the lane to the table")
	files := map[string]bool{}
	for _, part := range []string{before, after} {
		steps := step.FindAllStringSubmatch(part, -1)
		expect.Not(t, len(steps) < 8, "found %d steps, want at least 8: are they still looked for in the right form?", len(steps))
		for _, s := range steps {
			if name, file := s[1], s[2]; !declared(t, filepath.Join(root, file))[name] {
				t.Errorf("docs/contributing.md says that %s declares %s, which it does not", file, name)
			}
			if part == before {
				files[s[2]] = true
			}
		}
	}
	inserted := map[string]bool{}
	for line := range strings.Lines(after) {
		for _, s := range step.FindAllStringSubmatch(line, -1) {
			if strings.ContainsAny(line, "¹²⁴⁶⁸") {
				inserted[s[2]] = true
			}
		}
	}
	if len(inserted) != 8 || strings.Contains(after, "¹¹") {
		t.Errorf("a message passes %d files until its INSERT, want 8, with at most ten returns: %v", len(inserted), slices.Sorted(maps.Keys(inserted)))
	}
	if len(files) > 12 {
		t.Errorf("a body passes %d files until its answer, want at most 12: %v", len(files), slices.Sorted(maps.Keys(files)))
	}
}

// declared are the names of the functions, methods (Type.Method) and types of a file.
func declared(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	names := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				receiver := d.Recv.List[0].Type
				if star, is := receiver.(*ast.StarExpr); is {
					receiver = star.X
				}
				if of, is := receiver.(*ast.Ident); is {
					name = of.Name + "." + name
				}
			}
			names[name] = true
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if of, is := spec.(*ast.TypeSpec); is {
					names[of.Name.Name] = true
				}
			}
		}
	}
	return names
}
