package clickhouse_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	engine "sluice/pkg/embedded/clickhouse"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
)

// TestAnInsertKilledBeforeItsPartIsInPlace leaves what a kill leaves between
// the two steps of an INSERT, in a table or in the target of a view: the token
// is remembered, the part is not there. The repeated INSERT must store its rows
// wherever they are missing, and nowhere twice.
func TestAnInsertKilledBeforeItsPartIsInPlace(t *testing.T) {
	for _, table := range []string{"counted", "counted_by_group", "counted_by_rest"} {
		t.Run("in "+table, func(t *testing.T) {
			e := clickhousetest.Start(t)
			clickhousetest.Exec(t, e, "CREATE DATABASE kills")
			c := open(t, e.URL("kills")+"?compress=lz4&dial_timeout=1s")
			countedTable(t, c, "counted")
			for number, token := range []string{"first", "second"} {
				if err := sendBlock(t.Context(), c, token, number, 100); err != nil {
					t.Fatal(err)
				}
			}
			var path string
			row(t, c, "SELECT data_paths[1] FROM system.tables WHERE database = 'kills' AND name = '"+table+"'", &path)
			e.Kill()
			last, err := filepath.Glob(filepath.Join(path, "*_[0-9]_[0-9]_[01]")) // one insert each
			if err != nil || len(last) < 2 {
				t.Fatalf("parts of %s: %v, %v", table, last, err)
			}
			part := last[len(last)-1]
			if err := os.RemoveAll(part); err != nil {
				t.Fatal(err)
			}
			e.Restart()
			if want := filepath.Base(part); !strings.Contains(e.Log(), want) {
				t.Errorf("the log does not name part %s:\n%s", want, e.Log())
			}
			for number, token := range []string{"first", "second"} {
				if err := sendBlock(t.Context(), c, token, number, 100); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(counts{200, 200, 200}, counted(t, c, "counted")); diff != "" {
				t.Errorf("table and views (-want +got):\n%s", diff)
			}
			e.Kill()
			e.Restart()
			if log := e.Log(); strings.Contains(log, "not finished") {
				t.Errorf("an insert that was finished is forgotten:\n%s", log)
			}
		})
	}
}

func TestForgetUnfinished(t *testing.T) {
	for _, tt := range []struct {
		name  string
		logs  []string // in order
		parts []string
		want  string // the newest log afterwards
	}{
		{"all parts are there", []string{"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n"}, []string{"all_1_1_0", "all_2_2_0"},
			"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n"},
		{"a part was merged", []string{"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n"}, []string{"all_1_2_1"},
			"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n"},
		{"a part was merged and mutated", []string{"1\tall_1_1_0\ta\n"}, []string{"all_0_2_1_7"}, "1\tall_1_1_0\ta\n"},
		{"a part is missing", []string{"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n"}, []string{"all_1_1_0"},
			"1\tall_1_1_0\ta\n1\tall_2_2_0\tb\n2\tall_2_2_0\tb\n"},
		{"only its temporary folder is there", []string{"1\tall_1_1_0\ta\n"}, []string{"tmp_insert_all_1_1_0"},
			"1\tall_1_1_0\ta\n2\tall_1_1_0\ta\n"},
		{"a part of that number is there, of another partition", []string{"1\t202611_1_1_0\ta\n"}, []string{"202612_1_1_0"},
			"1\t202611_1_1_0\ta\n2\t202611_1_1_0\ta\n"},
		{"it was dropped already", []string{"1\tall_1_1_0\ta\n2\tall_1_1_0\ta\n"}, nil, "1\tall_1_1_0\ta\n2\tall_1_1_0\ta\n"},
		{"it was dropped and added again", []string{"1\tall_1_1_0\ta\n2\tall_1_1_0\ta\n1\tall_2_2_0\ta\n"}, []string{"all_2_2_0"},
			"1\tall_1_1_0\ta\n2\tall_1_1_0\ta\n1\tall_2_2_0\ta\n"},
		{"a repeat stored it under another part", []string{"1\tall_1_1_0\ta\n1\tall_2_2_0\ta\n"}, []string{"all_2_2_0"},
			"1\tall_1_1_0\ta\n1\tall_2_2_0\ta\n"},
		{"the log ends in the middle of a line", []string{"1\tall_1_1_0\ta\n1\tall_2_2_0"}, []string{"all_1_1_0"}, "1\tall_1_1_0\ta\n"},
		{"the log is empty", []string{""}, nil, ""},
		{"there are several logs", []string{"1\tall_1_1_0\ta\n", "1\tall_2_2_0\tb\n"}, []string{"all_2_2_0"},
			"1\tall_2_2_0\tb\n2\tall_1_1_0\ta\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := t.TempDir()
			table := filepath.Join(data, "store", "abc", "abcdef")
			var newest string
			for i, text := range tt.logs {
				newest = filepath.Join(table, "deduplication_logs", fmt.Sprintf("deduplication_log_%d.txt", i+9)) // 9 and 10: by number, not by letter
				if err := os.MkdirAll(filepath.Dir(newest), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(newest, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, part := range tt.parts {
				if err := os.Mkdir(filepath.Join(table, part), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the second time changes nothing
				if err := engine.ForgetUnfinished(data, slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(newest)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, string(got)); diff != "" {
					t.Errorf("the log (-want +got):\n%s", diff)
				}
			}
		})
	}
}
