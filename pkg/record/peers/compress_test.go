package peers

import (
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minlz"
	"github.com/pierrec/lz4/v4"

	"sluice/pkg/benchtest"
)

// BenchmarkCompress is what the api does with a body of 500 records of
// `sluice load`; BenchmarkDecompress is the ingester's part.
// docs/decisions/0006-entries-and-publish.md tells what follows.
func BenchmarkCompress(b *testing.B) {
	body := benchtest.Batches(b, 1, records)[0]
	var lz lz4.Compressor
	fastest, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		pack func(dst []byte) ([]byte, error)
	}{
		{"S2", func(dst []byte) ([]byte, error) { return s2.Encode(dst[:cap(dst)], body), nil }},
		{"S2 better", func(dst []byte) ([]byte, error) { return s2.EncodeBetter(dst[:cap(dst)], body), nil }},
		{"LZ4", func(dst []byte) ([]byte, error) {
			n, err := lz.CompressBlock(body, dst[:cap(dst)])
			return dst[:n], err
		}},
		{"MinLZ fastest", func(dst []byte) ([]byte, error) { return minlz.Encode(dst[:0], body, minlz.LevelFastest) }},
		{"MinLZ superfast", func(dst []byte) ([]byte, error) { return minlz.Encode(dst[:0], body, minlz.LevelSuperFast) }},
		{"zstd fastest", func(dst []byte) ([]byte, error) { return fastest.EncodeAll(body, dst[:0]), nil }},
	} {
		b.Run(c.name, func(b *testing.B) {
			packed := make([]byte, 0, 2*len(body))
			b.SetBytes(int64(len(body)))
			benchtest.Loop(b, records, func() {
				if packed, err = c.pack(packed); err != nil {
					b.Fatal(err)
				}
			})
			b.ReportMetric(float64(len(packed))/records, "encoded-B/record")
		})
	}
}

func BenchmarkDecompress(b *testing.B) {
	body := benchtest.Batches(b, 1, records)[0]
	lz := make([]byte, lz4.CompressBlockBound(len(body)))
	n, err := lz4.CompressBlock(body, lz, nil)
	if err != nil {
		b.Fatal(err)
	}
	small, err := minlz.Encode(nil, body, minlz.LevelFastest)
	if err != nil {
		b.Fatal(err)
	}
	std, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		b.Fatal(err)
	}
	unstd, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		b.Fatal(err)
	}
	s, zs := s2.Encode(nil, body), std.EncodeAll(body, nil)
	for _, c := range []struct {
		name   string
		unpack func(dst []byte) ([]byte, error)
	}{
		{"S2", func(dst []byte) ([]byte, error) { return s2.Decode(dst, s) }},
		{"LZ4", func(dst []byte) ([]byte, error) {
			n, err := lz4.UncompressBlock(lz[:n], dst)
			return dst[:n], err
		}},
		{"MinLZ fastest", func(dst []byte) ([]byte, error) { return minlz.Decode(dst, small) }},
		{"zstd fastest", func(dst []byte) ([]byte, error) { return unstd.DecodeAll(zs, dst[:0]) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			dst := make([]byte, len(body))
			b.SetBytes(int64(len(body)))
			benchtest.Loop(b, records, func() {
				if got, err := c.unpack(dst); err != nil || len(got) != len(body) {
					b.Fatal(len(got), err)
				}
			})
		})
	}
}
