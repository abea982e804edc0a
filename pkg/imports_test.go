package pkg_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// domain packages may be imported by every package, and import only these.
var domain = map[string][]string{"flow": nil, "option": nil, "accept": nil, "record": {"flow"}, "change": {"flow"}}

// rooms lists the packages that a package may import besides the domain: its parts, and for those with data in
// JetStream the broker.
var rooms = map[string]map[string]bool{
	"embedded/clickhouse/server": {"embedded/clickhouse/library": true, "embedded/clickhouse/supervise": true},
	"ingest":                     {"ingest/dedup": true},
	"api":                        {"api/budget": true},
	"load":                       {"load/simulator": true},
	"warehouse":                  {"warehouse/native": true, "warehouse/schema": true},
	"stream":                     {"broker": true},
	"lease":                      {"broker": true},
	"state":                      {"broker": true},
}

func inDomain(role string) bool {
	_, is := domain[role]
	return is
}

// TestSiblingsDoNotImportEachOther: code that two packages share belongs to the domain, or is wired in cmd. Tests may
// cross.
func TestSiblingsDoNotImportEachOther(t *testing.T) {
	const module = "sluice/pkg/"
	checked := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if strings.HasSuffix(filepath.Dir(path), "test") {
			return nil // test helpers, such as natstest
		}
		checked++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		role := filepath.ToSlash(filepath.Dir(path))
		may, isDomain := domain[role]
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			sibling, ours := strings.CutPrefix(imported, module)
			switch {
			case !ours && strings.HasPrefix(imported, "sluice/"):
				t.Errorf("%s imports %s: packages under pkg do not import the programs", path, imported)
			case !ours || sibling == role || rooms[role][sibling]:
			case isDomain && !slices.Contains(may, sibling):
				t.Errorf("%s imports %s: of this module %s may import %v", path, imported, role, may)
			case !isDomain && !inDomain(sibling):
				t.Errorf("%s imports %s: siblings meet only in cmd", path, imported)
			}
		}
		return nil
	})
	fatal.If(t, err)
	fatal.When(t, checked < 10, "checked %d files: the walk missed the packages", checked)
}

// TestTheOracleImportsNoProductCode: the oracle, with which chaos compares the tables, shares no code with the product.
// It imports the standard library only.
func TestTheOracleImportsNoProductCode(t *testing.T) {
	files, err := filepath.Glob("../cmd/internal/oracle/*.go")
	fatal.If(t, err)
	checked := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		checked++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		fatal.If(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if first, _, _ := strings.Cut(imported, "/"); err != nil || first == "sluice" || strings.Contains(first, ".") {
				t.Errorf("%s imports %s: the oracle imports the standard library only", path, imported)
			}
		}
	}
	fatal.When(t, checked < 5, "checked %d files: the oracle is somewhere else", checked)
}

// TestTheProgramsNeedNoTools: dependencies of tools are in their own modules (cmd/internal/browser and foreign), not in
// that of the programs.
func TestTheProgramsNeedNoTools(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	fatal.If(t, err)
	for _, tools := range []string{"chromedp", "go-elasticsearch", "k8s.io"} {
		expect.Not(t, strings.Contains(string(mod), tools), "go.mod names %s", tools)
	}
}
