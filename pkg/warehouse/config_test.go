package warehouse_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/warehouse"
)

func TestURLs(t *testing.T) {
	tests := []struct {
		name, url, cluster string
		database           string // empty: refused
	}{
		{"the default", "", "", "flow"},
		{"another database", "clickhouse://default@127.0.0.1:9000/events", "", "events"},
		{"no database", "clickhouse://default@127.0.0.1:9000", "", "flow"},
		{"several hosts, TLS, a setting", "clickhouse://u:p%40ss@a:9440,b:9440/flow?secure=true&max_insert_threads=2", "", "flow"},
		{"no port", "clickhouse://u:s3cret@warehouse/flow", "", "flow"},
		{"a cluster", "clickhouse://u:s3cret@a/flow", "main", "flow"},
		{"HTTP", "http://u:s3cret@a:8123/flow", "", ""},
		{"an injection through the database", "clickhouse://u:s3cret@a/flow;DROP", "", ""},
		{"an injection through the cluster", "clickhouse://u:s3cret@a/flow", "x' AS SELECT", ""},
		{"a slash in the password", "clickhouse://u:s3/cret@a:9000/flow", "", ""},
		{"an invalid number", "clickhouse://u:s3cret@a/flow?max_open_conns=s3cret", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db, err := warehouse.Open(warehouse.Config{URL: tt.url, Cluster: tt.cluster}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				if tt.database != "" {
					t.Fatal(err)
				}
				expect.Not(t, strings.Contains(err.Error(), "cret@") || strings.Contains(err.Error(), ":s3"), "the error shows the password: %v", err)
				return
			}
			defer db.Close()
			expect.Equal(t, "database", tt.database, db.Database())
		})
	}
}

// TestWhatInsertsSend: Check requires the same list from a server.
func TestWhatInsertsSend(t *testing.T) {
	single := []string{
		"async_insert", "deduplicate_blocks_in_dependent_materialized_views", "insert_deduplicate", "insert_deduplication_token",
		"max_execution_time", "max_partitions_per_insert_block", "optimize_on_insert",
	}
	shards := append([]string{"distributed_foreground_insert"}, single...)
	for name, c := range map[string]struct {
		cfg  warehouse.Config
		want []string
	}{
		"a single server":        {warehouse.Config{}, single},
		"shards of one server":   {warehouse.Config{Cluster: "main", Single: true}, shards},
		"shards with replicas":   {warehouse.Config{Cluster: "main"}, append([]string{"insert_quorum", "insert_quorum_parallel"}, shards...)},
		"no time for the server": {warehouse.Config{InsertTimeout: 1}, slices.DeleteFunc(slices.Clone(single), func(s string) bool { return s == "max_execution_time" })},
	} {
		db, err := warehouse.Open(c.cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		fatal.If(t, err)
		got, err := db.InsertSettings(t.Context(), 2)
		slices.Sort(got)
		slices.Sort(c.want)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
		expect.NoError(t, db.Close())
	}
}
