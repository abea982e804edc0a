package api_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/api"
	"sluice/pkg/fatal"
)

// TestTheGuideListsExactlyTheErrorsThereAre compares the table of docs/http-api.md with errors.go.
func TestTheGuideListsExactlyTheErrorsThereAre(t *testing.T) {
	guide, err := os.ReadFile("../../docs/http-api.md")
	fatal.If(t, err)
	_, table, _ := strings.Cut(string(guide), "## Errors")
	var listed []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if status, ok := strings.CutPrefix(cells[0], "| "); ok && len(cells) == 4 && len(status) == 3 {
			retries := strings.Trim(cells[3], " |\n") != ""
			listed = append(listed, row3(status, strings.Trim(cells[1], "`"), retries))
		}
	}
	var there []string
	for _, f := range api.Failures() {
		there = append(there, row3(f.Status, f.Code, f.Retries))
	}
	if diff := cmp.Diff(there, listed); diff != "" {
		t.Errorf("errors (-there +listed):\n%s", diff)
	}
}

func row3(status, code string, retries bool) string {
	if retries {
		return status + " " + code + " with Retry-After"
	}
	return status + " " + code
}

// TestTheGuideListsExactlyTheRoutesThereAre does the same for the routes.
func TestTheGuideListsExactlyTheRoutesThereAre(t *testing.T) {
	guide, err := os.ReadFile("../../docs/http-api.md")
	fatal.If(t, err)
	for _, r := range newDoor(t, config()).Routes() {
		path := strings.NewReplacer(":tableId", "{tableId}", ":fieldId", "{fieldId}").Replace(r.Path)
		scope := "`" + r.Scope + "`"
		if r.Scope == "" {
			scope = "none"
		}
		found := false
		for line := range strings.Lines(string(guide)) {
			found = found || strings.HasPrefix(line, "| `") && strings.Contains(line, "`"+r.Method+" "+path+"`") && strings.Contains(line, "| "+scope+" |")
		}
		if !found {
			t.Errorf("the guide does not list %s %s with scope %s", r.Method, path, scope)
		}
	}
}
