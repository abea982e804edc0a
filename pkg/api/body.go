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
	"time"
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
	hold    *hold
	buffers *buffers
}

// release gives the memory back. Nobody may use the bytes any more.
func (b *body) release() {
	b.buffers.put(b.bytes)
	b.bytes = nil
	b.hold.release()
}

// room makes place for n bytes in all, within the budget.
func (b *body) room(ctx context.Context, n int) error {
	if n <= cap(b.bytes) {
		return nil
	}
	if err := b.hold.grow(ctx, int64(capacity(n))); err != nil {
		return err
	}
	larger := append(b.buffers.get(n), b.bytes...)
	b.buffers.put(b.bytes)
	b.bytes = larger
	return nil
}

// firstRead is how much is read of a body of unknown length before more memory
// is asked for.
const firstRead = 64 << 10

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
	sent := &body{bytes: b.buffers.get(expect), hold: h, buffers: b.buffers}
	pace := &pace{body: r.Body, control: http.NewResponseController(w), cfg: &b.cfg, start: time.Now()}
	if err = sent.fill(r.Context(), pace, limit); err == nil {
		err = pace.done()
	}
	if err != nil {
		sent.release()
		return nil, readFailure(err, limit)
	}
	return sent, nil
}

var errTooLarge = errors.New("more bytes than allowed")

// fill reads until the end, growing as needed, at most limit bytes.
func (b *body) fill(ctx context.Context, from io.Reader, limit int) error {
	for {
		if len(b.bytes) == cap(b.bytes) && len(b.bytes) < limit {
			if err := b.room(ctx, min(2*cap(b.bytes), limit)); err != nil {
				return err
			}
		}
		var over [1]byte
		into := b.bytes[len(b.bytes):min(cap(b.bytes), limit)]
		if len(into) == 0 {
			into = over[:] // whatever still comes is too much
		}
		n, err := from.Read(into)
		if n > 0 && len(b.bytes) == limit {
			return errTooLarge
		}
		b.bytes = b.bytes[:len(b.bytes)+n]
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readFailure says what a failed read means to the client.
func readFailure(err error, limit int) error {
	switch {
	case errors.Is(err, errTooLarge):
		return tooLarge(limit)
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

// pace reads a body and cuts off clients that keep us waiting: after a grace
// the body must have come at a certain rate, and it must end in time.
type pace struct {
	body    io.Reader
	control *http.ResponseController
	cfg     *Config
	start   time.Time
	set     time.Time // when the deadline was set last
	n       int64
}

// setEvery spares a system call for each read of a fast body.
const setEvery = 500 * time.Millisecond

func (p *pace) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.set) >= setEvery {
		earned := p.cfg.BodyGrace + time.Duration(p.n)*time.Second/time.Duration(p.cfg.BodyRate)
		deadline := p.start.Add(min(earned, p.cfg.BodyTimeout))
		// Answered by test recorders and the like with ErrNotSupported: they
		// have no connection that could be slow.
		if err := p.control.SetReadDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, err
		}
		p.set = now
	}
	n, err := p.body.Read(b)
	p.n += int64(n)
	return n, err
}

// done lifts the deadline. It would end the request's context while the
// records are being published.
func (p *pace) done() error {
	if err := p.control.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
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
