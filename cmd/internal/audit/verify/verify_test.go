package verify_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/cmd/internal/audit/verify"
	"sluice/pkg/dial"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/embedded/nats/natstest"
	"sluice/pkg/fatal"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

// TestAnInstallationWithoutRecords is verified quickly, or without tables fails.
func TestAnInstallationWithoutRecords(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, c := range map[string]struct {
		migrated bool
		since    time.Time
	}{
		"with tables":                     {true, time.Time{}},
		"with tables, of the last minute": {true, time.Now().Add(-time.Minute)},
		"without tables":                  {false, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			nc, err := dial.Connect(dial.Config{URL: natstest.Start(t).URL, Name: "test"}, log, prometheus.NewRegistry())
			fatal.If(t, err)
			t.Cleanup(nc.Close)
			lanes, err := stream.Open(ctx, nc, stream.Config{MaxBytes: 64 << 20}, log, prometheus.NewRegistry())
			fatal.If(t, err)
			_, url := clickhousetest.FreshDatabase(t)
			db, err := warehouse.Open(warehouse.Config{URL: url}, log, prometheus.NewRegistry())
			fatal.If(t, err)
			t.Cleanup(func() { db.Close() })
			if c.migrated {
				fatal.If(t, db.Migrate(ctx))
			}
			begun := time.Now()
			report, err := verify.Run(ctx, lanes, db, verify.Config{Since: c.since})
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			switch {
			case !c.migrated && err == nil:
				t.Error("no error, although there are no tables")
			case c.migrated && (err != nil || !report.OK):
				t.Errorf("got %+v, %v, want no findings", report, err)
			}
		})
	}
}
