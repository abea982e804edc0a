package run_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// prose maps former terms of this project to the usual terms of the field.
var prose = map[string]string{
	`can not`:                     "cannot",
	`mend(s|ed|ing)?`:             "fix",
	`(go|goes|going|went) on`:     "continue, resume",
	`set aside`:                   "dead-letter",
	`anew`:                        "again, recreate",
	`whoever|somebody`:            "name the actor",
	`hears?|heard`:                "receive",
	`believe[sd]?`:                "accept",
	`reckon(s|ed|ing)?`:           "compute, count",
	`(to|may|can) be had`:         "available",
	`knocks?`:                     "try",
	`(tells?|told) of`:            "report",
	`costs? questions`:            "costs lookups",
	`what (needs|waits) a person`: "needs attention",
}

// between finds the start of a word in a name. foreign are names of libraries.
var (
	between = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	foreign = map[string]bool{"EqualFold": true, "SimpleFold": true, "leastSquares": true}
)

// names are former terms in identifiers of Go, after their words were separated.
var names = regexp.MustCompile(`(?i)\b(set(ting)? aside|(re)?fold|mend(s|ed)?|go(es)? on|anew|h(eard|ears?)|told|tells?|can not|(least|most) \w+)\b`)

// TestProseIsPlain checks pages, the console's texts, alerts, and the names in Go.
func TestProseIsPlain(t *testing.T) {
	root := "../../.."
	rules := make(map[*regexp.Regexp]string, len(prose))
	for words, better := range prose {
		rules[regexp.MustCompile(`(?i)\b(?:`+words+`)\b`)] = better
	}
	read := 0
	fatal.If(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "data" || name == "vendor" || name == "testdata") {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".go":
			tree, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			fatal.If(t, err)
			ast.Inspect(tree, func(n ast.Node) bool {
				if id, is := n.(*ast.Ident); is && names.MatchString(between.ReplaceAllString(id.Name, "$1 $2")) && !foreign[id.Name] {
					t.Errorf("%s: %s is a former term", strings.TrimPrefix(path, root+"/"), id.Name)
				}
				return true
			})
			return nil
		case ".md", ".html", ".yml", ".yaml":
		default:
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		read++
		for i, line := range strings.Split(string(text), "\n") {
			for rule, better := range rules {
				if found := rule.FindString(line); found != "" {
					t.Errorf("%s:%d: %q: write %s", strings.TrimPrefix(path, root+"/"), i+1, found, better)
				}
			}
		}
		return nil
	}))
	expect.Not(t, read < 100, "%d files were read", read)
}

// TestPagesAreShortAndNameTheirReader: the first line of a page names its reader. For pages of
// one alert or decision, the README of their folder does.
func TestPagesAreShortAndNameTheirReader(t *testing.T) {
	root, words := "../../..", 0
	fatal.If(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if name := entry.Name(); err == nil && entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "data") {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		first := ""
		for line := range strings.Lines(fenced.ReplaceAllString(read(t, path), "")) {
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "<!--") || strings.HasPrefix(line, "#") {
				continue
			}
			words += len(strings.Fields(line))
			first = cmp.Or(first, line)
		}
		dir := filepath.Base(filepath.Dir(path))
		if page := strings.TrimPrefix(path, root+"/"); strings.HasPrefix(page, "docs/") && (entry.Name() == "README.md" || dir != "runbooks" && dir != "decisions") && !strings.HasPrefix(first, "For ") {
			t.Errorf("%s begins with %q, and not with its reader: For …", page, first)
		}
		return nil
	}))
	decisions, err := filepath.Glob(root + "/docs/decisions/0*.md")
	fatal.If(t, err)
	for _, c := range []struct {
		what       string
		got, limit int
	}{
		{"words of prose", words, 35_000}, {"decisions", len(decisions), 22},
		{"lines of the README", strings.Count(read(t, root+"/README.md"), "\n"), 110},
		{"terms of the glossary", strings.Count(read(t, root+"/docs/glossary.md"), "\n| ") - 1, 20},
	} {
		expect.Not(t, c.got == 0 || c.got > c.limit, "there are %d %s, want at most %d", c.got, c.what, c.limit)
	}
}
