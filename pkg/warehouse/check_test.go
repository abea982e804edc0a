package warehouse_test

import (
	"strings"
	"testing"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestCheckNamesWhatCouldCountTwice(t *testing.T) {
	t.Parallel()
	db := open(t)
	const window = "MODIFY SETTING non_replicated_deduplication_window = 100000"
	tests := []struct {
		name string
		harm []string
		says []string // empty: no problem
		fix  []string // restores the schema for the next case
	}{
		{name: "the schema as it is"},
		{"a window was turned off", []string{"ALTER TABLE {db}.records MODIFY SETTING non_replicated_deduplication_window = 0"},
			[]string{"table {db}.records would count a repeated insert twice"}, []string{"ALTER TABLE {db}.records " + window}},
		{"the windows of two targets were made small", []string{
			"ALTER TABLE {db}.counts_1m MODIFY SETTING non_replicated_deduplication_window = 100",
			"ALTER TABLE {db}.jobs RESET SETTING non_replicated_deduplication_window",
		}, []string{"table {db}.counts_1m", "table {db}.jobs"}, []string{"ALTER TABLE {db}.counts_1m " + window, "ALTER TABLE {db}.jobs " + window}},
		{"a larger window", []string{"ALTER TABLE {db}.jobs MODIFY SETTING non_replicated_deduplication_window = 200000"}, nil, []string{"ALTER TABLE {db}.jobs " + window}},
		{"a table is not synced", []string{"ALTER TABLE {db}.changes MODIFY SETTING fsync_after_insert = 0"},
			[]string{"table {db}.changes may lose inserts in a power failure: ALTER TABLE {db}.changes MODIFY SETTING fsync_after_insert = 1"},
			[]string{"ALTER TABLE {db}.changes MODIFY SETTING fsync_after_insert = 1"}},
		{"a view feeds a table without a window", []string{
			"CREATE TABLE {db}.theirs (n UInt64) ENGINE = SummingMergeTree ORDER BY tuple()",
			"CREATE MATERIALIZED VIEW {db}.theirs_mv TO {db}.theirs AS SELECT count() AS n FROM {db}.records",
		}, []string{"table {db}.theirs would count"}, []string{"DROP VIEW {db}.theirs_mv SYNC"}},
		{"a view that keeps its own table", []string{
			"CREATE MATERIALIZED VIEW {db}.own_mv ENGINE = SummingMergeTree ORDER BY tuple() AS SELECT count() AS n FROM {db}.records",
		}, []string{"table {db}..inner_id."}, []string{"DROP VIEW {db}.own_mv SYNC"}},
		{"a view behind a view", []string{
			"CREATE TABLE {db}.pipe (n UInt64) ENGINE = Null",
			"CREATE MATERIALIZED VIEW {db}.pipe_mv TO {db}.pipe AS SELECT count() AS n FROM {db}.records",
			"CREATE TABLE {db}.end (n UInt64) ENGINE = MergeTree ORDER BY tuple()",
			"CREATE MATERIALIZED VIEW {db}.end_mv TO {db}.end AS SELECT n FROM {db}.pipe",
		}, []string{"table {db}.end would count"}, []string{"DROP VIEW {db}.end_mv SYNC", "DROP VIEW {db}.pipe_mv SYNC"}},
		{"a view into memory", []string{
			"CREATE TABLE {db}.mem (n UInt64) ENGINE = Memory",
			"CREATE MATERIALIZED VIEW {db}.mem_mv TO {db}.mem AS SELECT count() AS n FROM {db}.records",
		}, []string{"table {db}.mem has engine Memory"}, []string{"DROP VIEW {db}.mem_mv SYNC"}},
		{"a view with the window and the syncs", []string{
			"CREATE TABLE {db}.good (n UInt64) ENGINE = MergeTree ORDER BY tuple() SETTINGS non_replicated_deduplication_window = 100000, fsync_after_insert = 1, fsync_part_directory = 1",
			"CREATE MATERIALIZED VIEW {db}.good_mv TO {db}.good AS SELECT count() AS n FROM {db}.records",
		}, nil, []string{"DROP VIEW {db}.good_mv SYNC"}},
		{name: "a target is gone", harm: []string{"DROP TABLE {db}.incidents SYNC"}, says: []string{"table {db}.incidents does not exist"}},
		{name: "the table is gone", harm: []string{"DROP TABLE {db}.records SYNC"}, says: []string{"table {db}.records does not exist"}}, // which hides all later problems
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range tt.harm {
				query(t, db, s)
			}
			err := db.Check(t.Context())
			fatal.When(t, (err != nil) != (len(tt.says) > 0), "Check: %v", err)
			for _, want := range tt.says {
				if want = strings.ReplaceAll(want, "{db}", db.Database()); !strings.Contains(err.Error(), want) {
					t.Errorf("Check: got\n%v\nwithout %q", err, want)
				}
			}
			expect.Not(t, err != nil && strings.Count(err.Error(), "\n")+1 != len(tt.says), "Check reports too much:\n%v", err)
			for _, s := range tt.fix {
				query(t, db, s)
			}
		})
	}
}
