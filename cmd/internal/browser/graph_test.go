package browser

import (
	"fmt"
	"strings"
	"testing"
)

// TestATableReplacesAMissingDiagram: without PROCESS records the page of a process shows which
// element follows which.
func TestATableReplacesAMissingDiagram(t *testing.T) {
	load(t, "--records", "1000000", "--rate", "2000", "--batch", "100", "--connections", "2")
	tb := signedIn(t)
	eventually(t, patience, func() error { // aggregates are queryable a moment after their records
		tb.open("/process?source=local&id=steady-order&window=1h")
		if page := tb.text(); !strings.Contains(page, "No diagram: the engine sent no PROCESS record") {
			return fmt.Errorf("the page shows no table:\n%s", page)
		}
		return nil
	})
	tb.is("elements are followed by others", `document.querySelectorAll('#diagram ~ .wide tbody tr').length > 1`)
	tb.heated()
	tb.accessible()
}
