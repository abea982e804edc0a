package warehouse_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/ClickHouse/ch-go/proto"
	"github.com/prometheus/client_golang/prometheus"

	"sluice/pkg/benchtest"
	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
	"sluice/pkg/warehouse"
)

// fullBlock is 50 000 records in the columns that the ingester inserts.
func fullBlock(b *testing.B) *record.Columns {
	c := new(record.Columns)
	for i, body := range benchtest.Batches(b, 100, 500) {
		fatal.If(b, c.Append(&flow.Message{Seq: uint64(i + 1), Received: benchtest.Start, Body: body}))
	}
	return c
}

// BenchmarkEncode is the client's part of an insert, without the network: columns become a native
// block, in the two ways of ch-go.
func BenchmarkEncode(b *testing.B) {
	columns := fullBlock(b)
	for _, method := range []string{"none", "lz4"} {
		b.Run("compress="+method, func(b *testing.B) {
			var size int64
			encode := plainEncoder(b, columns, &size)
			if method == "lz4" {
				encode = compressingEncoder(b, columns, &size)
			}
			for range 2 { // its buffers are grown
				encode()
			}
			b.SetBytes(size)
			benchtest.Loop(b, columns.Rows(), encode)
			b.ReportMetric(float64(size)/float64(columns.Rows()), "encoded-B/record")
		})
	}
}

// plainEncoder lets the connection read columns in place.
func plainEncoder(b *testing.B, c *record.Columns, size *int64) func() {
	var sent counter
	w := proto.NewWriter(&sent, new(proto.Buffer))
	return func() {
		sent = 0
		block, input := blockOf(c)
		err := block.WriteBlock(w, proto.Version, input)
		if err == nil {
			_, err = w.Flush()
		}
		fatal.If(b, err)
		*size = int64(sent)
	}
}

// counter counts bytes.
type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

// compressingEncoder copies all columns together first.
func compressingEncoder(b *testing.B, c *record.Columns, size *int64) func() {
	w, buf := compress.NewWriter(0, compress.LZ4), new(proto.Buffer)
	return func() {
		buf.Reset()
		block, input := blockOf(c)
		err := block.EncodeBlock(buf, proto.Version, input)
		if err == nil {
			err = w.Compress(buf.Buf)
		}
		fatal.If(b, err)
		*size = int64(len(w.Data))
	}
}

func blockOf(c *record.Columns) (proto.Block, proto.Input) {
	input := warehouse.BlockColumns(c, 0, c.Rows(), storedAt)
	return proto.Block{Rows: c.Rows(), Columns: len(input)}, input
}

// BenchmarkInsert stores blocks of 50 000 records in the real engine, with views and each
// compression of the wire. CPU time is the client's.
func BenchmarkInsert(b *testing.B) {
	columns := fullBlock(b)
	for _, method := range []string{"none", "lz4", "zstd"} {
		b.Run("compress="+method, func(b *testing.B) {
			_, url := clickhousetest.FreshDatabase(b)
			db, err := warehouse.Open(warehouse.Config{URL: url + "?compress=" + method}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			fatal.If(b, err)
			defer db.Close()
			fatal.If(b, db.Migrate(b.Context()))
			n := 0
			benchtest.Loop(b, columns.Rows(), func() {
				n++
				block := record.Block{Columns: columns, To: columns.Rows(), Token: fmt.Sprint(n), StoredAt: storedAt}
				fatal.If(b, db.Insert(b.Context(), block))
			})
		})
	}
}
