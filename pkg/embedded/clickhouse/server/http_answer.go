package server

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ClickHouse/ch-go/compress"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sluice/pkg/embedded/clickhouse/library"
)

// streamable are the formats whose documents can be concatenated, as a streamed result
// requires. Others are formatted whole before they are sent.
var streamable = map[string]bool{
	"tabseparated": true, "tsv": true, "tabseparatedraw": true, "tsvraw": true, "raw": true,
	"csv": true, "tskv": true, "jsoneachrow": true, "jsonlines": true, "ndjson": true,
	"jsonstringseachrow": true, "jsoncompacteachrow": true, "jsoncompactstringseachrow": true,
	"rowbinary": true, "native": true, "lineasstring": true, "rawblob": true, "msgpack": true, "null": true,
}

// contentTypes are by prefix of the format's name, the longest first.
var contentTypes = []struct{ prefix, value string }{
	{"jsoneachrow", "application/x-ndjson; charset=UTF-8"},
	{"jsonstringseachrow", "application/x-ndjson; charset=UTF-8"},
	{"jsoncompacteachrow", "application/x-ndjson; charset=UTF-8"},
	{"jsoncompactstringseachrow", "application/x-ndjson; charset=UTF-8"},
	{"jsonlines", "application/x-ndjson; charset=UTF-8"},
	{"ndjson", "application/x-ndjson; charset=UTF-8"},
	{"json", "application/json; charset=UTF-8"},
	{"csvwithnames", "text/csv; charset=UTF-8; header=present"},
	{"csv", "text/csv; charset=UTF-8; header=absent"},
	{"tabseparated", "text/tab-separated-values; charset=UTF-8"},
	{"tsv", "text/tab-separated-values; charset=UTF-8"},
	{"xml", "application/xml; charset=UTF-8"},
	{"markdown", "text/markdown; charset=UTF-8"},
	{"pretty", "text/plain; charset=UTF-8"},
	{"vertical", "text/plain; charset=UTF-8"},
	{"values", "text/plain; charset=UTF-8"},
}

func contentType(format string) string {
	format = strings.ToLower(format)
	for _, known := range contentTypes {
		if strings.HasPrefix(format, known.prefix) {
			return known.value
		}
	}
	return "application/octet-stream"
}

// bufferSize is the part of a result that is held back, so that an error within it can
// still set the status.
const bufferSize = 1 << 20

// packer is gzip or zstd.
type packer interface {
	Flush() error
	Close() error
}

// answer is a response over HTTP.
type answer struct {
	out      http.ResponseWriter
	started  time.Time
	id       string
	tag      string // distinguishes an exception within a result from its data
	format   string
	timezone string
	done     library.Stats
	hold     bool // all of the result, until it is complete

	encoding string // gzip, zstd or none
	framed   bool   // compress=1: ClickHouse's own compression
	held     []byte
	sent     bool // status and headers are sent
	to       io.Writer
	packer   packer // nil: none
}

func newAnswer(out http.ResponseWriter, in *http.Request, started time.Time) *answer {
	values := in.URL.Query()
	a := &answer{out: out, started: started, to: out, format: defaultFormat}
	a.hold = values.Get("wait_end_of_query") == "1"
	a.framed = values.Get("compress") == "1"
	if values.Get("enable_http_compression") != "0" && !a.framed {
		accepted := in.Header.Get("Accept-Encoding")
		switch {
		case strings.Contains(accepted, "zstd"):
			a.encoding = "zstd"
		case strings.Contains(accepted, "gzip"):
			a.encoding = "gzip"
		}
	}
	return a
}

func (a *answer) header() http.Header { return a.out.Header() }

// write appends to the result.
func (a *answer) write(chunk []byte) error {
	if !a.sent && (a.hold || len(a.held)+len(chunk) <= bufferSize) {
		a.held = append(a.held, chunk...)
		return nil
	}
	if err := a.begin(http.StatusOK); err != nil {
		return err
	}
	_, err := a.to.Write(chunk)
	return err
}

// finish sends the rest.
func (a *answer) finish() error {
	if err := a.begin(http.StatusOK); err != nil {
		return err
	}
	if a.packer != nil {
		return a.packer.Close()
	}
	return nil
}

// begin sends status, headers, and the buffered result. The summary covers the work so far:
// all of it, if the result fits the buffer.
func (a *answer) begin(status int) error {
	if a.sent {
		return nil
	}
	a.sent = true
	h := a.header()
	h.Set("Content-Type", contentType(a.format))
	h.Set("X-ClickHouse-Query-Id", a.id)
	h.Set("X-ClickHouse-Format", a.format)
	h.Set("X-ClickHouse-Timezone", a.timezone)
	h.Set("X-ClickHouse-Server-Display-Name", "embedded")
	h.Set("X-ClickHouse-Summary", a.summary())
	a.tag = rand.Text()[:16]
	h.Set("X-ClickHouse-Exception-Tag", a.tag)
	switch {
	case a.encoding == "gzip":
		zip, err := gzip.NewWriterLevel(a.out, 3) // as ClickHouse
		if err != nil {
			return err
		}
		a.to, a.packer = zip, zip
	case a.encoding == "zstd":
		zip, err := zstd.NewWriter(a.out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		a.to, a.packer = zip, zip
	case a.framed:
		a.to = &frameWriter{to: a.out, packer: compress.NewWriter(compress.LevelZero, compress.LZ4)}
	}
	if a.encoding != "" {
		h.Set("Content-Encoding", a.encoding)
		h.Set("Vary", "Accept-Encoding")
	}
	a.out.WriteHeader(status)
	_, err := a.to.Write(a.held)
	a.held = nil
	return err
}

// fail reports an error: by status if nothing was sent yet, else by aborting the response,
// so that no client takes it for complete.
func (a *answer) fail(exception *library.Exception, version string) {
	text := fmt.Sprintf("Code: %d. %s (version %s)\n", exception.Code, exception.Message, version)
	if a.sent {
		fmt.Fprintf(a.to, "\r\n__exception__\r\n%s\r\n%s%d %[1]s\r\n__exception__\r\n", a.tag, text, len(text)-1)
		if a.packer != nil {
			a.packer.Flush() // not Close: it is incomplete
		}
		http.NewResponseController(a.out).Flush()
		panic(http.ErrAbortHandler)
	}
	a.held, a.encoding, a.framed, a.sent = nil, "", false, true
	h := a.header()
	h.Set("Content-Type", "text/plain; charset=UTF-8")
	h.Set("X-ClickHouse-Exception-Code", strconv.Itoa(exception.Code))
	h.Set("X-ClickHouse-Query-Id", a.id)
	h.Set("X-ClickHouse-Summary", a.summary())
	a.out.WriteHeader(httpStatus(exception))
	io.WriteString(a.out, text)
}

// summary is the value of X-ClickHouse-Summary. Its numbers are strings.
func (a *answer) summary() string {
	d := a.done
	return fmt.Sprintf(`{"read_rows":"%d","read_bytes":"%d","written_rows":"%d","written_bytes":"%d",`+
		`"total_rows_to_read":"0","result_rows":"%d","result_bytes":"%d","elapsed_ns":"%d"}`,
		d.ReadRows, d.ReadBytes, d.WrittenRows, d.WrittenBytes, d.ResultRows, d.ResultBytes, time.Since(a.started).Nanoseconds())
}

// frameWriter compresses as the native protocol does.
type frameWriter struct {
	to     io.Writer
	packer *compress.Writer
}

func (f *frameWriter) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		piece := rest[:min(len(rest), library.PieceSize)]
		rest = rest[len(piece):]
		if err := f.packer.Compress(piece); err != nil {
			return 0, err
		}
		if _, err := f.to.Write(f.packer.Data); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}
