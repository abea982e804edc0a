package api_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"sluice/pkg/api"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func gzipped(t testing.TB, plain string) string {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	fatal.If(t, err)
	if _, err := w.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	fatal.If(t, w.Close())
	return b.String()
}

func zstded(t testing.TB, plain string) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	fatal.If(t, err)
	return string(w.EncodeAll([]byte(plain), nil))
}

// streamed compresses without the length in the header.
func streamed(t testing.TB, plain string) string {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	fatal.If(t, err)
	for chunk := range strings.Lines(plain) {
		if _, err := w.Write([]byte(chunk)); err != nil {
			t.Fatal(err)
		}
	}
	fatal.If(t, w.Close())
	return b.String()
}

func TestCompressedBodies(t *testing.T) {
	plain := `[{"id":"1-1","worker":"` + strings.Repeat("w", 5000) + `"}]`
	broken := []byte(gzipped(t, plain))
	broken[len(broken)-6] ^= 1 // of the checksum
	// A frame with a window of 16 MiB that holds one raw block of two bytes.
	const hugeWindow = "\x28\xb5\x2f\xfd\x00\x70\x11\x00\x00[]"
	tests := []struct {
		name, encoding, body string
		status               int
		code                 string
	}{
		{"gzip", "gzip", gzipped(t, plain), 200, ""},
		{"gzip under its old name", "x-gzip", gzipped(t, plain), 200, ""},
		{"gzip in other letters", " GZip", gzipped(t, plain), 200, ""},
		{"gzip of two members", "gzip", gzipped(t, plain[:100]) + gzipped(t, plain[100:]), 200, ""},
		{"zstd", "zstd", zstded(t, plain), 200, ""},
		{"zstd of two frames", "zstd", zstded(t, plain[:100]) + zstded(t, plain[100:]), 200, ""},
		{"zstd of unknown length", "zstd", streamed(t, plain), 200, ""},
		{"identity", "identity", plain, 200, ""},
		{"invalid gzip", "gzip", plain, 400, "bad_compression"},
		{"invalid zstd", "zstd", plain, 400, "bad_compression"},
		{"gzip cut off", "gzip", gzipped(t, plain)[:40], 400, "bad_compression"},
		{"zstd cut off", "zstd", zstded(t, plain)[:20], 400, "bad_compression"},
		{"gzip with a wrong checksum", "gzip", string(broken), 400, "bad_compression"},
		{"gzip with something after it", "gzip", gzipped(t, plain) + "x", 400, "bad_compression"},
		{"an empty body as gzip", "gzip", "", 400, "empty_body"},
		{"gzip of an empty body", "gzip", gzipped(t, ""), 400, "empty_body"},
		{"zstd with too large a window", "zstd", hugeWindow, 400, "bad_compression"},
		{"brotli", "br", plain, 415, "unsupported_encoding"},
		{"gzip twice", "gzip, gzip", gzipped(t, gzipped(t, plain)), 415, "unsupported_encoding"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, config())
			for range 2 { // decoders are reused after failures too
				resp := d.post(tt.body, header("Content-Encoding", tt.encoding))
				if tt.status == 200 {
					wantOK(t, resp)
					continue
				}
				wantProblem(t, resp, tt.status, tt.code)
				if accept := resp.Header.Get("Accept-Encoding"); tt.status == 415 && accept != "gzip, zstd" {
					t.Errorf("Accept-Encoding: got %q, want gzip, zstd", accept)
				}
			}
			if tt.status == 200 {
				expect.Equal(t, "stored", []string{plain[1 : len(plain)-1]}, d.stream.stored())
			}
		})
	}
}

func small() api.Config {
	cfg := config()
	cfg.BodyBytes, cfg.Records, cfg.RecordBytes, cfg.Depth, cfg.Ratio = 4<<20, 10, 2<<20, 8, 50
	return cfg
}

func TestLimitsLetThroughWhatTheyAllowAndNoMore(t *testing.T) {
	record := func(n int) string { return `{"id":"1","x":"` + strings.Repeat("x", n-17) + `"}` }
	list := func(n int) string { return "[" + strings.Repeat(`{"id":"1"},`, n-1) + `{"id":"1"}]` }
	deep := func(n int) string { return strings.Repeat(`{"value":`, n-1) + "{}" + strings.Repeat("}", n-1) }
	spaces := func(n int) string { return `{"id":"1"}` + strings.Repeat(" ", n-10) }
	tests := []struct {
		name     string
		body     string
		encoding string
		status   int
		code     string
		index    int // of the record beyond the limit
	}{
		{"a body as long as allowed", spaces(4 << 20), "", 200, "", 0},
		{"a body one byte longer", spaces(4<<20 + 1), "", 413, "body_too_large", 0},
		{"a record as long as allowed", "[" + record(2<<20) + "]", "", 200, "", 0},
		{"a record one byte longer", "[" + record(20) + "," + record(2<<20+1) + "]", "", 413, "record_too_large", 1},
		{"as many records as allowed", list(10), "", 200, "", 0},
		{"one record more", list(11), "", 413, "too_many_records", 10},
		{"as deep as allowed", deep(8), "", 200, "", 0},
		{"one deeper", deep(9), "", 422, "too_deep", 0},
		{"a megabyte that was very small", gzipped(t, spaces(1<<20)), "gzip", 200, "", 0},
		{"a gzip bomb", gzipped(t, spaces(4<<20)), "gzip", 413, "compression_ratio", 0},
		{"a gzip bomb that claims to be small", liar(gzipped(t, spaces(4<<20))), "gzip", 413, "compression_ratio", 0},
		{"a zstd bomb of unknown size", streamed(t, strings.Repeat(" \n", 2<<20)), "zstd", 413, "compression_ratio", 0},
		{"a zstd bomb", zstded(t, spaces(4<<20)), "zstd", 413, "compression_ratio", 0},
		{"a gzip bomb in a gzip bomb", gzipped(t, gzipped(t, spaces(64<<20))), "gzip", 400, "invalid_json", 0},
		{"a compressed body that is too long", gzipped(t, scrambled(4<<20+1)), "gzip", 413, "body_too_large", 0},
		{"a zstd body that is too long", streamed(t, scrambled(4<<20+1)), "zstd", 413, "body_too_large", 0},
	}
	for _, tt := range tests {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %t", tt.name, chunked), func(t *testing.T) {
				d := newDoor(t, small())
				r := request(http.MethodPost, "/flow/flowRecord/batch", tt.body)
				if tt.encoding != "" {
					r.Header.Set("Content-Encoding", tt.encoding)
				}
				if chunked {
					r.ContentLength = -1
				}
				w := d.serveOne(r)
				if tt.status == 200 {
					wantOK(t, w)
					return
				}
				p := wantProblem(t, w, tt.status, tt.code)
				if tt.index > 0 && (len(p.Errors) != 1 || p.Errors[0].Index != tt.index) {
					t.Errorf("errors: got %v, want one of record %d", p.Errors, tt.index)
				}
				expect.Not(t, tt.code == "body_too_large" && tt.encoding == "" && w.Header.Get("Connection") != "close", "the connection is not closed, although the body was not read")
				expect.Equal(t, "bytes are still held after the answer", 0, d.held(t))
			})
		}
	}
}

// liar makes a gzip body claim a length of 100 bytes.
func liar(body string) string { return body[:len(body)-4] + "\x64\x00\x00\x00" }

// scrambled is a valid body of n bytes that compresses about as well as real records.
func scrambled(n int) string {
	var b strings.Builder
	b.WriteString(`[{"id":"1"}`)
	for i := uint64(1); b.Len() < n-60; i++ {
		x := i * 2654435761 % 1000000007
		fmt.Fprintf(&b, ",\n{\"id\":\"1-%d\",\"key\":%d", i, x)
		for j := range min(40, (n-60-b.Len())/20) {
			x = (x*48271 + uint64(j)) % 2147483647
			fmt.Fprintf(&b, ",\"m%d\":%d", j, x)
		}
		b.WriteString("}")
	}
	b.WriteString("]" + strings.Repeat(" ", max(0, n-b.Len()-1)))
	return b.String()
}
