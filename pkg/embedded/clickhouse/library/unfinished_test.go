package library_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sluice/pkg/embedded/clickhouse/library"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

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
				newest = filepath.Join(table, "deduplication_logs", fmt.Sprintf("deduplication_log_%d.txt", i+9)) // 9 and 10: sorted as numbers, not as text
				fatal.If(t, os.MkdirAll(filepath.Dir(newest), 0o700))
				fatal.If(t, os.WriteFile(newest, []byte(text), 0o600))
			}
			for _, part := range tt.parts {
				fatal.If(t, os.Mkdir(filepath.Join(table, part), 0o700))
			}
			for range 2 { // the second time changes nothing
				fatal.If(t, library.ForgetUnfinished(data, slog.New(slog.DiscardHandler)))
				got, err := os.ReadFile(newest)
				fatal.If(t, err)
				expect.Equal(t, "the log", tt.want, string(got))
			}
		})
	}
}
