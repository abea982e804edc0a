package server_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sluice/pkg/embedded/clickhouse/clickhousetest"
	"sluice/pkg/expect"
	"sluice/pkg/fatal"
)

func TestHTTPCompressesBothWays(t *testing.T) {
	database, _ := clickhousetest.FreshDatabase(t)
	in := url.Values{"database": {database}}
	post(t, in, "CREATE TABLE t (a Int64) ENGINE = MergeTree ORDER BY a")
	data := strings.Repeat("7\n", 100_000)
	packed := map[string]string{"gzip": pack(t, data, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		"zstd": pack(t, data, func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }),
		"lz4":  pack(t, data, func(w io.Writer) io.WriteCloser { return lz4.NewWriter(w) })}
	for encoding, body := range packed {
		r := request(t, http.MethodPost, "?database="+database+"&query="+url.QueryEscape("INSERT INTO t FORMAT TSV"), body)
		r.Header.Set("Content-Encoding", encoding)
		if got, _ := send(t, r); got != ok("") {
			t.Errorf("%s: got %v", encoding, got)
		}
		for what, wrong := range map[string]string{"that is cut off": body[:len(body)-9], "that is not packed": data} {
			r := request(t, http.MethodPost, "?database="+database+"&query="+url.QueryEscape("INSERT INTO t FORMAT TSV"), wrong)
			r.Header.Set("Content-Encoding", encoding)
			if got, _ := send(t, r); got.Status == 200 {
				t.Errorf("%s: a body %s is taken", encoding, what)
			}
		}
	}
	if got, _ := post(t, in, "SELECT count() FROM t"); got != ok("300000\n") {
		t.Errorf("got %v rows, want 300000", got)
	}
	for encoding, open := range map[string]func(io.Reader) (io.Reader, error){
		"gzip": func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		"zstd": func(r io.Reader) (io.Reader, error) { return zstd.NewReader(r) },
	} {
		r := request(t, http.MethodGet, "?query="+url.QueryEscape("SELECT 7 FROM numbers(1000000)"), "")
		r.Header.Set("Accept-Encoding", encoding)
		got, answer := send(t, r)
		if answer.Header.Get("Content-Encoding") != encoding || len(got.Body) > 100_000 {
			t.Errorf("%s: encoding %q, %d bytes", encoding, answer.Header.Get("Content-Encoding"), len(got.Body))
			continue
		}
		unpacked, err := open(strings.NewReader(got.Body))
		fatal.If(t, err)
		text, err := io.ReadAll(unpacked)
		expect.Not(t, err != nil || string(text) != strings.Repeat("7\n", 1_000_000), "%s: %d bytes, %v", encoding, len(text), err)
	}
	framed, _ := post(t, url.Values{"compress": {"1"}}, "SELECT toInt64(number) FROM numbers(1000)")
	r := url.Values{"decompress": {"1"}, "database": {database}, "query": {"INSERT INTO t FORMAT TSV"}}
	if got, _ := post(t, r, framed.Body); got != ok("") {
		t.Errorf("compress=1 and decompress=1: got %v", got)
	}
	if got, _ := post(t, in, "SELECT count(), sum(a) FROM t"); got != ok("301000\t2599500\n") {
		t.Errorf("got %v", got)
	}
}

func pack(t *testing.T, data string, with func(io.Writer) io.WriteCloser) string {
	t.Helper()
	var packed bytes.Buffer
	w := with(&packed)
	io.WriteString(w, data)
	fatal.If(t, w.Close())
	return packed.String()
}

func TestHTTPStreamsLargeResults(t *testing.T) {
	e := clickhousetest.Shared(t)
	for _, format := range []string{"TSV", "JSONEachRow", "CSV"} {
		answer, err := http.Get(e.HTTP() + "/?enable_http_compression=0&query=" + url.QueryEscape("SELECT number FROM numbers(5000000) FORMAT "+format))
		fatal.If(t, err)
		first := make([]byte, 1)
		io.ReadFull(answer.Body, first)
		running, _ := post(t, nil, "SELECT count() FROM system.processes WHERE query LIKE '%5000000%' AND query NOT LIKE '%processes%'")
		expect.Not(t, running != ok("1\n"), "%s: the first byte came when the statement was over", format)
		rest, err := io.Copy(io.Discard, answer.Body)
		expect.Not(t, err != nil || rest < 35_000_000, "%s: %d bytes, %v", format, rest, err)
		answer.Body.Close()
	}
}

// TestHTTPBreaksAResultOffOnALateError and reports it as servers do, so that a partial result is
// not mistaken for a complete one.
func TestHTTPBreaksAResultOffOnALateError(t *testing.T) {
	e := clickhousetest.Shared(t)
	answer, err := http.Get(e.HTTP() + "/?query=" + url.QueryEscape("SELECT number, throwIf(number = 5000000) FROM numbers(10000000)"))
	fatal.If(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil || answer.StatusCode != 200 {
		t.Errorf("status %d, %v, want a broken answer", answer.StatusCode, err)
	}
	tag := answer.Header.Get("X-ClickHouse-Exception-Tag")
	at := bytes.LastIndex(body, []byte("\r\n__exception__\r\n"+tag+"\r\nCode: 395. DB::Exception: "))
	if len(tag) != 16 || at < 0 || !bytes.HasSuffix(body, []byte(" "+tag+"\r\n__exception__\r\n")) {
		t.Errorf("tag %q, %d bytes, which end in %q", tag, len(body), body[max(0, len(body)-300):])
	}
	whole, _ := get(t, url.Values{"query": {"SELECT number, throwIf(number = 5000000) FROM numbers(10000000)"}, "wait_end_of_query": {"1"}})
	if whole.Status != 500 || whole.Exception != "395" {
		t.Errorf("with wait_end_of_query: status %d, code %s", whole.Status, whole.Exception)
	}
}

func TestHTTPCancelsWithItsClient(t *testing.T) {
	e := clickhousetest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, e.HTTP()+"/?query="+url.QueryEscape("SELECT count() FROM numbers(2e12) WHERE NOT ignore(sipHash64(number))"), nil)
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Fatal("the statement ended")
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		running, _ := post(t, nil, "SELECT count() FROM system.processes WHERE query LIKE '%2e12%' AND query NOT LIKE '%processes%'")
		if running == ok("0\n") {
			return
		}
		fatal.When(t, time.Now().After(deadline), "the statement still runs in the engine")
	}
}
