package change_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/pkg/change"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestShapesAreThoseOfTheSpecification: every member and type of the tables is checked, and no other.
func TestShapesAreThoseOfTheSpecification(t *testing.T) {
	tables := specification(t)
	for heading, shape := range map[string]*change.Shape{
		"User":          change.UserShape,
		"Grant":         change.GrantShape,
		"Project":       change.ProjectShape,
		"Dataset field": change.FieldShape,
	} {
		got := map[string]string{}
		for name, typ := range shape.Members {
			got[name] = typ.String()
		}
		expect.Equal(t, fmt.Sprintf("%s (-specification +shape)", heading), tables[heading], got)
	}
}

// TestGrantIsAsTheNotesSay: the counts, editions, and features of a Grant are in the notes of its table.
func TestGrantIsAsTheNotesSay(t *testing.T) {
	notes := specificationNotes(t)
	code := regexp.MustCompile("`([^`]+)`")
	names := func(note string) (found []string) {
		for _, m := range code.FindAllStringSubmatch(note, -1) {
			found = append(found, m[1])
		}
		return found
	}
	grant := change.GrantShape.Members
	if diff := cmp.Diff(names(notes["edition"]), grant["edition"].Values); diff != "" {
		t.Errorf("edition (-specification +shape):\n%s", diff)
	}
	if diff := cmp.Diff(names(notes["feature"]), grant["feature"].Elem.Values); diff != "" {
		t.Errorf("feature (-specification +shape):\n%s", diff)
	}
	for _, object := range []string{"dataGathering", "flow", "visual"} {
		want, got := map[string]string{}, map[string]string{}
		for _, name := range names(notes[object]) {
			want[name] = "integer"
		}
		for name, typ := range grant[object].Shape.Members {
			got[name] = typ.String()
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("%s (-specification +shape):\n%s", object, diff)
		}
	}
}

// specification reads member and type of each table by the first words of its heading.
func specification(t *testing.T) map[string]map[string]string {
	t.Helper()
	tables := map[string]map[string]string{}
	eachRow(t, func(heading string, cells []string) {
		if tables[heading] == nil {
			tables[heading] = map[string]string{}
		}
		tables[heading][cells[0]] = cells[1]
	})
	return tables
}

func specificationNotes(t *testing.T) map[string]string {
	t.Helper()
	notes := map[string]string{}
	eachRow(t, func(heading string, cells []string) {
		if heading == "Grant" {
			notes[cells[0]] = cells[2]
		}
	})
	return notes
}

func eachRow(t *testing.T, row func(heading string, cells []string)) {
	t.Helper()
	raw, err := os.ReadFile("testdata/specification.md")
	fatal.If(t, err)
	heading := ""
	for line := range strings.Lines(string(raw)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			heading, _, _ = strings.Cut(strings.TrimSpace(title), " (")
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| Field ") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		row(heading, cells)
	}
}
