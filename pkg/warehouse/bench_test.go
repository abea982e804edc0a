package warehouse_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/load"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

func generated(b *testing.B, n int) *record.Columns {
	g, err := load.NewGenerator(load.GeneratorConfig{Seed: 3, Start: time.Now()})
	if err != nil {
		b.Fatal(err)
	}
	c := new(record.Columns)
	for seq := range uint64(n / 500) {
		body, _, _ := g.AppendBatch(nil, 500)
		if err := c.Append(&record.Message{Seq: seq + 1, Received: time.Now(), Body: body}); err != nil {
			b.Fatal(err)
		}
	}
	return c
}

// BenchmarkInsert stores blocks of 50 000 generated records in the real
// engine, views included, with each way to compress them on the wire.
func BenchmarkInsert(b *testing.B) {
	columns := generated(b, 50_000)
	for _, compress := range []string{"none", "lz4", "zstd"} {
		b.Run(compress, func(b *testing.B) {
			_, url := clickhousetest.FreshDatabase(b)
			db, err := warehouse.Open(warehouse.Config{URL: url + "?compress=" + compress}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			if err := db.Migrate(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				block := record.Block{Columns: columns, Claim: record.Claim{Token: fmt.Sprint(n)}}
				if err := db.Insert(b.Context(), block); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(columns.Rows()*b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkEncode is the part of an insert that is done here.
func BenchmarkEncode(b *testing.B) {
	columns := generated(b, 50_000)
	var buf proto.Buffer
	b.ReportAllocs()
	for b.Loop() {
		buf.Reset()
		for _, c := range warehouse.BlockColumns(columns, 0, columns.Rows()) {
			c.Data.EncodeColumn(&buf)
		}
	}
	b.SetBytes(int64(len(buf.Buf)))
	b.ReportMetric(float64(columns.Rows()*b.N)/b.Elapsed().Seconds(), "rows/s")
}
