package run_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"sluice/cmd/internal/run"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
	"sluice/pkg/ingest"
	"sluice/pkg/stream"
	"sluice/pkg/warehouse"
)

// TestAnOptionThatIsNotGivenChangesNoStream: an operator's command must not reset the
// stream settings of the services.
func TestAnOptionThatIsNotGivenChangesNoStream(t *testing.T) {
	var cli struct{ stream.Config }
	parser, err := kong.New(&cli)
	fatal.If(t, err)
	if _, err := parser.Parse(nil); err != nil {
		t.Fatal(err)
	}
	want := stream.Config{RepeatWindow: 10 * time.Minute} // not a stream setting
	expect.Equal(t, "without any option", want, cli.Config)
}

// TestAnAddressOfClickHouseIsEnough: sluice up prints addresses, not URLs.
func TestAnAddressOfClickHouseIsEnough(t *testing.T) {
	for given, want := range map[string]string{
		"127.0.0.1:9000":                      "clickhouse://127.0.0.1:9000/flow",
		"h:9000/other":                        "clickhouse://h:9000/other",
		"clickhouse://u@h:9000/flow?secure=1": "clickhouse://u@h:9000/flow?secure=1",
	} {
		got, err := run.ClickHouse{Warehouse: warehouse.Config{URL: given}}.Config()
		if err != nil || got.URL != want {
			t.Errorf("%s: got %s %v, want %s", given, got.URL, err, want)
		}
	}
}

func TestABlockBeyondOneTokenIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		blocks ingest.Config
		want   string
	}{
		"too many rows":  {ingest.Config{MaxRows: 1_000_001}, "--block-rows"},
		"no inserts":     {ingest.Config{MaxRows: 1}, "--block-inserts"},
		"too many bytes": {ingest.Config{MaxRows: 1, MaxBytes: 128<<20 + 1}, "--block-bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			i := run.Ingester{Ingest: c.blocks, Memory: 1 << 30, Ops: "127.0.0.1:0"}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := i.Run(ctx, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that names %s", err, c.want)
			}
		})
	}
}

func TestTooLittleMemoryIsRefused(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "off") // BoundMemory leaves this process unchanged
	if err := run.BoundMemory(64<<20 - 1); err == nil || !strings.Contains(err.Error(), "--memory") {
		t.Errorf("got %v, want an error that names --memory", err)
	}
	expect.NoError(t, run.BoundMemory(64<<20))
}
