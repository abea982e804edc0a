package record_test

import (
	"testing"

	"sluice/pkg/benchtest"
	"sluice/pkg/fatal"
	"sluice/pkg/flow"
	"sluice/pkg/record"
)

// BenchmarkParse is the decoding in the api: it checks a body and finds its
// records.
func BenchmarkParse(b *testing.B) {
	benchtest.Requests(b, func(b *testing.B, bodies [][]byte, records int) {
		benchtest.Records(b, bodies, records, func(i int) { parsed(b, bodies[i]).Release() })
	})
}

// BenchmarkCut is the encoding and compressing: a parsed body becomes messages.
func BenchmarkCut(b *testing.B) {
	benchtest.Requests(b, func(b *testing.B, bodies [][]byte, records int) {
		requests, encoded := make([]*record.Request, len(bodies)), 0
		for i, body := range bodies {
			requests[i] = parsed(b, body)
			encoded += len(chunksOf(b, requests[i], nil)[0].Body)
		}
		var chunks []flow.Chunk
		benchtest.Records(b, bodies, records, func(i int) { chunks = chunksOf(b, requests[i], chunks[:0]) })
		b.ReportMetric(float64(encoded)/float64(len(bodies)*records), "encoded-B/record")
	})
}

// BenchmarkAppend is the decoding in the ingester: S2 and JSON of a message
// become columns. The room for a full block is there.
func BenchmarkAppend(b *testing.B) {
	benchtest.Requests(b, func(b *testing.B, bodies [][]byte, records int) {
		messages := make([]flow.Message, len(bodies))
		for i, body := range bodies {
			part := chunksOf(b, parsed(b, body), nil)[0]
			messages[i] = flow.Message{Seq: uint64(i + 1), Body: part.Body, Encoding: part.Encoding, Received: benchtest.Start}
		}
		var c record.Columns
		appendOne := func(i int) {
			if c.Rows() >= 50_000 {
				c.Reset()
			}
			fatal.If(b, c.Append(&messages[i]))
		}
		for i := range 2 * 50_000 / records { // a block has been here before
			appendOne(i % len(messages))
		}
		benchtest.Records(b, bodies, records, appendOne)
	})
}

func parsed(b *testing.B, body []byte) *record.Request {
	r := record.NewRequest()
	fatal.If(b, r.Parse(body, record.FormAuto, record.Limits{}))
	return r
}

// chunksOf returns the one part of a request that is small enough.
func chunksOf(b *testing.B, r *record.Request, dst []flow.Chunk) []flow.Chunk {
	chunks, err := r.Cut(flow.DefaultChunkBytes, 1, dst)
	fatal.When(b, err != nil || len(chunks) != 1, "got %d chunks and error %v, want one", len(chunks), err)
	return chunks
}
