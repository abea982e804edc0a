package oracle_test

import (
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"sluice/pkg/fatal"
)

// TestItSharesNothing: the oracle imports only the standard library.
func TestItSharesNothing(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "oracle.go", nil, parser.ImportsOnly)
	fatal.If(t, err)
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if first, _, _ := strings.Cut(path, "/"); err != nil || strings.Contains(first, ".") || first == "sluice" {
			t.Errorf("it imports %s", path)
		}
	}
}
