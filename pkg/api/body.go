package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
)

// bodies reads request bodies: in time, within the budget, decompressed.
type bodies struct {
	cfg       Config
	metrics   *metrics
	budget    *budget
	buffers   *buffers
	inflaters chan *inflater // the idle ones
}

func newBodies(cfg Config, m *metrics) *bodies {
	b := &bodies{
		cfg:     cfg,
		metrics: m,
		budget:  newBudget(cfg.InFlightBytes, cfg.InFlightWait),
		buffers: &buffers{},
	}
	// Decompressing is work for a processor: more at once would not be faster.
	n := max(2, runtime.GOMAXPROCS(0))
	b.inflaters = make(chan *inflater, n)
	for range n {
		b.inflaters <- &inflater{}
	}
	return b
}

// body is what a request carried. It belongs to one request, from read to
// release.
type body struct {
	bytes   []byte
	most    int // more bytes are too many
	hold    *hold
	buffers *buffers
	pace    *pace // nil when it is not read from a client
}

// release gives the memory back. Nobody may use the bytes any more.
func (b *body) release() {
	b.buffers.put(b.bytes)
	b.bytes = nil
	b.hold.release()
}

// Of a body whose length is not known, so much is read before more memory is
// asked for; then so much; then all it may need at once. Were it asked for bit
// by bit, bodies that have some would wait for each other to have more.
const (
	firstRead  = 64 << 10
	secondRead = 256 << 10
)

// room makes place for more bytes, within the budget.
func (b *body) room(ctx context.Context) error {
	n := min(2*cap(b.bytes), b.most)
	if need := int64(capacity(n)); need > b.hold.size {
		if n > secondRead {
			need = int64(capacity(b.most))
		}
		defer b.hold.budget.pause(b.pace)()
		if err := b.hold.grow(ctx, need); err != nil {
			return err
		}
	}
	larger := append(b.buffers.get(n), b.bytes...)
	b.buffers.put(b.bytes)
	b.bytes = larger
	return nil
}

// read reads the body of a request, which counts against limit after
// decompression. The caller releases it, unless there is an error.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, limit int) (*body, error) {
	encoding, err := encodingOf(r.Header)
	if err != nil {
		return nil, err
	}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(limit)
	}
	sent, err := b.receive(w, r, limit)
	if err != nil {
		return nil, err
	}
	b.metrics.wireBytes.Add(float64(len(sent.bytes)))
	if encoding == "" {
		b.metrics.bodyBytes.Add(float64(len(sent.bytes)))
		return sent, nil
	}
	defer sent.release()
	plain, err := b.inflate(r.Context(), encoding, sent.bytes, limit)
	if err != nil {
		return nil, err
	}
	b.metrics.bodyBytes.Add(float64(len(plain.bytes)))
	return plain, nil
}

// receive reads the body as it was sent. The budget is asked before anything
// is read, and again whenever a body of unknown length grows.
func (b *bodies) receive(w http.ResponseWriter, r *http.Request, limit int) (*body, error) {
	expect, known := int(r.ContentLength), r.ContentLength >= 0
	if !known {
		expect = min(firstRead, limit)
	}
	h, err := b.budget.take(r.Context(), int64(capacity(expect)), known)
	if err != nil {
		return nil, err
	}
	sent := &body{bytes: b.buffers.get(expect), most: limit, hold: h, buffers: b.buffers, pace: newPace(w, r, &b.cfg)}
	if h.half == b.budget.large {
		b.budget.watch(sent.pace)
	}
	err = sent.fill(r.Context(), sent.pace)
	b.budget.unwatch(sent.pace)
	if err == nil {
		err = sent.pace.done()
	}
	if err != nil {
		sent.release()
		return nil, readFailure(err, limit, sent.pace.isCut())
	}
	return sent, nil
}

var errTooLarge = errors.New("more bytes than allowed")

// fill reads until the end, growing as needed up to the most, and gives back
// what it did not need.
func (b *body) fill(ctx context.Context, from io.Reader) error {
	for {
		if len(b.bytes) == cap(b.bytes) && len(b.bytes) < b.most {
			if err := b.room(ctx); err != nil {
				return err
			}
		}
		var over [1]byte
		into := b.bytes[len(b.bytes):min(cap(b.bytes), b.most)]
		if len(into) == 0 {
			into = over[:] // whatever still comes is too much
		}
		n, err := from.Read(into)
		if n > 0 && len(b.bytes) == b.most {
			return errTooLarge
		}
		b.bytes = b.bytes[:len(b.bytes)+n]
		if err == io.EOF {
			b.hold.shrink(int64(cap(b.bytes)))
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readFailure says what a failed read means to the client.
func readFailure(err error, limit int, cut bool) error {
	switch {
	case errors.Is(err, errTooLarge):
		return tooLarge(limit)
	case cut:
		return refuse(codeBodyTimeout, "the body came too slowly while others waited for its memory")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(codeBodyTimeout, "the body came too slowly")
	case errors.Is(err, errNoMemory):
		return err
	default:
		return refuse(codeBodyIncomplete, "the body ended before its length was reached, or its chunks are malformed")
	}
}

func tooLarge(limit int) *refusal {
	return refuse(codeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes after decompression", limit))
}

// Content encodings that are taken.
const (
	encodingGzip = "gzip"
	encodingZstd = "zstd"
)

// encodingOf returns how a body is compressed, empty for not at all.
func encodingOf(h http.Header) (string, error) {
	values := h["Content-Encoding"]
	if len(values) == 0 {
		return "", nil
	}
	switch name := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); name {
	case "", "identity":
		return "", nil
	case encodingGzip, "x-gzip":
		return encodingGzip, nil
	case encodingZstd:
		return encodingZstd, nil
	default:
		return "", refuse(codeUnsupportedEncoding, "bodies are taken plain, or compressed with gzip or zstd")
	}
}
