package run_test

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

// TestProseIsPlain checks pages, the console's texts, and alerts.
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
