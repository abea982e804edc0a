package warehouse_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/warehouse"
)

func TestURLs(t *testing.T) {
	tests := []struct {
		name, url, cluster string
		database           string // empty: refused
	}{
		{"the default", "", "", "flow"},
		{"a database of one's own", "clickhouse://default@127.0.0.1:9000/events", "", "events"},
		{"no database", "clickhouse://default@127.0.0.1:9000", "", "flow"},
		{"several hosts, TLS, a setting", "clickhouse://u:p%40ss@a:9440,b:9440/flow?secure=true&max_insert_threads=2", "", "flow"},
		{"no port", "clickhouse://u:s3cret@warehouse/flow", "", "flow"},
		{"a cluster", "clickhouse://u:s3cret@a/flow", "main", "flow"},
		{"HTTP", "http://u:s3cret@a:8123/flow", "", ""},
		{"an injection through the database", "clickhouse://u:s3cret@a/flow;DROP", "", ""},
		{"an injection through the cluster", "clickhouse://u:s3cret@a/flow", "x' AS SELECT", ""},
		{"a slash in the password", "clickhouse://u:s3/cret@a:9000/flow", "", ""},
		{"a number that is none", "clickhouse://u:s3cret@a/flow?max_open_conns=s3cret", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			db, err := warehouse.Open(warehouse.Config{URL: tt.url, Cluster: tt.cluster}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				if tt.database != "" {
					t.Fatal(err)
				}
				if strings.Contains(err.Error(), "cret@") || strings.Contains(err.Error(), ":s3") {
					t.Errorf("the error shows the password: %v", err)
				}
				return
			}
			defer db.Close()
			if got := db.Database(); got != tt.database {
				t.Errorf("database %q, want %q", got, tt.database)
			}
		})
	}
}
