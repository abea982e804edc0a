package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

// TestAnInsertKilledBeforeItsPartIsInPlace recreates a kill between the two steps of an INSERT, in
// a table or a view's target. The token is logged, the part is missing. The repeated INSERT must
// store its rows wherever they are missing, and nowhere twice.
func TestAnInsertKilledBeforeItsPartIsInPlace(t *testing.T) {
	for _, table := range []string{"counted", "counted_by_group", "counted_by_rest"} {
		t.Run("in "+table, func(t *testing.T) {
			e := clickhousetest.Start(t)
			clickhousetest.Exec(t, e, "CREATE DATABASE kills")
			c := open(t, e.URL("kills")+"?compress=lz4&dial_timeout=1s")
			countedTable(t, c, "counted")
			for number, token := range []string{"first", "second"} {
				fatal.If(t, sendBlock(t.Context(), c, token, number, 100))
			}
			var path string
			row(t, c, "SELECT data_paths[1] FROM system.tables WHERE database = 'kills' AND name = '"+table+"'", &path)
			e.Kill()
			last, err := filepath.Glob(filepath.Join(path, "*_[0-9]_[0-9]_[01]")) // one insert each
			fatal.When(t, err != nil || len(last) < 2, "parts of %s: %v, %v", table, last, err)
			part := last[len(last)-1]
			fatal.If(t, os.RemoveAll(part))
			e.Restart()
			if want := filepath.Base(part); !strings.Contains(e.Log(), want) {
				t.Errorf("the log does not name part %s:\n%s", want, e.Log())
			}
			for number, token := range []string{"first", "second"} {
				fatal.If(t, sendBlock(t.Context(), c, token, number, 100))
			}
			expect.Equal(t, "table and views", counts{200, 200, 200}, counted(t, c, "counted"))
			e.Kill()
			e.Restart()
			if log := e.Log(); strings.Contains(log, "dropped the token of an insert") {
				t.Errorf("an insert that was finished is forgotten:\n%s", log)
			}
		})
	}
}
